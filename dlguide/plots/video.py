"""Predicted video: frames beside the true ones, how near they are, and a film that moves."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw

from dlguide.errors import require, require_count, require_positive
from dlguide.plots.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    figure,
    legend_below,
    written,
)
from dlguide.plots.pictures import pictures

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

_COLOURS = (GREY, SKY, ORANGE, BLUE, GREEN, PURPLE)
_MARKS = "osv^Dx"
# Pixels of a frame in a film, of the line under it, and between two of them.
_FRAME, _LINE, _GAP = 128, 16, 6


def predicted_frames(
    frames: Mapping[str, ArrayLike], clip: int = 0, path: str | os.PathLike | None = None
) -> Figure:
    """Draw one clip: what was seen, what came, and what each predictor said would come.

    Args:
        frames: for each row its name and clips: uint8, shape (clips, frames, rows, columns, 3).
        clip: which one to draw (index).
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: a row for each name, a column for each frame.

    Raises:
        ValueError: when there is no such clip, or rows have different numbers of frames.
    """
    rows = {name: np.asarray(clips) for name, clips in frames.items()}
    require(bool(rows), "frames", "name a row at least", {})
    for name, clips in rows.items():
        must = "have the shape (clips, frames, rows, columns, 3)"
        require(clips.ndim == 5, "frames", must, f"{clips.shape} for {name!r}")
        there = require_count(clip, "clip", least=0) < len(clips)
        require(there, "clip", f"be below the {len(clips)} clips of {name!r}", clip)
    counts = {clips.shape[1] for clips in rows.values()}
    require(len(counts) == 1, "frames", "have as many frames in each row", sorted(counts))
    images = np.concatenate([clips[clip] for clips in rows.values()])
    said = f"Frames of one clip in rows: {', '.join(rows)}; time goes from left to right."
    return pictures(images, None, counts.pop(), path, row_titles=list(rows), alt=said)


def frame_scores(
    scores: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw how near predictors are, frame by frame: it gets harder the further they look.

    Args:
        scores: for each predictor PSNR (dB) and SSIM of the first, second, ... frame.
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: PSNR on the left, SSIM on the right.

    Raises:
        ValueError: when there is no predictor, or more than six.
    """
    count = len(scores)
    require(0 < count <= len(_COLOURS), "scores", f"hold 1 to {len(_COLOURS)} predictors", count)
    told = "; ".join(
        f"{name}: {both[0][0]:.1f} to {both[0][-1]:.1f} dB, {both[1][0]:.2f} to {both[1][-1]:.2f}"
        for name, both in scores.items()
    )
    alt = f"PSNR and SSIM from the first frame to the last. {told}."
    drawn, panels = figure(columns=2, height=3.0, alt=alt)
    for panel, label, which in zip(panels, ("PSNR (dB)", "SSIM"), (0, 1), strict=True):
        for (name, both), colour, mark in zip(scores.items(), _COLOURS, _MARKS, strict=False):
            numbers = list(both[which])
            frames = range(1, len(numbers) + 1)
            panel.plot(frames, numbers, color=colour, marker=mark, markersize=5, label=name)
        panel.set(
            xlabel="frame after the last one seen", ylabel=label, title=f"{label}: higher is nearer"
        )
    legend_below(panels[0])
    return written(drawn, path)


def growth(
    errors: Sequence[float], sizes: Sequence[int], path: str | os.PathLike | None = None
) -> Figure:
    """Draw the error of each epoch with the resolution that was the finest then.

    Errors of different resolutions are not to be compared: a coarse frame has less in it.

    Args:
        errors: mean error of a pixel in each epoch (0 to 1).
        sizes: finest resolution of each epoch (pixels).
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: one line for each resolution.

    Raises:
        ValueError: when there are not as many errors as sizes, or none.
    """
    require(len(errors) == len(sizes) > 0, "sizes", f"be {len(errors)}, at least 1", len(sizes))
    told = ", ".join(f"{100 * each:.1f}" for each in errors)
    alt = f"Mean error of each epoch in % of the range, finer and finer frames: {told}."
    drawn, (panel,) = figure(width=6.0, height=3.0, alt=alt)
    known = sorted(set(sizes))
    for size, colour, mark in zip(
        known, (SKY, ORANGE, BLUE, GREEN, PURPLE, GREY), _MARKS, strict=False
    ):
        epochs = [number for number, one in enumerate(sizes, 1) if one == size]
        panel.plot(
            epochs, [100 * errors[number - 1] for number in epochs],
            color=colour, marker=mark, markersize=5, label=f"{size} x {size} pixels",
        )  # fmt: skip
    panel.set(xlabel="epoch", ylabel="mean error (% of the range)", title="The pair grows")
    panel.set_ylim(bottom=0)
    legend_below(panel)
    return written(drawn, path)


def shares(
    rows: Sequence[tuple[str, float, float, float]], path: str | os.PathLike | None = None
) -> Figure:
    """Draw what part of a step goes to the exchange, case by case.

    Args:
        rows: name, size of the gradients (bytes), computing of a step (s), exchange (s).
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: a bar for each row, computing and exchange one on the other.

    Raises:
        ValueError: when there is no row, or a time is not positive.
    """
    require(len(rows) > 0, "rows", "hold at least one", 0)
    wholes = [require_positive(compute_s + more_s, "rows") for _, _, compute_s, more_s in rows]
    told = [f"{row[0]} {row[3] / whole:.0%}" for row, whole in zip(rows, wholes, strict=True)]
    alt = f"Share of the exchange in a step: {', '.join(told)}."
    drawn, (panel,) = figure(width=7.0, height=3.2, alt=alt)
    for at, ((_, _, _, exchange_s), whole) in enumerate(zip(rows, wholes, strict=True)):
        part = 100 * exchange_s / whole
        panel.bar(at, 100 - part, color=BLUE, label="computing")
        panel.bar(at, part, bottom=100 - part, color=ORANGE, hatch="//", label="exchange")
        panel.text(at, 101, f"{part:.0f} %", ha="center", va="bottom", fontsize=9)
    panel.set_xticks(range(len(rows)))
    panel.set_xticklabels([f"{name}\n{1e-6 * nbytes:.3g} MB" for name, nbytes, *_ in rows])
    panel.set(
        ylabel="share of a step (%)",
        ylim=(0, 112),
        title="What a step's time goes to",
    )
    legend_below(panel)
    return written(drawn, path)


def film(
    frames: Mapping[str, ArrayLike],
    clip: int = 0,
    path: str | os.PathLike | None = None,
    seconds: float = 0.25,
) -> bytes:
    """Make a film of predictors side by side, as a GIF that a page shows without any script.

    Args:
        frames: for each its name and clips: uint8, shape (clips, frames, rows, columns, 3);
            all have as many frames, those that were seen before the predicted ones or not.
        clip: which one to show (index).
        path: file to write; None for none.
        seconds: how long a frame is seen (s); the last one four times as long.

    Returns:
        bytes: the GIF.

    Raises:
        ValueError: when there is nothing to show, or the numbers of frames differ.
    """
    require(bool(frames), "frames", "name a predictor at least", {})
    chosen = {name: np.asarray(clips)[clip] for name, clips in frames.items()}
    counts = {len(each) for each in chosen.values()}
    require(len(counts) == 1, "frames", "have as many frames each", sorted(counts))
    pause = round(1000 * require_positive(seconds, "seconds"))
    count = counts.pop()
    pages = [_page({name: each[at] for name, each in chosen.items()}, at) for at in range(count)]
    data = io.BytesIO()
    pages[0].save(
        data, format="GIF", save_all=True, append_images=pages[1:], loop=0,
        duration=[pause] * (count - 1) + [4 * pause],
    )  # fmt: skip
    if path is not None:
        Path(path).write_bytes(data.getvalue())
    return data.getvalue()


def _page(frames: Mapping[str, Any], number: int) -> Image.Image:
    """Put the frames of one moment side by side, each with its name under it."""
    width = len(frames) * (_FRAME + _GAP) - _GAP
    page = Image.new("RGB", (width, _FRAME + _LINE), "white")
    pen = ImageDraw.Draw(page)
    for place, (name, frame) in enumerate(frames.items()):
        left = place * (_FRAME + _GAP)
        large = Image.fromarray(np.asarray(frame, np.uint8))
        page.paste(large.resize((_FRAME, _FRAME), Image.Resampling.NEAREST), (left, 0))
        pen.text((left + 3, _FRAME + 2), f"{name}, {number + 1}", fill="black")
    return page.quantize(128, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
