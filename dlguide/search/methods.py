"""Methods of search: grid, random, successive halving; proposals and trials.

A method yields its trials in rounds. All trials of a round are known before its first one begins,
and a later round depends only on scores of earlier ones. So the same seed gives the same trials on
any number of ranks. The price is that ranks wait for each other at the end of each round.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require, require_count
from dlguide.search import spaces
from dlguide.search.spaces import Space

__all__ = ["Grid", "Halving", "Proposal", "Random", "Rounds", "Rung", "Trial", "survivors"]


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

    Args:
        number: index of the trial; a longer training of the same parameters in a later rung is
            another trial.
        parameters: a value for each parameter.
        epochs: length of the training.
        rung: round of successive halving (index); 0 for other methods.
        parent: the trial of the previous rung with these parameters (index), or None.
        score: the last of the history, smaller is better; infinity if the trial failed.
        history: the score after each epoch, or the only score; () if the trial failed.
        rank: the rank that trained.
        start_s: start, counted from the start of the search (s).
        end_s: end, likewise (s).
        error: the reason of a failure, one line; "" if there was none.
        traceback: of a failure; "" if there was none.
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


# A method receives the trials of the last round and yields the proposals of the next.
Rounds = Generator[Sequence[Proposal], Sequence[Trial], None]


@dataclass(frozen=True)
class Grid:
    """All combinations of `points` equally spaced values of each number and all of each `Choice`.

    Args:
        points: values of each number.
        epochs: length of each training.
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
    """Independent random points.

    Args:
        trials: number of trials.
        epochs: length of each training.
    """

    trials: int
    epochs: int = 1

    def __post_init__(self) -> None:
        require_count(self.trials, "trials")
        require_count(self.epochs, "epochs")

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield all trials in one round."""
        numbers = range(self.trials)
        yield [Proposal(spaces.draw(space, seed, number), self.epochs) for number in numbers]

    def __str__(self) -> str:
        return "random"


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

    @property
    def budget(self) -> int:
        """The epochs of all rungs, if no trial fails."""
        return sum(rung.spent for rung in self.plan())

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield one rung after the other; failed trials do not continue."""
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
    """Return the best trials with a score, the best first; ties keep the order of numbers."""
    good = [trial for trial in trials if not trial.failed]
    return sorted(good, key=lambda trial: (trial.score, trial.number))[:count]


def value_text(value: Any) -> str:
    """Format a value, floats with three digits.

    >>> value_text(0.0123456), value_text(64), value_text("adam")
    ('0.0123', '64', 'adam')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Format the parameters in one line.

    >>> parameters_text({"rate": 0.1, "width": 32})
    'rate 0.1, width 32'
    """
    return ", ".join(f"{name} {value_text(value)}" for name, value in parameters.items())
