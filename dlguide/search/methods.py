"""Which trials to make: a grid, at random, or many short ones of which the best go on.

A method gives its trials in rounds. All trials of a round are known before its first one begins,
and a later round depends on scores of earlier ones alone. So the same seed gives the same trials
on any number of ranks. The price is that ranks wait for each other at the end of each round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require, require_count
from dlguide.search import spaces
from dlguide.search.results import Trial
from dlguide.search.spaces import Space


@dataclass(frozen=True)
class Proposal:
    """A trial that is to be made.

    Args:
        parameters: a value for each parameter.
        epochs: length of the training (count).
        rung: of successive halving (index).
        parent: the trial of the rung before (index); None for none.
    """

    parameters: Mapping[str, Any]
    epochs: int
    rung: int = 0
    parent: int | None = None


# A method takes the trials of the last round and gives the proposals of the next.
Rounds = Generator[Sequence[Proposal], Sequence[Trial], None]


@dataclass(frozen=True)
class Grid:
    """All combinations of equally spaced values.

    Args:
        points: values of each number (count); a `Choice` takes all of its own.
        epochs: length of each training (count).
    """

    points: int
    epochs: int = 1

    def __post_init__(self) -> None:
        require_count(self.points, "points")
        require_count(self.epochs, "epochs")

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Give all trials in one round.

        Args:
            space: for each parameter its kind.
            seed: not used, a grid leaves nothing to chance.

        Yields:
            Sequence: the proposals.
        """
        yield [Proposal(one, self.epochs) for one in spaces.grid(space, self.points)]

    def __str__(self) -> str:
        return f"grid with {self.points} values a number"


@dataclass(frozen=True)
class Random:
    """Points drawn at random, each by itself.

    Args:
        trials: how many (count).
        epochs: length of each training (count).
    """

    trials: int
    epochs: int = 1

    def __post_init__(self) -> None:
        require_count(self.trials, "trials")
        require_count(self.epochs, "epochs")

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Give all trials in one round.

        Args:
            space: for each parameter its kind.
            seed: of the search.

        Yields:
            Sequence: the proposals.
        """
        numbers = range(self.trials)
        yield [Proposal(spaces.draw(space, seed, number), self.epochs) for number in numbers]

    def __str__(self) -> str:
        return "random"


@dataclass(frozen=True)
class Rung:
    """One round of successive halving.

    Args:
        trials: how many train (count).
        epochs: how long each of them trains (count).
    """

    trials: int
    epochs: int

    @property
    def spent(self) -> int:
        """The budget of this rung (epochs)."""
        return self.trials * self.epochs


@dataclass(frozen=True)
class Halving:
    """Many short trainings; the best of them again and longer, until few are left.

    Rung k has floor(n / f^k) trials of r f^k epochs, for k = 0 to K - 1, each from new weights.
    Where f^(K-1) divides n every rung costs n r epochs, and all of it K n r. Leaves out training
    on from the weights of the rung before, and Hyperband's several starts.

    Args:
        trials: n, on the first rung (count).
        epochs: r, of each training on the first rung (count).
        factor: f, one of so many goes on, and trains so many times as long.
        rungs: K (count); None for as many as leave one trial or more.

    Raises:
        ValueError: when an argument is out of range, or the last rung would have no trial.

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

    @property
    def budget(self) -> int:
        """The epochs of all rungs, when no trial fails (count)."""
        return sum(rung.spent for rung in self.plan())

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Give one rung after the other; what failed does not go on.

        Args:
            space: for each parameter its kind.
            seed: of the search.

        Yields:
            Sequence: the proposals of a rung.
        """
        first, *others = self.plan()
        ended = yield [
            Proposal(spaces.draw(space, seed, number), first.epochs)
            for number in range(first.trials)
        ]
        for number, rung in enumerate(others, start=1):
            best = survivors(ended, rung.trials)
            if not best:
                return
            ended = yield [
                Proposal(one.parameters, rung.epochs, number, one.number) for one in best
            ]

    def __str__(self) -> str:
        return f"halving by {self.factor}"


def survivors(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Return the best trials that gave a score, the best first; of equal ones the first."""
    good = [trial for trial in trials if not trial.failed]
    return sorted(good, key=lambda trial: (trial.score, trial.number))[:count]
