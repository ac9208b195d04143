"""Curves: do two trainings run alike once their warmup is over, and does that tell the end?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require
from dlguide.training.experiments.differences import (
    Difference,
    clear_from,
    compare,
    grouped,
)
from dlguide.training.experiments.record import Result


@dataclass(frozen=True)
class Alignment:
    """How far apart the training curves of two recipes run after the warmup.

    first, second (names); curve ("training error" or "training loss"); epochs (the first and the
    last that were compared, from 1); gap (mean distance of the two mean curves); chance (mean
    standard error of their paired difference over seeds, None for fewer than 2); final (the
    difference in test accuracy at the end).
    """

    first: str
    second: str
    curve: str
    epochs: tuple[int, int]
    gap: float
    chance: float | None
    final: Difference

    @property
    def aligned(self) -> bool | None:
        """Whether the gap is no clear one (`clear_from`); None where one seed cannot tell."""
        return None if self.chance is None else self.gap <= self._limit

    @property
    def _limit(self) -> float:
        return clear_from(self.final.pairs) * self.chance

    def __str__(self) -> str:
        begin, end = self.epochs
        gap = (
            f"The {self.curve} of {self.first} and {self.second} lies {self.gap:.3g} apart in "
            f"epochs {begin} to {end}"
        )
        if self.aligned is None:
            return f"{gap}; one seed cannot tell whether that is chance. {self.final}"
        way = "aligned" if self.aligned else "not aligned"
        verdict = {
            (True, False): "The curves foretold it.",
            (False, True): "The curves foretold it.",
            (True, True): "The curves did not foretell it.",
            (False, False): "The curves gave a false alarm.",
        }[self.aligned, self.final.clear]
        factor = clear_from(self.final.pairs)
        told = f"{factor:.1f} standard errors over seeds are {self._limit:.3g}"
        return f"{gap}, and {told}: {way}. {self.final} {verdict}"


def aligned(results: Sequence[Result], baseline: Sequence[Result]) -> Alignment:
    """Measure the gap of training curves after the warmup, and whether it foretells the end.

    Goyal et al. call training curves that match a reliable early sign that the final accuracy
    will match. With c the curve of a seed, and the mean over the n seeds that both came through,

        gap = mean over epochs of |mean over seeds of (c - c of the baseline)|
        chance = mean over epochs of deviation over seeds of (c - c of the baseline) / sqrt(n)

    Epochs that either recipe's warmup touches are left out. The curve is the training error
    where it was counted, the training loss otherwise. The thesis found the sign to fail where the
    batch per worker changes (experiment 7).

    Args:
        results: of one recipe, several seeds.
        baseline: of another one, with the same seeds.

    Returns:
        Alignment: prints as a sentence.

    Raises:
        ValueError: when they share no seed that both came through, differ in their epochs, or
            are all warmup.

    Source:
        Goyal et al., arXiv:1706.02677, section 5.2; the thesis, sections 5.5 to 5.7.
    """
    ones = {one.setting.seed: one for one in grouped(results) if not one.diverged}
    others = {one.setting.seed: one for one in grouped(baseline) if not one.diverged}
    seeds = [seed for seed in ones if seed in others]
    must = "share a seed that both came through"
    require(bool(seeds), "baseline", must, (sorted(ones), sorted(others)))
    settings = (results[0].setting, baseline[0].setting)
    epochs, length = {one.epochs for one in settings}, settings[0].epochs
    require(len(epochs) == 1, "baseline", f"train {length} epochs too", settings[1].epochs)
    first = max(math.ceil(one.warmup_epochs) if one.warmup else 0 for one in settings)
    counted = all(one[seed].train_error for one in (ones, others) for seed in seeds)
    then = "Train longer than the warmup."
    require(first < length, "results", "have a whole epoch after the warmup", first, then)
    name = "train_error" if counted else "loss"
    apart = np.array(
        [np.subtract(getattr(ones[s], name), getattr(others[s], name))[first:] for s in seeds]
    )
    chance = None
    if len(seeds) > 1:
        chance = float(np.mean(np.std(apart, axis=0, ddof=1))) / math.sqrt(len(seeds))
    return Alignment(
        settings[0].name,
        settings[1].name,
        "training error" if counted else "training loss",
        (first + 1, length),
        float(np.mean(np.abs(apart.mean(axis=0)))),
        chance,
        compare(results, baseline),
    )
