"""Methods of search: grid, random, successive halving, tree-structured Parzen estimators (TPE).

A method yields its trials in rounds. All trials of a round are known before its first one begins,
and a later round depends only on scores of earlier ones. So the same seed gives the same trials on
any number of ranks. The price is that ranks wait for each other at the end of each round.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlcourse.search import spaces
from dlcourse.search.spaces import Choice, Kind, Space
from dlguide.errors import require, require_count


@dataclass(frozen=True)
class Proposal:
    """A trial to make; `parent` is the trial of the previous rung, if any (index)."""

    parameters: Mapping[str, Any]
    epochs: int
    rung: int = 0
    parent: int | None = None


@dataclass(frozen=True)
class Trial:
    """One training with one set of parameters.

    A longer training of the same parameters in a later rung of successive halving is another
    trial, whose `parent` is the one of the previous rung. `score` is the last of the history,
    smaller is better, infinity if the trial failed; `history` has one after each epoch, or the
    only one. Times count from the start of the search (s); `error` is one line, "" without one.
    """

    number: int
    parameters: Mapping[str, Any]
    epochs: int
    rung: int
    parent: int | None
    score: float
    history: tuple[float, ...]
    rank: int
    start_s: float
    end_s: float
    error: str = ""
    traceback: str = ""

    @property
    def seconds(self) -> float:
        """Duration (s)."""
        return self.end_s - self.start_s

    @property
    def failed(self) -> bool:
        """Whether it returned no score."""
        return bool(self.error)

    def same(self) -> tuple:
        """Return everything except rank and times: it must not depend on the number of ranks."""
        shown = tuple(sorted(self.parameters.items()))
        return self.number, shown, self.epochs, self.rung, self.parent, self.score, self.history

    def __str__(self) -> str:
        score = f"{self.score:.4f}" if not self.failed else "failed"
        return f"trial {self.number}: {score} ({parameters_text(self.parameters)})"


def value_text(value: Any) -> str:
    """Format a value, floats with three digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Format the parameters in one line.

    >>> parameters_text({"rate": 0.0123456, "width": 32})
    'rate 0.0123, width 32'
    """
    return ", ".join(f"{name} {value_text(value)}" for name, value in parameters.items())


# A method receives the trials of the last round and yields the proposals of the next.
Rounds = Generator[Sequence[Proposal], Sequence[Trial], None]


@dataclass(frozen=True)
class Grid:
    """All combinations of `points` equally spaced values of each number and all of each `Choice`.

    Each training has `epochs` epochs.
    """

    points: int
    epochs: int = 1

    def __post_init__(self) -> None:
        require_count(self.points, "points")
        require_count(self.epochs, "epochs")

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield all trials in one round."""
        yield [Proposal(one, self.epochs) for one in spaces.grid(space, self.points)]

    def __str__(self) -> str:
        return f"grid with {self.points} values a number"


@dataclass(frozen=True)
class Random:
    """Independent random points, each of them trained for `epochs` epochs."""

    trials: int
    epochs: int = 1

    def __post_init__(self) -> None:
        require_count(self.trials, "trials")
        require_count(self.epochs, "epochs")

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield all trials in one round."""
        yield _drawn(space, seed, self.trials, self.epochs)

    def __str__(self) -> str:
        return "random"


def _drawn(space: Space, seed: int, count: int, epochs: int) -> list[Proposal]:
    return [Proposal(spaces.draw(space, seed, number), epochs) for number in range(count)]


@dataclass(frozen=True)
class Rung:
    """One round of successive halving: `trials` trainings of `epochs` each."""

    trials: int
    epochs: int

    @property
    def spent(self) -> int:
        """The budget of this rung (epochs)."""
        return self.trials * self.epochs


@dataclass(frozen=True)
class Halving:
    """Successive halving: many short trainings, the best repeated for longer, until few are left.

    Rung k has floor(n / f^k) trials of r f^k epochs, for k = 0 to K - 1, each from new weights.
    If f^(K-1) divides n, every rung costs n r epochs, and all of them K n r. Leaves out continuing
    from the weights of the previous rung, and Hyperband's several brackets.

    Args:
        trials: n, on the first rung.
        epochs: r, of each training on the first rung.
        factor: f; one in f trials continues, and trains f times as long.
        rungs: K; None for as many as leave at least one trial.

    Raises:
        ValueError: if an argument is out of range, or the last rung would have no trial.

    Source:
        Jamieson and Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter
        Optimization, AISTATS 2016, arXiv:1502.07943; Li et al., Hyperband, JMLR 18 (2018) 185.
    """

    trials: int
    epochs: int = 1
    factor: int = 3
    rungs: int | None = None

    def __post_init__(self) -> None:
        require_count(self.trials, "trials")
        require_count(self.epochs, "epochs")
        require_count(self.factor, "factor", least=2)
        if self.rungs is not None:
            require_count(self.rungs, "rungs")
            needed = self.factor ** (self.rungs - 1)
            must = f"be at least {needed}, to leave one after {self.rungs} rungs"
            then = f"Or take at most {self._most()} rungs."
            require(self.trials >= needed, "trials", must, self.trials, then)

    def _most(self) -> int:
        rungs = 1
        while self.trials >= self.factor**rungs:
            rungs += 1
        return rungs

    def plan(self) -> tuple[Rung, ...]:
        """Return the rungs; their costs add up to the budget.

        >>> [(rung.trials, rung.epochs) for rung in Halving(27, 1, 3).plan()]
        [(27, 1), (9, 3), (3, 9), (1, 27)]
        """
        return tuple(
            Rung(self.trials // self.factor**rung, self.epochs * self.factor**rung)
            for rung in range(self.rungs or self._most())
        )

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield one rung after the other; failed trials do not continue."""
        first, *others = self.plan()
        ended = yield _drawn(space, seed, first.trials, first.epochs)
        for number, rung in enumerate(others, start=1):
            good = [trial for trial in ended if not trial.failed]
            good.sort(key=lambda trial: (trial.score, trial.number))
            if not good:
                return
            ended = yield [
                Proposal(one.parameters, rung.epochs, number, one.number)
                for one in good[: rung.trials]
            ]

    def __str__(self) -> str:
        return f"halving by {self.factor}"


TOGETHER = 4  # trials that TPE proposes from the same scores, so that ranks can share them
GOOD = 0.25  # share of the trials that count as good, called gamma in the paper
CANDIDATES = 4  # points that are compared for each number: more are greedier; HyperOpt takes 24


@dataclass(frozen=True)
class TPE:
    """Start at random, then draw where good trials are dense and the others are not.

    Split the trials so far into the good and the others. Estimate the density of the good ones,
    l(x), and of the others, g(x), in one dimension each; then try the x with the largest l(x) /
    g(x). Under the model of the paper this x has the largest expected improvement. Each parameter
    is treated alone, so interactions are not seen.

    Args:
        trials: number of trials in all.
        epochs: length of each training.
        first: number of random trials; None for a quarter, at least 4.

    Raises:
        ValueError: if an argument is out of range.

    Source:
        Bergstra, Bardenet, Bengio, Kegl: Algorithms for Hyper-Parameter Optimization, NIPS 2011,
        section 4.
    """

    trials: int
    epochs: int = 1
    first: int | None = None

    def __post_init__(self) -> None:
        require_count(self.trials, "trials")
        require_count(self.epochs, "epochs")
        if self.first is not None:
            require_count(self.first, "first")

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield the random trials, then `TOGETHER` at a time."""
        begin = min(self.trials, self.first or max(4, self.trials // 4))
        known = list((yield _drawn(space, seed, begin, self.epochs)))
        while len(known) < self.trials:
            numbers = range(len(known), min(self.trials, len(known) + TOGETHER))
            known += yield [
                Proposal(suggest(space, known, seed, number), self.epochs) for number in numbers
            ]

    def __str__(self) -> str:
        return "TPE"


def suggest(space: Space, known: Sequence[Trial], seed: int, number: int) -> dict[str, Any]:
    """Propose the parameters of one trial from the scores so far.

    For each number: draw candidates from l, and take the one with the largest l / g. For a
    `Choice` one draw from l decides. Failed trials are among the others.
    """
    random = np.random.default_rng([seed, number, 1])
    order = sorted(known, key=lambda trial: (trial.failed, trial.score, trial.number))
    count = math.ceil(GOOD * len(order))
    found = {}
    for name, kind in space.items():
        good, others = (
            estimator(kind, [kind.place(one.parameters[name]) for one in part])
            for part in (order[:count], order[count:])
        )
        # Among few values the same one would have the best ratio indefinitely.
        places = good.draw(random, 1 if isinstance(kind, Choice) else CANDIDATES)
        gain = good.density(places) / others.density(places)
        found[name] = kind.at(float(places[np.argmax(gain)]))
    return found


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
        from scipy.special import ndtr

        low, high = ((edge - self.places) / self.widths for edge in (0.0, 1.0))
        inside = ndtr(high) - ndtr(low)  # the share of each normal density
        apart = (np.asarray(at, float)[:, None] - self.places) / self.widths
        bells = np.exp(-0.5 * apart**2) / (math.sqrt(2 * math.pi) * self.widths * inside)
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
