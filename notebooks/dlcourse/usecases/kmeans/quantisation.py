"""A photograph with few colours: the ranks find the colours, rank 0 writes the picture."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse.usecases.kmeans import photographs
from dlcourse.usecases.kmeans.clustering import KMeansFit, assign, fit
from dlcourse.usecases.run import Option
from dlguide.collectives.agreement import agree_or_raise
from dlguide.data.datasets import shard
from dlguide.errors import require, require_count

MOST = 256  # colours in the palette of a PNG
# What `dlguide usecase kmeans --set` accepts.
OPTIONS = {
    "colours": Option(16, int),
    "iterations": Option(20, int),
    "threads": Option(None, int),
}


@dataclass(frozen=True, eq=False)
class Quantised:
    """A photograph drawn with few colours.

    Args:
        palette: the colours, uint8 of shape (colours, 3), the most used first.
        shares: share of the pixels of each colour, from 0 to 1.
        error: root of the mean squared difference from the photograph, in levels of 0 to 255.
        picture: uint8 of shape (height, width, 3) on rank 0; None on the others.
        nbytes: size of the picture as a PNG on rank 0; 0 on the others (bytes).
        file: the file that rank 0 has written; None on the others, and without `output`.
        fit: the k-means result.
    """

    palette: np.ndarray
    shares: tuple[float, ...]
    error: float
    picture: np.ndarray | None
    nbytes: int
    file: str | None
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
    output: str | os.PathLike | None = None,
    iterations: int = 20,
    seed: int = 1,
    threads: int | None = None,
) -> Quantised:
    """Draw a photograph with few colours, on all ranks; collective.

    Rank 0 reads the photograph and scatters its pixels. All find the colours with `fit`, in
    float64 on the levels 0 to 255, each assigns its own pixels, and rank 0 gathers and writes.
    A rank holds up to 48 bytes for each of its pixels.

    Args:
        photograph: as in `photographs.read`; only rank 0 reads it.
        colours: number of colours, at most 256.
        output: file for the picture, ending in .png; None for none. A JPEG would mix new colours.
        iterations: steps of k-means.
        seed: of k-means++.
        threads: threads of daal4py on each rank; None for its own choice.

    Raises:
        ValueError: on all ranks, if the photograph cannot be read, has fewer than `colours`
            colours or too few pixels for the ranks, or the file cannot be written.
        MissingComponentError: if daal4py is not installed.
    """
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    pixels = np.zeros((0, 0, 3), np.uint8)
    with agree_or_raise(world):
        require_count(colours, "colours")
        then = "The palette of a PNG holds no more."
        require(colours <= MOST, "colours", f"be at most {MOST}", colours, then)
        file = None if output is None else _writable(Path(output))
        if world.rank == 0:
            pixels = photographs.read(photograph)
            there = photographs.colours(pixels)
            must = "be at most the colours of the photograph"
            require(colours <= there, "colours", must, colours, f"It has {there}.")
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
    with agree_or_raise(world):
        if world.rank == 0:
            picture = palette[everyone].reshape(shape)
            contents = photographs.encoded(picture)
            _write(file, contents)
    return Quantised(
        palette=palette,
        shares=tuple(found.counts[one] / count for one in order),
        error=math.sqrt(squares / (3 * count)),
        picture=picture,
        nbytes=len(contents),
        file=str(file) if file is not None and world.rank == 0 else None,
        fit=found,
    )


def check(
    real: str | os.PathLike | None = None, colours: int = 16, iterations: int = 20, **_others: Any
) -> None:
    """Raise what `train` would raise, before ranks start."""
    require_count(colours, "colours")
    then = "The palette of a PNG holds no more."
    require(colours <= MOST, "colours", f"be at most {MOST}", colours, then)
    require_count(iterations, "iterations")
    there = photographs.colours(photographs.read(photographs.china() if real is None else real))
    require(colours <= there, "colours", "be at most the colours of the photograph", colours,
            f"It has {there}.")  # fmt: skip


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
    picture = photographs.china() if real is None else real
    return quantise(picture, colours, None, iterations, seed, threads)


def write(outcomes: Sequence[Quantised], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write `outcome.json` and `quantised.png` of the ranks' outcomes; return their paths."""
    first, folder = outcomes[0], Path(folder)
    record = {
        "palette": first.palette.tolist(),
        "shares": list(first.shares),
        "error": first.error,
        "nbytes": first.nbytes,
        "ranks": first.fit.ranks,
        "points": first.fit.points,
        "iterations": first.fit.iterations,
        "inertia": first.fit.inertia,
        "seconds": first.fit.seconds,
    }
    paths = folder / "outcome.json", folder / "quantised.png"
    paths[0].write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    paths[1].write_bytes(photographs.encoded(first.picture))
    return paths


def _writable(file: Path) -> Path:
    then = "A PNG keeps the colours as they are; a JPEG mixes new ones."
    require(file.suffix.lower() == ".png", "output", "end in .png", str(file), then)
    folder = file.parent
    require(folder.is_dir(), "output", "be in a folder that is there", str(file), "Make it first.")
    return file


def _write(file: Path | None, contents: bytes) -> None:
    if file is None:
        return
    try:
        file.write_bytes(contents)
    except OSError as error:
        raise ValueError(
            f"`output` must be a file that can be written, got {str(file)!r}: {error.strerror}."
        ) from error
