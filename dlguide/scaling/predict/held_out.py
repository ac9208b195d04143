"""Published throughputs as series over workers, and predictions held against their large counts."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dlguide import published
from dlguide.errors import require_count
from dlguide.scaling.predict.fitting import fit

_TENSORFLOW = "throughput_tensorflow"
_VERSION = re.compile(r" (v?\d[\d.]*|\(.*?\))")


@dataclass(frozen=True)
class Held:
    """A prediction beside the measurement that it has not seen.

    Args:
        workers: number of workers (count).
        predicted: throughput, the median of what is possible (images/s).
        low: one in twenty measurements is expected to be lower (images/s).
        high: one in twenty is expected to be higher (images/s).
        measured: throughput (images/s).
    """

    workers: int
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction is above the measurement (fraction of the measurement)."""
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low <= self.measured <= self.high


def published_series(
    least: int = 4, folder: str | os.PathLike | None = None
) -> dict[str, dict[int, float]]:
    """Group the published throughputs into series: the same training on more and more workers.

    A single figure that the guide gives in its text, for synthetic data, is no series.

    Args:
        least: numbers of workers that a series has at least (count).
        folder: the data folder that holds `published/`; None looks for it.

    Returns:
        dict: by a name such as "thesis: PyTorch, batch 128" the throughput (images/s) by number
        of workers (count).
    """
    require_count(least, "least")
    found: dict[str, dict[int, float]] = {}
    for table in ("throughput", _TENSORFLOW):
        for row in published.load(table, folder):
            if row["table"] != "6.3.4 text":
                found.setdefault(_name(row, table), {})[row["workers"]] = row["images_per_s"]
    return {name: points for name, points in found.items() if len(points) >= least}


def held_out(
    points: Mapping[int, float],
    upto: int = 8,
    without: Collection[int] = (),
    sets: int = 8000,
) -> tuple[Held, ...]:
    """Fit the small numbers of workers of a series and predict its large ones.

    Args:
        points: throughput (images/s) by number of workers (count).
        upto: the largest number of workers that the fit sees (count).
        without: numbers of workers to leave out of the fit.
        sets: of coefficients, as for `predict.fit` (count).

    Returns:
        tuple: for each number above `upto` what was predicted beside what was measured; empty
        where there is none.

    Raises:
        ValueError: when the fit would see fewer than two numbers of workers.
    """
    require_count(upto, "upto")
    many = sorted(p for p in points if p > upto)
    if not many:
        return ()
    few = {p: rate for p, rate in points.items() if p <= upto and p not in without}
    return tuple(
        Held(said.workers, said.images_per_s, said.low, said.high, float(points[said.workers]))
        for said in fit(few, sets).predict(many)
    )


def _name(row: dict, table: str) -> str:
    """Say in words whose training it is: source or machine, framework, net, batch, data."""
    place = row["table"] if table == _TENSORFLOW else row["study"]
    kind = [_VERSION.sub("", row["framework"])]
    if table == _TENSORFLOW:
        kind = [row["model"], row["data"]]
    if row["batch_per_worker"] is not None:
        kind.append(f"batch {row['batch_per_worker']}")
    return f"{place}: {', '.join(kind)}"
