"""K-means as the command `dlguide usecase kmeans` runs it: a photograph drawn with few colours."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dlcourse.usecases import photographs
from dlcourse.usecases.kmeans.quantising import MOST, Quantised, quantise
from dlguide.errors import require, require_count


def check(
    real: str | os.PathLike | None = None, colours: int = 16, iterations: int = 20, **others: Any
) -> None:
    """Refuse what `train` would refuse, before ranks start.

    Args:
        real: a photograph; None for the one that comes with scikit-learn.
        colours: how many (count).
        iterations: steps of k-means (count).
        others: what only the ranks can judge.

    Raises:
        ValueError: when the photograph is none, or a count is out of range.
        MissingComponentError: when there is no photograph because scikit-learn is missing.
    """
    require_count(colours, "colours")
    then = "The palette of a PNG holds no more."
    require(colours <= MOST, "colours", f"be at most {MOST}", colours, then)
    require_count(iterations, "iterations")
    there = photographs.colours(_photograph(real))
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
    """Find few colours for a photograph, on all ranks; collective.

    It takes seconds, so that there is no checkpoint to go on from and no progress to tell.

    Args:
        real: a photograph; None for the one that comes with scikit-learn.
        seed: of k-means++.
        checkpoint: not looked at.
        report: not looked at.
        colours: how many (count).
        iterations: steps of k-means (count).
        threads: of daal4py on each rank (count); None for its own choice.

    Returns:
        Quantised: colours on all ranks, the picture on rank 0.

    Raises:
        ValueError: on all ranks alike, as `quantise` does.
        MissingComponentError: when there is no daal4py, or no photograph.
    """
    picture = photographs.china() if real is None else real
    return quantise(picture, colours, None, iterations, seed, threads)


def write(outcomes: Sequence[Quantised], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write the picture and the numbers.

    Args:
        outcomes: one for each rank.
        folder: where to; it is there.

    Returns:
        tuple: `outcome.json` and `quantised.png`.
    """
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


def _photograph(real: str | os.PathLike | None) -> Any:
    return photographs.china() if real is None else photographs.read(real)
