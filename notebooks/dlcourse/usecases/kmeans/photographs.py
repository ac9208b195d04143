"""Photographs as arrays of colours, read with care; drawn with few colours by the ranks."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from dlcourse.usecases import report
from dlcourse.usecases.kmeans.clustering import KMeansFit, assign, fit
from dlcourse.usecases.run import Option
from dlguide.collectives.agreement import agree_or_raise
from dlguide.data.datasets import shard
from dlguide.errors import MissingComponentError, require, require_count, require_known

MOST = 256  # colours in the palette of a PNG
# What `dlguide usecase kmeans --set` accepts.
OPTIONS = {
    "colours": Option(16, int), "iterations": Option(20, int), "threads": Option(None, int)
}  # fmt: skip
# Without this list Pillow asks all its decoders; the one for EPS starts another program.
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")


def china() -> np.ndarray:
    """Return the photograph of a Chinese temple that comes with scikit-learn.

    Source:
        "China" by danielbuechele (flickr), CC BY 2.0; scikit-learn, `load_sample_image`.
    """
    try:
        from sklearn.datasets import load_sample_image
    except ImportError as error:
        raise MissingComponentError(
            "The photograph comes with scikit-learn, which is not installed. "
            "Run `pip install scikit-learn` or give a file of yours."
        ) from error
    return np.asarray(load_sample_image("china.jpg"))


def read(photograph: str | os.PathLike | np.ndarray) -> np.ndarray:
    """Read a photograph as red, green and blue, upright, as Pillow converts it.

    Args:
        photograph: a file (JPEG, PNG, WebP, TIFF, BMP or GIF), or an array uint8 of shape
            (height, width, 3).

    Returns:
        np.ndarray: uint8 of shape (height, width, 3).
    """
    if isinstance(photograph, np.ndarray):
        shape = f"{photograph.dtype} of shape {photograph.shape}"
        fits = photograph.dtype == np.uint8 and photograph.shape[2:] == (3,) and photograph.size > 0
        require(fits, "photograph", "be uint8 of shape (height, width, 3)", shape)
        return photograph
    try:
        with Image.open(photograph, formats=FORMATS) as image:
            return np.array(ImageOps.exif_transpose(image).convert("RGB"))
    except Exception as error:  # what decoders raise for damaged files is not documented
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        then = f"Pillow says: {reason}. Give a whole file of one of the kinds {', '.join(FORMATS)}."
        raise ValueError(
            f"`photograph` must be a picture that can be read, got {str(photograph)!r}. {then}"
        ) from error


def colours(pixels: np.ndarray) -> int:
    """Count the different colours of a picture.

    >>> colours(np.array([[[1, 2, 3], [3, 2, 1], [1, 2, 3]]], np.uint8))
    2
    """
    red, green, blue = np.moveaxis(np.asarray(pixels, np.uint32), -1, 0)
    return int(np.unique(red << 16 | green << 8 | blue).size)


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """Encode a picture; a PNG of at most 256 colours gets a palette (3 bytes per colour)."""
    require_known(kind, ("PNG", "JPEG"), "kind")
    image = Image.fromarray(pixels)
    if kind == "PNG" and colours(pixels) <= MOST:
        palette, numbers = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
        image = Image.fromarray(numbers.reshape(pixels.shape[:2]).astype(np.uint8), "L")
        image.putpalette(palette.astype(np.uint8).tobytes())
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(contents: bytes) -> np.ndarray:
    """Decode the bytes of `encoded`."""
    with Image.open(io.BytesIO(contents), formats=("PNG", "JPEG")) as image:
        return np.array(image.convert("RGB"))


@dataclass(frozen=True, eq=False)
class Quantised:
    """A photograph drawn with few colours.

    Args:
        palette: the colours, uint8 of shape (colours, 3), the most used first.
        shares: of the pixels that have each colour.
        error: root of the mean squared difference from the photograph, in levels of 0 to 255.
        picture: uint8 of shape (height, width, 3) on rank 0; None on the others.
        nbytes: size of the picture as a PNG on rank 0; 0 on the others (bytes).
    """

    palette: np.ndarray
    shares: tuple[float, ...]
    error: float
    picture: np.ndarray | None
    nbytes: int
    fit: KMeansFit

    def summary(self) -> str:
        """Summarise the result in a few lines."""
        done = self.fit
        return (
            f"{len(self.palette)} colours for {done.points} pixels, off by {self.error:.2f} of 255 "
            f"levels (root of the mean square); as a PNG {self.nbytes} bytes.\n"
            f"k-means: {done.iterations} iterations in {done.seconds:.3f} s on {done.ranks} "
            f"rank{'s'[: done.ranks != 1]} of {done.threads} "
            f"thread{'s'[: done.threads != 1]}, first centres in {done.seeding_s:.3f} s."
        )


def quantise(
    photograph: str | os.PathLike | np.ndarray,
    colours: int = 16,
    iterations: int = 20,
    seed: int = 1,
    threads: int | None = None,
) -> Quantised:
    """Draw a photograph with few colours, on all ranks; collective.

    Rank 0 reads the photograph and scatters its pixels. All find the colours with `fit`, in
    float64 on the levels 0 to 255, each assigns its own pixels, and rank 0 gathers them.
    A rank holds up to 48 bytes for each of its pixels.

    Args:
        photograph: as in `read`; only rank 0 reads it.
        colours: number of colours, at most 256.
        iterations: steps of k-means.
        seed: of k-means++.
        threads: threads of daal4py on each rank; None for its own choice.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pixels = np.zeros((0, 0, 3), np.uint8)
    with agree_or_raise(world):
        _require_few(colours)
        if world.rank == 0:
            pixels = _enough(photograph, colours)
    shape = world.bcast(pixels.shape)
    count = shape[0] * shape[1]
    parts = [shard(count, rank, world.size) for rank in range(world.size)]
    sizes = [each.stop - each.start for each in parts]
    mine = np.empty((sizes[world.rank], 3), np.uint8)
    world.Scatterv([pixels, [3 * size for size in sizes], MPI.BYTE], mine)

    found = fit(mine, colours, iterations, seed=seed, threads=threads)
    order = np.argsort(found.counts, kind="stable")[::-1]
    palette = np.clip(np.rint(found.centres[order]), 0, 255).astype(np.uint8)
    labels = assign(mine, found.centres[order], threads).astype(np.uint8)
    apart = palette[labels].astype(np.int64) - mine
    squares = world.allreduce(int(np.sum(apart * apart)))  # integers: exact in any order

    everyone = np.empty(count if world.rank == 0 else 0, np.uint8)
    world.Gatherv(labels, [everyone, sizes, MPI.BYTE])
    picture, contents = None, b""
    if world.rank == 0:
        picture = palette[everyone].reshape(shape)
        contents = encoded(picture)
    return Quantised(
        palette=palette,
        shares=tuple(found.counts[one] / count for one in order),
        error=math.sqrt(squares / (3 * count)),
        picture=picture,
        nbytes=len(contents),
        fit=found,
    )


def check(
    real: str | os.PathLike | None = None, colours: int = 16, iterations: int = 20, **_others: Any
) -> None:
    """Raise what `train` would raise, before ranks start."""
    _require_few(colours)
    require_count(iterations, "iterations")
    _enough(china() if real is None else real, colours)


def _require_few(colours: int) -> None:
    then = "The palette of a PNG holds no more."
    require_count(colours, "colours")
    require(colours <= MOST, "colours", f"be at most {MOST}", colours, then)


def _enough(photograph: str | os.PathLike | np.ndarray, count: int) -> np.ndarray:
    """Read a photograph that must have so many colours."""
    pixels = read(photograph)
    must, there = "be at most the colours of the photograph", colours(pixels)
    require(count <= there, "colours", must, count, f"It has {there}.")
    return pixels


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Any = None,
    colours: int = 16,
    iterations: int = 20,
    threads: int | None = None,
) -> Quantised:
    """Call `quantise` on a photograph, by default scikit-learn's, as the command does; collective.

    It takes seconds, so `checkpoint` and `report` are not used.
    """
    picture = china() if real is None else real
    return quantise(picture, colours, iterations, seed, threads)


def write(outcomes: Sequence[Quantised], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write `outcome.json` and `quantised.png` of the ranks' outcomes; return their paths."""
    first, folder = report.first_of(outcomes), Path(folder)
    record = {name: getattr(first, name) for name in ("shares", "error", "nbytes")}
    record |= {name: getattr(first.fit, name)
               for name in ("ranks", "points", "iterations", "inertia", "seconds")}  # fmt: skip
    (folder / "quantised.png").write_bytes(encoded(first.picture))
    written = report.write(folder, {"palette": first.palette.tolist(), **record}, {})
    return *written, folder / "quantised.png"
