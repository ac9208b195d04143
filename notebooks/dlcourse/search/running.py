"""Run a search: each trial trains on one rank, a free rank takes the next trial; the result."""

from __future__ import annotations

import inspect
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Protocol

import numpy as np

from dlcourse.search import spaces
from dlcourse.search.methods import Proposal, Rounds, Trial, parameters_text, value_text
from dlcourse.search.spaces import Space
from dlguide.cluster import Cluster, RankError
from dlguide.cluster.tasks import TaskResult, checked_ranks, do, payload
from dlguide.errors import require, require_count

DRAW_S = 0.1  # between two updates of the progress line
LINE_S = 5.0  # between two lines in a file or a pipe

Objective = Callable[[Mapping[str, Any], int, int], Any]


class Method(Protocol):
    """A source of trials in rounds: `Grid`, `Random`, `Halving`, `TPE`, or your own."""

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Yield the proposals of each round; receives the trials of the previous one."""


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search in the order of their numbers, and its time on so many ranks (s)."""

    method: str
    trials: tuple[Trial, ...]
    seconds: float
    ranks: int

    @property
    def epochs(self) -> int:
        """The budget spent: epochs of all trials."""
        return sum(trial.epochs for trial in self.trials)

    @property
    def failed(self) -> tuple[Trial, ...]:
        """The trials without a score."""
        return tuple(trial for trial in self.trials if trial.failed)

    def best(self) -> Trial:
        """Return the trial with the smallest score among the longest trainings.

        After successive halving these are the trials of the last rung: scores of trainings of
        different length must not be compared. Of equal scores the first counts.
        """
        good = [trial for trial in self.trials if not trial.failed]
        if not good:
            raise ValueError(f"no trial of this search gave a score.\n{self}")
        longest = max(trial.epochs for trial in good)
        whole = [trial for trial in good if trial.epochs == longest]
        return min(whole, key=lambda trial: trial.score)

    def same(self) -> list[tuple]:
        """Return everything that must not depend on the number of ranks."""
        return [trial.same() for trial in self.trials]

    def table(self, rows: int = 10) -> str:
        """Return the best trials as a table, longest trainings first, failed ones last."""
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
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        text = "\n".join(
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        )
        left = len(order) - rows
        return text + (f"\n... and {left} more" if left > 0 else "")

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


def run(
    objective: Objective,
    space: Space,
    method: Method,
    cluster: Cluster | None = None,
    *,
    seed: int = 0,
    ranks: Sequence[int] | None = None,
    static: bool = False,
    show: bool = True,
) -> SearchResult:
    """Return the trials of a search for the parameters with the smallest score.

    The trials are independent trainings, each on one rank; a rank takes the next trial as soon as
    it is free. The same seed gives the same trials on any number of ranks. A trial whose objective
    raises, or returns no finite number, has failed: it counts as the worst, and its error is in
    the result.

    Args:
        objective: called as objective(parameters, epochs, seed) with a dictionary, the length of
            the training and the seed of the search; returns the score to minimise, or the list of
            the scores after each epoch. It is sent to the ranks with the data it uses.
        space: for each parameter its kind, see `spaces`.
        method: which trials to make.
        cluster: the ranks; None for this process.
        seed: of the search, and of each training.
        ranks: indices of the ranks that take part; None for all.
        static: assign the trials of a round in blocks, instead of to the first free rank.

    Raises:
        ValueError: if an argument is invalid, or no trial of the first round returned a score;
            the text has the error of the first one.
        RankError: if a rank died; its attribute `result` has the trials that had ended. The same
            holds for KeyboardInterrupt.
    """
    space = spaces.check(space)
    require_count(seed, "seed", least=0)
    then = "Use Grid, Random, Halving or TPE."
    require(hasattr(method, "rounds"), "method", "be a method of search", method, then)
    _require_objective(objective, cluster)
    if cluster is not None:
        ranks = checked_ranks(ranks, cluster.ranks)
    require(cluster is not None or ranks is None, "ranks", "be None without a cluster", ranks)
    begin_s = time.monotonic()
    trials: list[Trial] = []
    progress = _ProgressLine(str(method), show)

    def result() -> SearchResult:
        seconds = time.monotonic() - begin_s
        return SearchResult(str(method), tuple(trials), seconds, len(ranks) if ranks else 1)

    rounds = method.rounds(space, seed)
    ended: list[Trial] | None = None
    try:
        while True:
            try:
                proposals = rounds.send(ended)  # None begins the first round
            except StopIteration:
                return result()
            first = len(trials)
            progress.expected += len(proposals)
            read = partial(_trial, proposals, first, begin_s)
            ended_one = lambda outcome, read=read: progress.add(read(outcome))  # noqa: E731
            try:
                done = _round(objective, proposals, seed, cluster, ranks, static, ended_one)
            except (RankError, KeyboardInterrupt) as error:
                trials += [read(each) for each in getattr(error, "results", ())]
                error.result = result()
                raise
            ended = [read(each) for each in done]
            trials += ended
            if first == 0 and ended:
                must = "give a score in at least one trial of the first round"
                then = f"Trial 0: {ended[0].error}\n{ended[0].traceback}"
                scored = not all(trial.failed for trial in ended)
                require(scored, "objective", must, f"{len(ended)} failures", then)
    finally:
        progress.close()


def _round(
    objective: Objective,
    proposals: Sequence[Proposal],
    seed: int,
    cluster: Cluster | None,
    ranks: Sequence[int] | None,
    static: bool,
    on_result: Callable[[TaskResult], None],
) -> list[TaskResult]:
    """Run the trials of one round, on the ranks or here."""
    call = partial(scores, objective, seed)
    items = [(dict(one.parameters), one.epochs) for one in proposals]
    if cluster is not None:
        return cluster.map(call, items, ranks, on_result, static)
    outcomes: list[TaskResult] = []
    try:
        for number, item in enumerate(items):
            outcomes.append(do(call, item, number, rank=0))
            on_result(outcomes[-1])
    except KeyboardInterrupt as error:
        error.results = outcomes
        raise
    return outcomes


def scores(
    objective: Objective, seed: int, item: tuple[Mapping[str, Any], int]
) -> tuple[float, ...]:
    """Call an objective, on a rank, and return its scores."""
    parameters, epochs = item
    returned = objective(parameters, epochs, seed)
    many = isinstance(returned, Sequence | np.ndarray) and not isinstance(returned, str | bytes)
    values = list(returned) if many and np.ndim(returned) == 1 else [returned]
    right = bool(values) and all(
        isinstance(value, Real) and not isinstance(value, bool | np.bool_) for value in values
    )
    must = "return a number, or a list with the score after each epoch"
    require(right, "objective", must, returned, "Does it end in `return`?")
    last = float(values[-1])
    then = "A training that diverges often ends so: is the rate too large?"
    require(math.isfinite(last), "objective", "return a finite score", last, then)
    return tuple(float(value) for value in values)


def _trial(proposals: Sequence[Proposal], first: int, begin_s: float, outcome: TaskResult) -> Trial:
    history = outcome.value or ()
    return Trial(
        number=first + outcome.number,
        **vars(proposals[outcome.number]),
        score=history[-1] if history else math.inf,
        history=history,
        rank=outcome.rank,
        start_s=outcome.start_s - begin_s,
        end_s=outcome.end_s - begin_s,
        error=outcome.error,
        traceback=outcome.traceback,
    )


def _require_objective(objective: Any, cluster: Cluster | None) -> None:
    require(callable(objective), "objective", "be a function", objective)
    name = getattr(objective, "__name__", repr(objective))
    try:
        inspect.signature(objective).bind({}, 1, 0)
    except TypeError:
        then = f"Write `def {name}(parameters, epochs, seed):`."
        got = f"{name}{inspect.signature(objective)}"
        require(False, "objective", "take parameters, epochs and seed", got, then)
    if cluster is not None:
        payload(objective, [], "objective")


class _ProgressLine:
    """Progress of a search: one updated line in a terminal or notebook, rare lines in a file."""

    def __init__(self, method: str, show: bool) -> None:
        self.method, self.show = method, show
        self.begin_s = self.drawn_s = time.monotonic()
        self.expected = self.ended = self.failed = 0
        self.best: Trial | None = None
        self.width = 0
        self.live = show and (sys.stdout.isatty() or hasattr(sys.stdout, "topic"))

    def add(self, trial: Trial) -> None:
        """Count a finished trial and redraw the line from time to time."""
        self.ended += 1
        self.failed += trial.failed
        if not trial.failed and (self.best is None or trial.score < self.best.score):
            self.best = trial
        now_s = time.monotonic()
        if self.show and now_s - self.drawn_s >= (DRAW_S if self.live else LINE_S):
            self.drawn_s = now_s
            self._draw("" if self.live else "\n")

    def text(self) -> str:
        """Return the line: method, finished trials, the best, failures, seconds."""
        done = round(20 * self.ended / max(1, self.expected))
        parts = [f"{self.method} [{'#' * done}{'.' * (20 - done)}] {self.ended}/{self.expected}"]
        if self.best is not None:
            best = f"best {self.best.score:.4f}: trial {self.best.number}"
            parts.append(f"{best} ({parameters_text(self.best.parameters)})")
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join([*parts, f"{time.monotonic() - self.begin_s:.1f} s"])

    def close(self) -> None:
        """Draw the line a last time."""
        if self.show:
            self._draw("\n")

    def _draw(self, end: str) -> None:
        text = self.text()
        sys.stdout.write("\r" * self.live + text.ljust(self.width) + end)
        sys.stdout.flush()
        self.width = len(text) * self.live
