"""Tree-structured Parzen estimators (TPE): search that learns from its trials.

Split the trials so far into the good and the others. Estimate the density of the good ones, l(x),
and of the others, g(x), in one dimension each; then try the x with the largest l(x) / g(x). Under
the model of the paper this x has the largest expected improvement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlguide.errors import require, require_count
from dlguide.search import spaces
from dlguide.search.methods import Proposal, Rounds, Trial
from dlguide.search.spaces import Choice, Kind, Space


@dataclass(frozen=True)
class TPE:
    """Start at random, then draw where good trials are dense and the others are not.

    Each parameter is treated alone (see `suggest`), so interactions are not seen. `together`
    trials are proposed at a time from the same scores, so that ranks can share them; the more,
    the fewer scores each proposal uses. More candidates are greedier.

    Args:
        trials: number of trials in all.
        epochs: length of each training.
        first: number of random trials; None for a quarter, at least 4.
        together: trials of each later round.
        good: share of the trials that count as good.
        candidates: points that are compared for each number; HyperOpt compares 24.

    Raises:
        ValueError: if an argument is out of range.

    Source:
        Bergstra, Bardenet, Bengio, Kegl: Algorithms for Hyper-Parameter Optimization, NIPS 2011,
        section 4, where the good share is called gamma.
    """

    trials: int
    epochs: int = 1
    first: int | None = None
    together: int = 4
    good: float = 0.25
    candidates: int = 4

    def __post_init__(self) -> None:
        for name in ("trials", "epochs", "together", "candidates"):
            require_count(getattr(self, name), name)
        if self.first is not None:
            require_count(self.first, "first")
        require(0 < self.good < 1, "good", "be a share between 0 and 1", self.good)

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield the random trials, then `together` at a time."""
        begin = min(self.trials, self.first or max(4, self.trials // 4))
        known = list(
            (yield [Proposal(spaces.draw(space, seed, one), self.epochs) for one in range(begin)])
        )
        while len(known) < self.trials:
            numbers = range(len(known), min(self.trials, len(known) + self.together))
            known += yield [
                Proposal(self.suggest(space, known, seed, number), self.epochs)
                for number in numbers
            ]

    def suggest(
        self, space: Space, known: Sequence[Trial], seed: int, number: int
    ) -> dict[str, Any]:
        """Propose the parameters of one trial from the scores so far.

        For each number: draw candidates from l, and take the one with the largest l / g. For a
        `Choice` one draw from l decides. The good are ceil(good * n) of n trials; failed trials
        are among the others.
        """
        random = np.random.default_rng([seed, number, 1])
        order = sorted(known, key=lambda trial: (trial.failed, trial.score, trial.number))
        count = math.ceil(self.good * len(order))
        found = {}
        for name, kind in space.items():
            good, others = (
                estimator(kind, [kind.place(one.parameters[name]) for one in part])
                for part in (order[:count], order[count:])
            )
            # Among few values the same one would have the best ratio indefinitely.
            points = 1 if isinstance(kind, Choice) else self.candidates
            places = good.draw(random, points)
            gain = good.density(places) / others.density(places)
            found[name] = kind.at(float(places[np.argmax(gain)]))
        return found

    def __str__(self) -> str:
        return "TPE"


@dataclass(frozen=True)
class Parzen:
    """A density on [0, 1]: a normal density around each known place, and a uniform one.

    With n places x_i, widths s_i, and N truncated to [0, 1]:

        p(x) = (1 + sum_i N(x; x_i, s_i)) / (n + 1)

    s_i is the larger distance to a neighbour (0 and 1 are neighbours of the outermost places),
    at least 1 / min(100, n + 2), at most 1: wide where little is known. The uniform part keeps
    every place possible.
    """

    places: np.ndarray
    widths: np.ndarray

    def density(self, at: np.ndarray) -> np.ndarray:
        """Return the density."""
        apart = (np.asarray(at, float)[:, None] - self.places) / self.widths
        bells = np.exp(-0.5 * apart**2) / (math.sqrt(2 * math.pi) * self.widths * self._inside())
        return (1 + bells.sum(axis=1)) / (len(self.places) + 1)

    def draw(self, random: np.random.Generator, points: int) -> np.ndarray:
        """Draw places from the density."""
        drawn = random.random(points)  # those of the uniform part stay
        which = random.integers(len(self.places) + 1, size=points) - 1
        for point in np.flatnonzero(which >= 0):
            bell = which[point]
            place = -1.0
            while not 0 <= place <= 1:  # at least a third of each bell lies inside
                place = random.normal(self.places[bell], self.widths[bell])
            drawn[point] = place
        return drawn

    def _inside(self) -> np.ndarray:
        """Return the share of each normal density that is in [0, 1]."""
        from scipy.special import ndtr

        low, high = ((edge - self.places) / self.widths for edge in (0.0, 1.0))
        return ndtr(high) - ndtr(low)


@dataclass(frozen=True)
class ValueShares:
    """Shares of k values without order as a density on [0, 1]: (c + 1) / (n + k) for c of n."""

    shares: np.ndarray

    def density(self, at: np.ndarray) -> np.ndarray:
        """Return the density."""
        values = len(self.shares)
        return values * self.shares[np.minimum(values - 1, (np.asarray(at) * values).astype(int))]

    def draw(self, random: np.random.Generator, points: int) -> np.ndarray:
        """Draw places from the density: the middles of the values' parts."""
        values = len(self.shares)
        return (random.choice(values, points, p=self.shares) + 0.5) / values


def estimator(kind: Kind, places: Sequence[float]) -> Parzen | ValueShares:
    """Estimate the density of a parameter's places."""
    if isinstance(kind, Choice):
        values = len(kind.values)
        seen = np.bincount([int(place * values) for place in places], minlength=values)
        return ValueShares((seen + 1) / (len(places) + values))
    ordered = np.sort(np.asarray(places, float))
    gaps = np.diff(ordered, prepend=0.0, append=1.0)
    least = 1 / min(100, len(ordered) + 2)
    return Parzen(ordered, np.clip(np.maximum(gaps[:-1], gaps[1:]), least, 1.0))
