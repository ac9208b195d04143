"""Run a search: each trial trains on one rank, the ranks take the next trial as they get free."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real
from typing import Any, Protocol

import numpy as np

from dlguide.cluster import Cluster, RankError
from dlguide.cluster.tasks import Outcome, checked_ranks, do, payload
from dlguide.errors import require, require_count
from dlguide.search import spaces
from dlguide.search.methods import Proposal, Rounds
from dlguide.search.progress import Progress
from dlguide.search.results import Found, Trial
from dlguide.search.spaces import Space

Objective = Callable[[Mapping[str, Any], int, int], Any]


class Method(Protocol):
    """What gives trials in rounds: `Grid`, `Random`, `Halving`, `TPE`, or one of your own."""

    def rounds(self, space: Space, seed: int) -> Rounds:
        """Give the proposals of each round; takes the trials of the round before."""


def run(
    objective: Objective,
    space: Space,
    method: Method,
    cluster: Cluster | None = None,
    *,
    seed: int = 0,
    ranks: Sequence[int] | None = None,
    beforehand: bool = False,
    show: bool = True,
) -> Found:
    """Search a space for the parameters with the least score.

    The trials are single trainings, each on one rank, and the ranks send nothing to each other.
    The same seed gives the same trials on any number of ranks. A trial whose objective raises, or
    returns no finite number, has failed: it counts as the worst, its error is in the result.

    Args:
        objective: called as objective(parameters, epochs, seed) with a dictionary, the length of
            the training and the seed of the search; returns the score, which is to be small, or
            the list of the scores after each epoch. Goes to the ranks with the data it uses.
        space: for each parameter its kind, see `spaces`.
        method: which trials to make.
        cluster: the ranks; None for this process.
        seed: of the search, and of each training (count).
        ranks: those of the cluster that take part; None for all.
        beforehand: deal the trials of a round out in blocks, and not as ranks get free.
        show: whether to show progress.

    Returns:
        Found: all trials.

    Raises:
        ValueError: when an argument is not what it must be, or no trial of the first round gave
            a score; the text says what went wrong in the first one.
        RankError: when a rank died; `found` in it has the trials that had ended. So it is with
            KeyboardInterrupt.
    """
    space = spaces.check(space)
    require_count(seed, "seed", least=0)
    then = "Take Grid, Random, Halving or TPE."
    require(hasattr(method, "rounds"), "method", "be a method of search", method, then)
    _require_objective(objective, cluster)
    if cluster is not None:
        ranks = checked_ranks(ranks, cluster.ranks)
    begin_s = time.monotonic()
    trials: list[Trial] = []
    progress = Progress(str(method), show)

    def found() -> Found:
        seconds = time.monotonic() - begin_s
        return Found(str(method), tuple(trials), seconds, len(ranks) if ranks else 1, seed)

    rounds = method.rounds(space, seed)
    try:
        proposals = next(rounds, None)
        while proposals is not None:
            first = len(trials)
            progress.expect(len(proposals))
            read = partial(_trial, proposals, first, begin_s)
            tell = lambda outcome, read=read: progress.tell(read(outcome))  # noqa: E731
            try:
                done = _round(objective, proposals, seed, cluster, ranks, beforehand, tell)
            except (RankError, KeyboardInterrupt) as error:
                trials += [read(each) for each in getattr(error, "outcomes", ())]
                error.found = found()
                raise
            ended = [read(each) for each in done]
            trials += ended
            if first == 0 and ended and all(trial.failed for trial in ended):
                _all_failed(ended)
            proposals = _next(rounds, ended)
    finally:
        progress.close()
    return found()


def _next(rounds: Rounds, ended: Sequence[Trial]) -> Sequence[Proposal] | None:
    try:
        return rounds.send(ended)
    except StopIteration:
        return None


def _round(
    objective: Objective,
    proposals: Sequence[Proposal],
    seed: int,
    cluster: Cluster | None,
    ranks: Sequence[int] | None,
    beforehand: bool,
    tell: Callable[[Outcome], None],
) -> list[Outcome]:
    """Make the trials of one round."""
    call = partial(attempt, objective, seed)
    items = [(dict(one.parameters), one.epochs) for one in proposals]
    if cluster is not None:
        return cluster.map(call, items, ranks, tell, beforehand)
    outcomes: list[Outcome] = []
    try:
        for number, item in enumerate(items):
            outcomes.append(do(call, item, number, rank=0))
            tell(outcomes[-1])
    except KeyboardInterrupt as error:
        error.outcomes = outcomes
        raise
    return outcomes


def attempt(
    objective: Objective, seed: int, item: tuple[Mapping[str, Any], int]
) -> tuple[float, ...]:
    """Call an objective and return its scores; on the rank."""
    parameters, epochs = item
    return scores(objective(parameters, epochs, seed))


def scores(returned: Any) -> tuple[float, ...]:
    """Read what an objective returned.

    >>> scores([0.5, 0.25])
    (0.5, 0.25)
    """
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


def _trial(proposals: Sequence[Proposal], first: int, begin_s: float, outcome: Outcome) -> Trial:
    proposal = proposals[outcome.number]
    history = outcome.value or ()
    return Trial(
        number=first + outcome.number,
        parameters=dict(proposal.parameters),
        epochs=proposal.epochs,
        rung=proposal.rung,
        parent=proposal.parent,
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


def _all_failed(trials: Sequence[Trial]) -> None:
    must = "give a score in at least one trial of the first round"
    got = f"{len(trials)} failures"
    then = f"Trial 0: {trials[0].error}\n{trials[0].traceback}"
    require(False, "objective", must, got, then)
