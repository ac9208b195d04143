"""Rows of small pictures: samples, filters, feature maps, what a generator has made."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require, require_count, require_known
from dlguide.plots.figures import BLUE, GREY, ORANGE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_SCALES = ("unit", "own", "signed")
# inches: the widest row, the widest picture, a line of a title, the space between pictures
_ROW, _CELL, _LINE, _GAP = 9.0, 1.15, 0.17, 0.08


def pictures(
    images: ArrayLike | Sequence[ArrayLike],
    titles: Sequence[object] | None = None,
    columns: int = 8,
    path: str | os.PathLike | None = None,
    scale: str = "unit",
    row_titles: Sequence[object] | None = None,
    alt: str = "",
) -> Figure:
    """Draw images side by side, row after row, each with its title above it.

    What colours mean is said by `scale`, so that two pictures can be compared or not:

    - "unit": 0 is black and 1 is white, in all of them; what lies beyond is cut off. Whole
      numbers (uint8) are divided by 255.
    - "own": each from its smallest number (black) to its largest (white). It shows faint maps,
      and hides which of them is the stronger.
    - "signed": 0 is white, below it blue, above it orange, with one scale for all: for filters.

    Args:
        images: (count, height, width), (count, height, width, 1) for grey ones or
            (count, height, width, 3) for coloured ones; or a list of such single images, whose
            sizes may differ.
        titles: one for each image; None for none.
        columns: images in a row (count).
        path: file to write, its ending names the format; None for none.
        scale: "unit", "own" or "signed"; the last one for grey images only.
        row_titles: one for each row, written at its left; None for none.
        alt: what the pictures show, in words; "" reads the titles aloud.

    Returns:
        Figure: the pictures, in rows of `columns`.

    Raises:
        ValueError: when there is no image, one has another shape than above, the numbers of
            titles are not those of images and rows, or a name or number is out of range.
    """
    from matplotlib.colors import LinearSegmentedColormap

    require_known(scale, _SCALES, "scale")
    require_count(columns, "columns")
    shown = [_image(each, scale) for each in images]
    require(bool(shown), "images", "hold at least one image", 0)
    columns = min(columns, len(shown))
    rows = -(-len(shown) // columns)
    for name, words, count in (("titles", titles, len(shown)), ("row_titles", row_titles, rows)):
        fits = words is None or len(words) == count
        require(fits, name, f"be {count}, one for each", None if words is None else len(words))

    # an array of titles has no truth value, so these ask for None
    words = [""] * len(shown) if titles is None else [str(title) for title in titles]
    names = [] if row_titles is None else [str(title) for title in row_titles]
    cell = min(_CELL, _ROW / columns)
    gap, line = _GAP / cell, _LINE / cell
    tall = max(image.shape[0] / image.shape[1] for image in shown)
    above = line * max(len(each.splitlines()) for each in words)
    left = 0.5 * line * max((len(each) for each in names), default=0)  # a letter is half as wide
    wide, high = left + columns * (1 + gap), rows * (tall + above + gap)

    said = alt or _words(words, names, rows, columns, len(shown))
    drawn, (axes,) = figure(width=wide * cell, height=high * cell, alt=said)
    drawn.get_layout_engine().set(w_pad=0, h_pad=0)
    limits = _limits(shown, scale)
    colours = LinearSegmentedColormap.from_list("signed", [BLUE, "white", ORANGE])
    for number, (image, title) in enumerate(zip(shown, words, strict=True)):
        row, column = divmod(number, columns)
        x, y = left + column * (1 + gap), row * (tall + above + gap) + above
        bottom = y + image.shape[0] / image.shape[1]
        low, most = limits or (float(image.min()), float(image.max()))
        axes.imshow(
            image,
            cmap=colours if scale == "signed" else "gray",
            vmin=low,
            vmax=most if most > low else low + 1.0,
            extent=(x, x + 1, bottom, y),
            interpolation="nearest",
        )
        if scale == "signed":  # what is white at its edge has one
            frame = ([x, x + 1, x + 1, x, x], [y, y, bottom, bottom, y])
            axes.plot(*frame, color=GREY, linewidth=0.4)
        if title:
            axes.text(x + 0.5, y - 0.15 * line, title, ha="center", va="bottom", fontsize=8)
    for row, name in enumerate(names):
        middle = row * (tall + above + gap) + above + tall / 2
        axes.text(left - 0.4 * line, middle, name, ha="right", va="center", fontsize=9)
    axes.set(xlim=(-gap / 4, wide), ylim=(high, 0), aspect="equal")
    axes.set_axis_off()
    return written(drawn, path)


def _image(image: ArrayLike, scale: str) -> np.ndarray:
    numbers = np.asarray(image)
    whole = numbers.dtype.kind in "ui"
    numbers = numbers.astype(np.float64) / (255 if whole and scale == "unit" else 1)
    if numbers.ndim == 3 and numbers.shape[-1] == 1:
        numbers = numbers[..., 0]
    coloured = numbers.ndim == 3 and numbers.shape[-1] == 3
    must = "be images of (height, width), with 1 or 3 channels"
    require(numbers.ndim == 2 or coloured, "images", must, f"the shape {np.shape(image)}")
    require(numbers.size > 0, "images", "have pixels", f"the shape {np.shape(image)}")
    if coloured:
        then = "Give one channel of it."
        require(scale != "signed", "scale", "be unit or own for coloured images", scale, then)
        if scale == "own":
            span = float(np.ptp(numbers)) or 1.0
            numbers = (numbers - numbers.min()) / span
        numbers = np.clip(numbers, 0.0, 1.0)
    return numbers


def _limits(shown: Sequence[np.ndarray], scale: str) -> tuple[float, float] | None:
    """Give what is darkest and what is lightest in all pictures; None for each its own."""
    if scale == "own":
        return None
    if scale == "unit":
        return 0.0, 1.0
    largest = max(float(np.abs(image).max()) for image in shown)
    return -largest, largest


def _words(titles: Sequence[str], names: Sequence[str], rows: int, columns: int, count: int) -> str:
    said = f"{count} pictures in {rows} rows of {columns}"
    if names:
        said += f"; rows: {', '.join(names)}"
    if any(titles):
        said += f"; titles: {', '.join(' '.join(each.split()) for each in titles if each)}"
    return f"{said}."
