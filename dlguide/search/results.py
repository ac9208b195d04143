"""What a search has found: one record per trial, the best of them, a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Trial:
    """One training with one set of parameters.

    Args:
        number: which trial this is (index); a longer training of the same parameters in a later
            rung is another trial.
        parameters: a value for each parameter.
        epochs: length of the training (count).
        rung: which round of successive halving it belongs to (index); 0 elsewhere.
        parent: the trial of the rung before with these parameters (index); None for none.
        score: the last of the history, the less the better; infinity when the trial failed.
        history: the score after each epoch, or the one score there is; () when it failed.
        rank: the rank that trained (index).
        start_s: when it began, since the search did (s).
        end_s: when it ended, since the search did (s).
        error: why it failed, one line; "" when it did not.
        traceback: where it failed; "" when it did not.
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
        """How long it took (s)."""
        return self.end_s - self.start_s

    @property
    def failed(self) -> bool:
        """Whether it gave no score."""
        return bool(self.error)

    def same(self) -> tuple:
        """Return all but rank and times: what must not depend on the number of ranks."""
        shown = tuple(sorted(self.parameters.items()))
        return self.number, shown, self.epochs, self.rung, self.parent, self.score, self.history

    def __str__(self) -> str:
        score = f"{self.score:.4f}" if not self.failed else "failed"
        return f"trial {self.number}: {score} ({parameters_text(self.parameters)})"


@dataclass(frozen=True)
class Found:
    """The trials of a search, in the order of their numbers.

    Args:
        method: the method, in words.
        trials: all of them.
        seconds: time of the whole search (s).
        ranks: how many ranks shared the trials (count).
        seed: of the search.
    """

    method: str
    trials: tuple[Trial, ...]
    seconds: float
    ranks: int
    seed: int

    @property
    def epochs(self) -> int:
        """The budget that was spent: epochs of all trials (count)."""
        return sum(trial.epochs for trial in self.trials)

    @property
    def failed(self) -> tuple[Trial, ...]:
        """The trials that gave no score."""
        return tuple(trial for trial in self.trials if trial.failed)

    def best(self) -> Trial:
        """Return the trial with the least score among the longest trainings.

        After successive halving those of the last rung count: scores of unequal trainings must
        not be compared. Of equal scores the first trial's counts.
        """
        good = [trial for trial in self.trials if not trial.failed]
        if not good:
            raise ValueError(f"no trial of this search gave a score.\n{self}")
        longest = max(trial.epochs for trial in good)
        whole = [trial for trial in good if trial.epochs == longest]
        return min(whole, key=lambda trial: trial.score)

    def same(self) -> list[tuple]:
        """Return what must not depend on the number of ranks."""
        return [trial.same() for trial in self.trials]

    def best_so_far(self, by: str = "epochs") -> tuple[list[float], list[float]]:
        """Follow the best score of all trials that have ended while the budget is spent.

        By epochs the trials count in the order of their numbers, by seconds as they ended.

        Args:
            by: "epochs" or "seconds".

        Returns:
            tuple: what was spent, and the best score by then, for each trial since the first one
            that gave a score.
        """
        spent, least, spots, scores = 0, math.inf, [], []
        by_time = by == "seconds"
        order: Callable[[Trial], float] = lambda one: one.end_s if by_time else one.number  # noqa: E731
        for trial in sorted(self.trials, key=order):
            spent += trial.epochs
            least = min(least, trial.score)
            if math.isfinite(least):
                spots.append(trial.end_s if by_time else spent)
                scores.append(least)
        return spots, scores

    def table(self, rows: int = 10) -> str:
        """Write the best trials as a table, longest trainings first, then what failed.

        Args:
            rows: at most so many (count).

        Returns:
            str: the table.
        """
        names = list(self.trials[0].parameters) if self.trials else []
        order = sorted(self.trials, key=lambda one: (one.failed, -one.epochs, one.score))
        lines = [("trial", "score", "epochs", "rung", "rank", "seconds", *names)]
        lines += [
            (
                str(one.number),
                one.error if one.failed else f"{one.score:.4f}",
                *(str(each) for each in (one.epochs, one.rung, one.rank)),
                f"{one.seconds:.2f}",
                *(value_text(one.parameters[name]) for name in names),
            )
            for one in order[:rows]
        ]
        wide = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        text = "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, wide, strict=True))
            for line in lines
        )
        left = len(order) - rows
        return text + (f"\n... and {left} more" if left > 0 else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record."""
        return asdict(self)

    def __str__(self) -> str:
        good = len(self.trials) - len(self.failed)
        failed = f", {len(self.failed)} failed" if self.failed else ""
        first = f"{self.method}: {len(self.trials)} trials{failed}, {self.epochs} epochs, "
        first += f"{self.seconds:.1f} s on {self.ranks} rank{'s'[: self.ranks != 1]}"
        last = f"best {self.best()}" if good else ""
        errors = [f"trial {each.number} failed: {each.error}" for each in self.failed[:3]]
        more = len(self.failed) - len(errors)
        errors += [f"... and {more} more"] if more else []
        return "\n".join(filter(None, [first, last, *errors]))


def value_text(value: Any) -> str:
    """Write a value with three digits where it is no whole number.

    >>> value_text(0.0123456), value_text(64), value_text("adam")
    ('0.0123', '64', 'adam')
    """
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def parameters_text(parameters: Mapping[str, Any]) -> str:
    """Write the parameters in one line.

    >>> parameters_text({"rate": 0.1, "width": 32})
    'rate 0.1, width 32'
    """
    return ", ".join(f"{name} {value_text(value)}" for name, value in parameters.items())
