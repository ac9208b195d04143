"""Tables over seeds: means with their errors, throughput, seconds until an accuracy is held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlguide.errors import require, require_known
from dlguide.training.experiments.differences import grouped, mean_and_error
from dlguide.training.experiments.factors import changeable
from dlguide.training.experiments.record import Result, require_fraction


@dataclass(frozen=True)
class Row:
    """Trainings that differ in their seed only.

    name; seeds, diverged (count); accuracy (mean on the test set after the last epoch, of those
    that did not diverge; None if all did), standard_error (of this mean; None for fewer than 2),
    deviation (standard deviation over seeds), lowest, highest (of any seed); images_per_s
    (median, all ranks); held (how many held the accuracy asked for, count), seconds (of
    training until they did, median over all seeds; None where half or more never did, or
    nobody asked).
    """

    name: str
    seeds: int
    diverged: int
    accuracy: float | None
    standard_error: float | None
    deviation: float | None
    lowest: float | None
    highest: float | None
    images_per_s: float | None
    held: int
    seconds: float | None


@dataclass(frozen=True)
class Table:
    """Rows of an experiment, and the accuracy whose seconds they tell; None for none.

    Prints as text; `table["baseline"]` and `table[0]` are rows.
    """

    rows: tuple[Row, ...]
    held: float | None = None

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int | str) -> Row:
        if isinstance(place, str):
            names = [row.name for row in self.rows]
            place = names.index(require_known(place, names, "name"))
        return self.rows[place]

    def __str__(self) -> str:
        head = ["", "seeds", "test accuracy (%)", "lowest to highest", "images/s"]
        if self.held is not None:
            head.append(f"s until {100 * self.held:g} % held")
        cells = [head, *(_cells(row, self.held is not None) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for line in cells:
            padded = [line[0].ljust(widths[0])]
            padded += [cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True)]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)


def table(
    results: Sequence[Result],
    by: str | None = None,
    accuracy: float | None = None,
) -> Table:
    """Put results side by side, one row for trainings that differ in their seed only.

    Args:
        results: what `run` returned.
        by: a field: only the results that differ from the first one in this field alone, named
            by its value; None for all of them by their names.
        accuracy: the test accuracy whose seconds are asked for; None for none.

    Returns:
        Table: rows in the order in which they come first.

    Raises:
        ValueError: when results of one row differ in more than their seed.
    """
    if accuracy is not None:
        require_fraction(accuracy, "accuracy")
    named = groups(results, by)
    return Table(tuple(_row(name, each, accuracy) for name, each in named.items()), accuracy)


def groups(results: Sequence[Result], by: str | None = None) -> dict[str, list[Result]]:
    """Sort results into those that differ in their seed only."""
    require(bool(results), "results", "hold at least one Result", [])
    found: dict[str, list[Result]] = {}
    if by is None:
        for one in results:
            found.setdefault(one.setting.name, []).append(one)
        return {name: grouped(each) for name, each in found.items()}
    require_known(by, changeable(), "by")
    first, kept = results[0].setting, set()
    for one in results:
        value, seed = getattr(one.setting, by), one.setting.seed
        # with the first one's value of this field, it must be the first one
        try:
            same = replace(one.setting, **{by: getattr(first, by)}, seed=first.seed)
        except ValueError:  # its other fields do not go with that value: another recipe
            continue
        # the rule is no part of the identity where the global batch is the base batch
        alike = same.rule == first.rule and same.identity() == first.identity()
        if alike and (value, seed) not in kept:
            kept.add((value, seed))
            found.setdefault(f"{by} {value}", []).append(one)
    return {name: grouped(each) for name, each in found.items()}


def _row(name: str, results: list[Result], accuracy: float | None) -> Row:
    there = [one for one in results if not one.diverged]
    values = [one.accuracy for one in there]
    mean, error = mean_and_error(values)
    held = [None if accuracy is None else one.held(accuracy) for one in results]
    reached = [one.seconds for one in held if one is not None]
    never = [math.inf] * (len(results) - len(reached))
    median = float(np.median(reached + never))
    return Row(
        name=name,
        seeds=len(results),
        diverged=len(results) - len(there),
        accuracy=mean,
        standard_error=error,
        deviation=float(np.std(values, ddof=1)) if len(values) > 1 else None,
        lowest=min(values, default=None),
        highest=max(values, default=None),
        images_per_s=float(np.median([one.images_per_s for one in there])) if there else None,
        held=len(reached),
        seconds=median if math.isfinite(median) else None,
    )


def _cells(row: Row, asked: bool) -> list[str]:
    accuracy, between, speed = "all diverged", "", ""
    if row.accuracy is not None:
        error = "" if row.standard_error is None else f" ± {100 * row.standard_error:.2f}"
        accuracy = f"{100 * row.accuracy:.2f}{error}"
        between = f"{100 * row.lowest:.2f} to {100 * row.highest:.2f}"
        speed = f"{row.images_per_s:.0f}"
        if row.diverged:
            accuracy += f" ({row.diverged} diverged)"
    seconds = "never" if row.seconds is None else f"{row.seconds:.2f}"
    if asked and 0 < row.held < row.seeds:
        seconds += f" ({row.held} of {row.seeds})"
    return [row.name, str(row.seeds), accuracy, between, speed] + [seconds] * asked
