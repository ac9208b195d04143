"""Differences of two recipes over the seeds they share, and what can be said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require
from dlguide.training.experiments.record import Result

CHANCE = 0.05  # share of comparisons without a difference that are called clear all the same
_ROUNDING = 1e-12  # what is left of a standard error of 0, as a fraction of right answers


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
        """Whether the mean is further from 0 than `clear_from` of its standard errors."""
        return self.mean is not None and is_clear(self.mean, self.standard_error, self.pairs)

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
            factor = f"more than {clear_from(self.pairs):.1f} standard errors"
            return f"{self.first} is {points} {told}: clear, {factor}."
        return f"{self.first} is {points} {told}: not to be told from chance."

    def _lost(self) -> str:
        lost = [
            f"{name} diverged with {count} seed{'s' * (count > 1)}"
            for name, count in zip((self.first, self.second), self.diverged, strict=True)
            if count
        ]
        return f"But {' and '.join(lost)}, left out here." if lost else ""


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


def clear_from(pairs: int) -> float:
    """Tell how many standard errors a mean must be away from 0 to be called clear.

    The standard error is itself estimated from the few values, and the fewer they are the more
    often it comes out too small by luck. Student's t allows for that: its two-sided 95 % quantile
    for n - 1 degrees of freedom, which comes down to 1.96 for many values. Seeds whose values are
    normal and have no difference pass it in one of 20 comparisons.

    Args:
        pairs: values that the mean is of, n (count).

    Returns:
        float: the factor; infinite for fewer than two.

    Source:
        Student, Biometrika 6 (1908), 1-25.

    >>> [round(clear_from(pairs), 2) for pairs in (2, 3, 5, 100)]
    [12.71, 4.3, 2.78, 1.98]
    """
    if pairs < 2:
        return math.inf
    from scipy.stats import t

    return float(t.ppf(1 - CHANCE / 2, pairs - 1))


def is_clear(mean: float, standard_error: float | None, pairs: int) -> bool:
    """Tell whether a mean over seeds is further from 0 than chance easily takes it.

    Args:
        mean: of differences.
        standard_error: of the mean; None for one value.
        pairs: values that the mean is of (count).

    Returns:
        bool: never true of one value, nor of two equal ones, which a finite test set may give.

    >>> is_clear(0.03, 0.01, 5), is_clear(0.03, 0.01, 3)
    (True, False)
    """
    if standard_error is None or pairs < 2 or (standard_error < _ROUNDING and pairs < 3):
        return False
    return abs(mean) > clear_from(pairs) * standard_error


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Give the mean of some numbers and its standard error.

    >>> mean_and_error([1.0, 3.0])
    (2.0, 1.0)
    """
    count = len(values)
    mean = float(np.mean(values)) if count else None
    error = float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else None
    return mean, error


def grouped(results: Sequence[Result]) -> list[Result]:
    """Require results that differ in their seed only."""
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
