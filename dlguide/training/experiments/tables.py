"""Tables over seeds: means with their errors, seconds until an accuracy, differences of two."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dlguide.checks import require, require_known
from dlguide.training.experiments.factors import changeable
from dlguide.training.experiments.record import Result, require_fraction

CLEAR = 2.0  # standard errors that a difference must exceed to be called one


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


@dataclass(frozen=True)
class Difference:
    """The difference in accuracy of two recipes over the seeds that both were trained with.

    first, second (names); pairs (seeds that count, count); mean (first - second, fraction);
    standard_error (of the mean; None for fewer than 2 pairs); diverged (of the first, of the
    second, count: their pairs do not count).
    """

    first: str
    second: str
    pairs: int
    mean: float | None
    standard_error: float | None
    diverged: tuple[int, int]

    @property
    def clear(self) -> bool:
        """Whether the mean is more than two of its standard errors away from 0."""
        if self.mean is None or self.standard_error is None:
            return False
        return abs(self.mean) > CLEAR * self.standard_error

    def __str__(self) -> str:
        return " ".join(filter(None, [self._means(), self._lost()]))

    def _means(self) -> str:
        if self.mean is None:
            return f"{self.first} and {self.second} have no seed that both came through."
        way = "above" if self.mean > 0 else "below"
        points = f"{100 * abs(self.mean):.2f} points {way} {self.second}"
        if self.standard_error is None:
            return f"{self.first} is {points} with one seed, which says nothing about chance."
        told = f"(standard error {100 * self.standard_error:.2f}, {self.pairs} pairs of seeds)"
        if self.clear:
            return f"{self.first} is {points} {told}: clear, more than two standard errors."
        return f"{self.first} is {points} {told}: not to be told from chance."

    def _lost(self) -> str:
        lost = [
            f"{name} diverged with {count} seed{'s' * (count > 1)}"
            for name, count in zip((self.first, self.second), self.diverged, strict=True)
            if count
        ]
        return f"But {' and '.join(lost)}, left out here." if lost else ""


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
    groups = {name: grouped(each) for name, each in _groups(results, by).items()}
    return Table(tuple(_row(name, each, accuracy) for name, each in groups.items()), accuracy)


def compare(first: Sequence[Result], second: Sequence[Result]) -> Difference:
    """Tell whether one recipe is better than another one, or only luckier.

    Both are trained with the same seeds, and each seed gives one difference d of n:

        mean = sum(d) / n,  standard error = sqrt(sum((d - mean)^2) / (n - 1) / n)

    So what a seed does to both of them cancels out. A pair of which one diverged has no
    difference: it is left out and counted.

    Args:
        first: Results of one name.
        second: Results of another name.

    Returns:
        Difference: prints as a sentence.

    Raises:
        ValueError: when one of them holds several recipes, or they share no seed.

    >>> str(Difference("naive", "baseline", 5, -0.031, 0.0022, (0, 0)))[:40]
    'naive is 3.10 points below baseline (sta'
    """
    ones = {one.setting.seed: one for one in grouped(first)}
    others = {one.setting.seed: one for one in grouped(second)}
    both = [seed for seed in ones if seed in others]
    then = "Train both with the same seeds."
    require(bool(both), "second", f"share a seed with {sorted(ones)}", sorted(others), then)
    apart = np.array(
        [
            ones[seed].accuracy - others[seed].accuracy
            for seed in both
            if not ones[seed].diverged and not others[seed].diverged
        ]
    )
    mean, error = mean_and_error(apart)
    lost = tuple(sum(each[seed].diverged for seed in both) for each in (ones, others))
    names = (first[0].setting.name, second[0].setting.name)
    return Difference(*names, len(apart), mean, error, lost)


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Give the mean of some numbers and its standard error.

    Args:
        values: one for each seed.

    Returns:
        tuple: the mean, None for no numbers; deviation / sqrt(n), None for fewer than 2.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    count = len(values)
    mean = float(np.mean(values)) if count else None
    error = float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else None
    return mean, error


def grouped(results: Sequence[Result]) -> list[Result]:
    """Require results that differ in their seed only.

    Args:
        results: of one recipe.

    Returns:
        list: the same.

    Raises:
        ValueError: when there are none, or they differ in anything else, or a seed comes twice.
    """
    results = list(results)
    require(bool(results), "results", "hold at least one Result", results)
    first = results[0].setting.identity()
    for one in results:
        other = one.setting.identity()
        odd = [name for name in first if name != "seed" and first[name] != other[name]]
        must = f"differ in their seed only under the name {results[0].setting.name!r}"
        require(not odd, "results", must, f"other values of {', '.join(odd)}")
    seeds = [one.setting.seed for one in results]
    require(len(set(seeds)) == len(seeds), "results", "have each seed once", seeds)
    return results


def _groups(results: Sequence[Result], by: str | None) -> dict[str, list[Result]]:
    require(bool(results), "results", "hold at least one Result", [])
    groups: dict[str, list[Result]] = {}
    if by is None:
        for one in results:
            groups.setdefault(one.setting.name, []).append(one)
        return groups
    require_known(by, changeable(), "by")
    first = results[0].setting
    kept: dict[tuple[str, int], Result] = {}
    for one in results:
        value = getattr(one.setting, by)
        # with the first one's value of this field, it must be the first one
        same = replace(one.setting, **{by: getattr(first, by)}, seed=first.seed)
        if same.identity() == first.identity():
            kept.setdefault((f"{by} {value}", one.setting.seed), one)
    for (name, _seed), one in kept.items():
        groups.setdefault(name, []).append(one)
    return groups


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
