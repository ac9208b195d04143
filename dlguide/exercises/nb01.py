"""Checks of the exercises of notebook 01: messages, collectives, deadlocks, one-sided access."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dlguide.exercises import expect, expect_close, near
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

# Larger than what any MPI sends before the receiver is there.
LARGE = 2**17
WHY = {  # 01-3: what speaks against the other reasons
    "A": "Different numbers are what an allreduce is for: it adds them up.",
    "C": "An allreduce has no root, all ranks are alike in it.",
    "D": "One number a rank goes into any mailbox. And who would take it out?",
}
SLOW_S, QUICK_S, TASKS_A_RANK = 0.2, 0.002, 6


def exercise_01_1(shift: Callable[..., Any], cluster: Any) -> str:
    """Check a function that hands every rank's array to its right neighbour.

    Args:
        shift: called with the communicator and an array, returns the left neighbour's array.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks = cluster.ranks
    for length in (3, LARGE):
        arrays = [np.full(length, 10.0 * rank) + np.arange(length) % 7 for rank in range(ranks)]
        came = results(cluster, shift, [(array,) for array in arrays])
        for rank, array in enumerate(came):
            left = (rank - 1) % ranks
            hint = f"Rank {rank} must end with the array of rank {left}."
            expect_close(array, arrays[left], f"the left neighbour's {length} numbers", hint)
    if ranks < 3:
        return "With two ranks left and right are the same neighbour: try it on three as well."
    return "Small and large arrays, and no rank waited for ever."


def exercise_01_2(mean: Callable[..., Any], cluster: Any) -> str:
    """Check a mean over parts of different lengths, one of them empty.

    Args:
        mean: called with the communicator and this rank's part, returns the mean of all numbers.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks = cluster.ranks
    for lengths in ((4, 4, 4, 4), (7, 2, 3, 5), (5, 9, 0, 2)):
        parts = [100.0 * rank + np.arange(lengths[rank % 4]) for rank in range(ranks)]
        whole = np.concatenate(parts)
        hint = "Which rank's mean should count more? Add up sums and counts, divide at the end."
        came = results(cluster, mean, [(part,) for part in parts])
        text = f"np.mean of all {len(whole)} numbers, on every rank"
        expect_close(came, np.full(ranks, whole.mean()), text, hint, relative=1e-9)
    return "A mean of means is the mean only when all parts have the same size."


def exercise_01_3(waiting: Any, why: str, mended: Callable[..., Any], cluster: Any) -> str:
    """Check which ranks wait for ever in the lesson's function, why, and its mended form.

    Args:
        waiting: the ranks that wait for ever with the lesson's losses (list).
        why: the letter of the reason.
        mended: called with the communicator, this rank's losses and the loss that is enough,
            returns (steps, mean loss of the last step).
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    hint = "Whose own loss is small enough first? It leaves. Who is still there?"
    if isinstance(waiting, set | frozenset | range | np.ndarray):
        waiting = list(waiting)
    named = sorted(waiting) if isinstance(waiting, list | tuple) else waiting
    ranks = cluster.ranks
    others = [rank for rank in range(ranks) if rank != 1]
    if named == list(range(ranks)):
        hint = "All of them? A rank that has left the loop waits for nobody."
    expect(named == others, "a list of the ranks that still call allreduce", waiting, hint)
    expect_reason(why, "B", WHY, "the reason why they wait")
    random = np.random.default_rng(1)
    for enough in (0.5, 0.2, 0.0):
        losses = 1 / (1 + np.arange(12.0)) + random.uniform(0, 0.3, (ranks, 12))
        means = losses.mean(axis=0)
        small = np.flatnonzero(means < enough)
        steps = int(small[0]) + 1 if len(small) else 12
        came = results(cluster, mended, [(own, enough) for own in losses])
        pairs = [tuple(each) if isinstance(each, tuple | list) else each for each in came]
        hint = "All ranks must decide by the same number."
        text = f"({steps} steps, the mean loss of the last one) on every rank"
        expect_close(pairs, np.tile([steps, means[steps - 1]], (ranks, 1)), text, hint)
    return "A decision that changes what ranks do next must be the same on all of them."


def exercise_01_4(dot: Callable[..., Any], cluster: Any) -> str:
    """Check a dot product of vectors that only rank 0 has.

    Args:
        dot: called with the communicator and two vectors (None on all ranks but 0), returns
            their dot product.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks = cluster.ranks
    random = np.random.default_rng(2)
    for length in (4 * ranks, 4 * ranks + 1, 1):
        x, y = random.normal(size=(2, length))
        inputs = [(x, y)] + [(None, None)] * (ranks - 1)
        hint = "`np.array_split` cuts into parts that need not be equal."
        came = results(cluster, dot, inputs)
        text = f"the dot product of {length} numbers, on every rank"
        right = np.full(ranks, x @ y)
        if came[0] is not None and any(each is None for each in came):
            hint = "Only the root has the sum. Which collective gives it to everybody?"
        elif near(came, ranks * right):
            hint = f"{ranks} times too much: is every part multiplied on one rank only?"
        elif len(came) > 1 and near(sum(np.ravel(each).sum() for each in came), right[0]):
            hint = "Each rank has its own part of the sum: the parts must still be added up."
        expect_close(came, right, text, hint, relative=1e-9)
    return "Scatter, compute, reduce: the pattern of most parallel programs."


def exercise_01_5(take: Callable[..., Any], cluster: Any) -> str:
    """Check ranks that draw tasks from a shared counter until none is left.

    Args:
        take: called with the communicator, the number of tasks (count) and a function to call
            with each task's number, returns the list of tasks that this rank did.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks = cluster.ranks
    tasks = TASKS_A_RANK * ranks
    came = results(cluster, take, [(tasks, _worker(rank)) for rank in range(ranks)])
    done = sorted(int(task) for each in came for task in each)
    hint = "Every ticket once: read the counter and raise it in one operation, `Fetch_and_op`."
    if done and max(done) >= tasks:
        hint = f"Who draws a number of {tasks} or more stops without doing it."
    elif set(done) < set(range(tasks)) and len(set(done)) == len(done):
        hint = "Some were never done: draw again until the number drawn is too large."
    expect(done == list(range(tasks)), f"each of 0 to {tasks - 1} done once", came, hint)
    shares = [len(each) for each in came]
    if ranks == 1:
        return "One rank does them all. With more of them the slow ones do less."
    hint = (
        "Rank 0 is slow in this check and should end with the fewest. `Lock_all` once, then "
        "`Fetch_and_op` and `Flush`: a `Lock` for each ticket waits until rank 0 looks up."
    )
    expect(shares[0] < TASKS_A_RANK, "fewer tasks on the slow rank 0", shares, hint)
    return f"Tasks a rank: {shares}. Rank 0 was slow, and nobody had to tell the others."


def _worker(rank: int) -> Callable[[int], None]:
    def work(task: int) -> None:
        time.sleep(SLOW_S if rank == 0 else QUICK_S)

    return work
