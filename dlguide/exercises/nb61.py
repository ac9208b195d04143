"""Checks of the exercises of notebook 61: chances, budgets, makespans, causes, tasks on ranks."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import (
    NotAnswered,
    answered,
    expect,
    expect_close,
    expect_function,
    on_ranks,
)
from dlguide.exercises.matching import expect_causes

CAUSES = {
    "edge": ("D", "Where would you look next, if the best value is the largest that was allowed?"),
    "other trials": ("A", "Who draws the numbers, if the k-th draw goes to whoever asks k-th?"),
    "late bloomer": ("F", "Which trials does a rung of one epoch favour?"),
    "tail": ("B", "No rank has anything to do but one. When did that one begin its task?"),
    "worse on test": ("C", "How many nets were asked the same 300 questions?"),
    "no speed-up": ("E", "What do two trainings on one machine share, though they send nothing?"),
}
SLOW_S = 1.5  # of the long task in exercise 61-5; all others take next to nothing


def exercise_61_1(trials_needed: Callable[..., Any]) -> str:
    """Check how many random trials it takes to hit a good region.

    Args:
        trials_needed: called with the share of the space that is good and the chance that is
            asked for; returns the least number of trials.

    Returns:
        str: what it means.
    """
    expect_function(trials_needed)
    for share, chance in ((0.05, 0.95), (0.5, 0.5), (0.1, 0.9), (0.01, 0.99), (0.25, 0.6)):
        came = answered(trials_needed(share, chance))
        right = math.ceil(round(math.log(1 - chance) / math.log(1 - share), 9))
        case = f"the trials that hit the best {share:g} of the space with a chance of {chance:g}"
        hint = "All n trials miss with a chance of (1 - share) ** n."
        if isinstance(came, float) and not came.is_integer():
            hint = "A whole number: round up."
        elif came == right - 1:
            hint = "Round up: the chance must be reached."
        expect(came == right, case, came, hint)
    return "59 trials reach the best twentieth with 95 %, for 2 parameters or for 20."


def exercise_61_2(halving: Callable[..., Any]) -> str:
    """Check the rungs of successive halving within a budget.

    Args:
        halving: called with the trials of the first rung, the epochs of each, the factor and the
            budget in epochs; returns a list of (trials, epochs) and what they cost together.

    Returns:
        str: what it means.
    """
    expect_function(halving)
    for trials, epochs, factor, budget in (
        (81, 1, 3, 10_000),
        (20, 2, 3, 10_000),
        (16, 1, 4, 32),
        (16, 1, 2, 50),
        (9, 5, 3, 44),
    ):
        _Counted.done = 0
        came = answered(halving(*map(_Counted, (trials, epochs, factor, budget))))
        rungs, spent = _rungs(trials, epochs, factor, budget)
        case = f"{trials} trials of {epochs} epochs, factor {factor}, a budget of {budget}"
        two = isinstance(came, tuple | list) and len(came) == 2
        pairs = two and isinstance(came[0], list) and all(np.shape(one) == (2,) for one in came[0])
        expect(pairs, "two things: a list of pairs, and the epochs", came, "return rungs, spent")
        mine = [tuple(rung) for rung in came[0]]
        hint = "Each rung has `trials // factor` of the last one's, with `factor` times the epochs."
        if sum(count * length for count, length in mine) > budget:
            hint = "The next rung only begins if the budget pays for all of it."
        elif mine[: len(rungs)] == rungs:
            hint = "A rung without a trial is none: stop before it."
        elif mine == rungs[: len(mine)]:
            hint = "There is budget left, and there are trials: one more rung."
        expect(mine == rungs, f"the rungs of {case}", mine, hint)
        hint = "Every trial of a rung costs its epochs: trials x epochs, added up."
        expect(came[1] == spent, f"the epochs of {case}", came[1], hint)
    return "Where the factor divides evenly every rung costs the same: half of all is search."


def _rungs(trials: int, epochs: int, factor: int, budget: int) -> tuple[list[tuple[int, int]], int]:
    sizes = [(trials // factor**rung, epochs * factor**rung) for rung in range(64)]
    costs = np.cumsum([count * length for count, length in sizes], dtype=object)
    paid = sum(count > 0 and cost <= budget for (count, _), cost in zip(sizes, costs, strict=True))
    return sizes[:paid], int(costs[paid - 1]) if paid else 0


class _Counted(int):
    """A whole number whose arithmetic is counted, so that a loop without an end gets its hint."""

    done = 0


def _counted(name: str) -> Callable[[int, Any], Any]:
    plain = getattr(int, name)

    def operate(self: int, other: Any) -> Any:
        _Counted.done += 1
        hint = "A rung without a trial costs nothing, so any budget pays for it: stop before it."
        expect(_Counted.done < 1_000, "rungs that come to an end", "a loop that goes on", hint)
        came = plain(self, other)
        return came if came is NotImplemented else _Counted(came)

    return operate


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "rfloordiv"):
    setattr(_Counted, f"__{_name}__", _counted(f"__{_name}__"))


def exercise_61_3(makespans: Callable[..., Any]) -> str:
    """Check the predicted time of tasks on ranks.

    Args:
        makespans: called with the seconds of each task and the ranks; returns the makespan when
            each goes to the rank that is free first, and when blocks are dealt beforehand.

    Returns:
        str: what it means.
    """
    expect_function(makespans)
    for seconds, ranks in (
        ([3, 1, 1, 1], 2),
        ([1, 1, 1, 4], 2),
        ([1, 1, 1, 1, 1, 1, 3], 3),
        ([5, 1, 2, 4, 1, 1, 2, 6, 1, 3], 4),
        ([2.5], 3),
    ):
        came = answered(makespans(list(seconds), ranks))
        expect(np.shape(came) == (2,), "two numbers: first free, and in blocks", came)
        case = f"tasks of {seconds} seconds on {ranks} ranks"
        free = _first_free(seconds, ranks)
        hint = "Keep for each rank when it will be free; the next task goes to the least of them."
        if came[0] == _first_free(sorted(seconds, reverse=True), ranks):
            hint = "In the order in which the tasks come: they are not sorted."
        if came[0] == sum(seconds) / ranks:
            hint = "A task cannot be cut: the sum divided by the ranks is a bound, no schedule."
        expect_close(came[0], free, f"first free: {case}", hint, 1e-9)
        parts = np.array_split(np.asarray(seconds, float), ranks)
        hint = "Blocks of neighbours, as `np.array_split` cuts them: the slowest block counts."
        expect_close(came[1], max(part.sum() for part in parts), f"blocks: {case}", hint, 1e-9)
    return "A long task that comes last makes everybody wait: begin with the long ones if you can."


def _first_free(seconds: Sequence[float], ranks: int) -> float:
    free = [0.0] * ranks
    for each in seconds:
        free[free.index(min(free))] += each
    return max(free)


def exercise_61_4(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which symptom.

    Args:
        causes: for each of the six symptoms a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "Two of the six are about time; the other four change which net you end up with."


def exercise_61_5(share: Callable[..., Any], cluster: Any) -> str:
    """Check that ranks claim tasks by themselves, each the next one when it is free.

    Args:
        share: called on every rank with a communicator, a number of tasks, a function and a folder
            that all see; calls `work(number)` once for each number, on one rank; returns on every
            rank the list of what all of them returned, in the order of the numbers.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(share)
    ranks, tasks = cluster.ranks, 3 + 4 * cluster.ranks
    came = _on_ranks(cluster, share, tasks)
    if all(found is Ellipsis for found, _ in came):
        raise NotAnswered
    _expect_each_once(came, tasks)
    for rank, (found, _) in enumerate(came):
        listed = isinstance(found, list | tuple) and len(found) == tasks
        hint = "Each rank knows its own results only: gather them with `comm.allgather`."
        expect(listed, f"{tasks} results on every rank", f"rank {rank}: {found!r}", hint)
        hint = "The result of task 0 first, whoever did it, then that of task 1."
        right = list(found) == [number * number for number in range(tasks)]
        expect(right, "the results in the order of the tasks", found, hint)
    if ranks == 1:
        return "One rank does them all: try it on two."
    for slow in (0, tasks // 3):  # of a deal made beforehand one of them is not the last
        came = _on_ranks(cluster, share, tasks, slow)
        _expect_each_once(came, tasks)
        (mine,) = (mine for _, mine in came if slow in mine)
        more = len(mine) - 1 - mine.index(slow)
        hint = f"Task {slow} lasted longer than all others together: deal none beforehand."
        expect(more == 0, f"no task after the long task {slow} on its rank", f"{more} more", hint)
    return "Whoever had the long task took none after it: the others had done them all."


def _expect_each_once(came: Sequence[tuple[Any, list[int]]], tasks: int) -> None:
    numbers = sorted(number for _, mine in came for number in mine)
    twice, never = len(numbers) - len(set(numbers)), set(range(tasks)) - set(numbers)
    hint = "Two ranks took the same number: only who has created its file may do it."
    said = f"{twice} once too often, {len(never)} never"
    if never:
        hint = "The numbers go from 0 to `tasks - 1`."
    expect(not twice and not never, f"each of {tasks} tasks done once", said, hint)


class _Work:
    """A task that squares its number and keeps in mind what this rank has done."""

    def __init__(self, slow: int | None) -> None:
        self.slow = slow
        self.done: list[int] = []

    def __call__(self, number: int) -> int:
        if number == self.slow:
            time.sleep(SLOW_S)
        self.done.append(int(number))
        return int(number) ** 2


def _on_ranks(
    cluster: Any, share: Callable[..., Any], tasks: int, slow: int | None = None
) -> list[tuple[Any, list[int]]]:
    """Return for each rank what `share` returned there, and the tasks that it has done."""
    with tempfile.TemporaryDirectory() as folder:
        return on_ranks.run(cluster, _shared, share, tasks, slow, folder)


def _shared(
    share: Callable[..., Any], tasks: int, slow: int | None, folder: str
) -> tuple[Any, list[int]]:
    from mpi4py import MPI

    work = _Work(slow)
    MPI.COMM_WORLD.Barrier()  # nobody is done before the others begin
    return share(MPI.COMM_WORLD, tasks, work, folder), work.done
