"""Checks of the exercises of notebook 22: bytes, staleness, the cut-off, a server of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

PARAMETERS = 25_557_032  # weights of ResNet-50
RATE, STEPS = 0.25, 3
WHY = {  # 22-2: what speaks against the other reasons
    "A": "An asynchronous worker waits for nobody.",
    "C": "Try it on an order in which one worker sends nearly everything.",
    "D": "Cut off the first ten gradients of a long order: does the mean change?",
}


def exercise_22_1(traffic: Callable[..., Any]) -> str:
    """Check the bytes of a step of a worker, of a server, and of a rank of a ring.

    Args:
        traffic: called with workers, servers and the bytes of the weights, returns the bytes that
            a worker sends in a step, those that a server sends, and those that a rank sends in a
            ring allreduce over the workers.

    Returns:
        str: what it means.
    """
    expect_function(traffic)
    for workers, servers in ((1, 1), (2, 1), (3, 1), (8, 4), (3, 3), (4, 8), (64, 16)):
        nbytes = 4 * PARAMETERS
        came = answered(traffic(workers, servers, nbytes))
        expect(np.shape(came) == (3,), "three numbers: worker, server, ring", came)
        case = f"with {workers} workers and {servers} servers"
        hint = "Every server gets a part of the gradient: how much is it in all?"
        expect_close(came[0], nbytes, f"the bytes a worker sends {case}", hint, 1e-9)
        hint = "It answers every worker, with the part of the weights that it holds."
        right = workers * nbytes / servers
        expect_close(came[1], right, f"the bytes a server sends {case}", hint, 1e-9)
        hint = "2 (p - 1) messages of n / p bytes; one rank alone sends nothing."
        right = 2 * (workers - 1) / workers * nbytes
        expect_close(came[2], right, f"the bytes of a rank in the ring {case}", hint, 1e-9)
    return (
        "With as many servers as workers, a server sends what a worker sends, and with the server "
        "on the worker's machine that is the traffic of a ring: 2 n, nearly."
    )


def exercise_22_2(staleness: Callable[..., Any], why: str) -> str:
    """Check the staleness that follows from the order in which gradients came, and its mean.

    Args:
        staleness: called with a list of workers, the senders of the gradients in the order in
            which an asynchronous server used them, returns the staleness of each.
        why: the letter of the reason for the mean.

    Returns:
        str: what it means.
    """
    expect_function(staleness)
    random = np.random.default_rng(22)
    mean = 0.0
    for order in (
        *([0, 0, 0], [0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 0, 1, 1]),
        random.choice(4, 4000, p=[0.4, 0.3, 0.2, 0.1]).tolist(),
    ):
        last = dict.fromkeys(order, 0)
        right = []
        for number, worker in enumerate(order):
            right.append(number - last[worker])
            last[worker] = number + 1
        came = answered(staleness(list(order)))
        case = f"for the order {order[:7]}" + (" ..." if len(order) > 7 else "")
        hint = "One number for each gradient, in the same order."
        expect(np.shape(came) == (len(order),), f"{len(order)} numbers {case}", came, hint)
        off = np.asarray(came) - right
        first = np.array([order.index(worker) == place for place, worker in enumerate(order)])
        hint = "A worker's first gradient: its weights had seen no update at all."
        if np.any(off[~first]):
            hint = "A worker's own last update is in the weights that it got back."
        expect(not np.any(off), f"the staleness {case}: {right[:7]}", list(came)[:7], hint)
        mean = float(np.mean(right))
    expect_reason(why, "B", WHY, "the reason why the mean is p - 1")
    return (
        f"Four workers of very different speeds: a mean of {mean:.2f}. It is always p - 1; who "
        "is slow only makes the tail long."
    )


def exercise_22_3(best: Callable[..., Any]) -> str:
    """Check how many of the slowest a synchronous step should leave out.

    Args:
        best: called with measured times, shape (steps, workers), returns the number of gradients
            to leave out so that the most gradients are used in a second.

    Returns:
        str: what it means.
    """
    expect_function(best)
    random = np.random.default_rng(23)
    last = 0
    for workers, tail in ((4, 0.0), (8, 0.02), (8, 0.5), (20, 3.0), (20, 0.3)):
        times = 1 + random.exponential(tail, (60, workers)) * (random.random((60, workers)) < 0.2)
        if tail == 0.5:
            times[:, 3] += 2.0  # one worker is always slow
        mean_s = np.sort(times, axis=1).mean(axis=0)
        per_s = (np.arange(workers) + 1) / mean_s
        right = workers - 1 - int(per_s.argmax())
        came = answered(best(times.copy()))
        case = f"for {workers} workers whose slow steps take {tail:g} s more in the mean"
        hint = "Sort each step's times. With k left out a step lasts as the (p - k)-th of them."
        if came == workers - 1:
            hint = "The shortest step is not the aim: how many gradients does it use?"
        if came == 0:
            hint = "Waiting for all is not always best: count the gradients in a second."
        if came == workers - right:
            hint = "That is the number to wait for. How many are left out?"
        expect(came == right, f"the number left out {case}", came, hint)
        last = right
    return (
        f"For the last case {last} of 20. Teng and Wood (2018) do this while they train, with a "
        "model of the run times in place of a table."
    )


def exercise_22_4(step: Callable[..., Any], cluster: Any) -> str:
    """Check a synchronous server, written by the learner, on real ranks.

    Args:
        step: called with the communicator, the weights, a function (weights -> mean gradient and
            number of samples) of this rank, the rate and the number of steps; the last rank is
            the server. Returns the last weights, on all ranks.
        cluster: the learner's cluster, of at least 2 ranks.

    Returns:
        str: what it means.
    """
    expect_function(step)
    workers = cluster.ranks - 1
    expect(workers >= 1, "a cluster of at least 2 ranks", f"{cluster.ranks} rank", "Start more.")
    targets = np.random.default_rng(24).normal(size=(workers, 5))
    counts = [3 * worker + 1 for worker in range(workers)]

    def of_worker(rank: int) -> Callable[[np.ndarray], tuple[np.ndarray, int]]:
        if rank == workers:
            return _no_gradient
        target, count = targets[rank], counts[rank]
        return lambda weights: (weights - target, count)

    start = np.ones(5)
    inputs = [(start, of_worker(rank), RATE, STEPS) for rank in range(cluster.ranks)]
    came = [np.asarray(each, float) for each in results(cluster, step, inputs)]
    hint = "Return the weights on every rank, the server's too."
    right_shape = all(each.shape == (5,) for each in came)
    expect(right_shape, "an array of shape (5,) on every rank", came, hint)
    share = np.array(counts) / sum(counts)
    goal = share @ targets
    right = goal + (1 - RATE) ** STEPS * (start - goal)
    plain = targets.mean(axis=0)
    mean_of_means = plain + (1 - RATE) ** STEPS * (start - plain)
    hint = "Is each step made at the weights of the step before?"
    if workers > 1 and np.allclose(came[-1], mean_of_means):
        hint = "Workers have different numbers of samples: weigh each gradient with its own."
    elif np.allclose(came[-1], start):
        hint = "The weights did not change at all: who makes the update?"
    text = f"the weights of serial descent after {STEPS} steps"
    expect_close(came[-1], right, f"{text}, on the server", hint, 1e-9)
    hint = "The server is right, but a worker has other weights: does the last answer arrive?"
    for rank in range(workers):
        expect_close(came[rank], right, f"{text}, on rank {rank}", hint, 1e-9)
    return "A parameter server in a dozen lines, and equal to one process with all the samples."


def _no_gradient(weights: np.ndarray) -> tuple[np.ndarray, int]:
    raise RuntimeError("The server has no samples: only workers call `gradient`.")
