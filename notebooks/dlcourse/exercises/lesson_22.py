"""Exercises of lesson 22: traffic, staleness, how many workers to leave out, a parameter server."""

from functools import partial

import numpy as np

from dlcourse.exercises.engine import Exercise, letter

RANDOM = np.random.default_rng(22)
ORDERS = [[0, 0, 0], [0, 1, 2, 0, 1, 2], [0, 0, 0, 1, 0, 1, 1], RANDOM.geometric(0.4, 300).tolist()]
TIMES = [
    1 + RANDOM.exponential(tail, (60, workers)) * (RANDOM.random((60, workers)) < 0.2)
    for workers, tail in ((4, 0.0), (8, 0.02), (8, 0.5), (20, 3.0), (20, 0.3))
]
TIMES[2][:, 3] += 2.0  # one worker is always slow


def traffic(workers, servers, nbytes):
    return nbytes, workers * nbytes / servers, 2 * (workers - 1) / workers * nbytes


def staleness(order, own=1, first=0):
    read_at, found = {}, []
    for updates, worker in enumerate(order):
        found.append(updates - read_at.get(worker, first * updates))
        read_at[worker] = updates + own
    return found


def best(times):
    per_s = np.arange(1, times.shape[1] + 1) / np.sort(times, axis=1).mean(axis=0)
    return times.shape[1] - 1 - int(per_s.argmax())


def serve(comm, weights, gradient, rate, steps):
    weights, server = weights.copy(), comm.size - 1
    for _ in range(steps):
        pairs = comm.gather(None if comm.rank == server else gradient(weights), server)
        if comm.rank == server:
            total = sum(count for _, count in pairs[:-1])
            weights -= rate * sum(mean * (count / total) for mean, count in pairs[:-1])
        weights = comm.bcast(weights, server)
    return weights


def no_samples(weights):
    raise RuntimeError("The server has no samples: only workers call `gradient`.")


def tasks(ranks):
    work = [
        lambda w, r=rank: (w - np.sin(np.arange(5) + r), 3 * r + 1) for rank in range(ranks - 1)
    ]
    return [[(np.ones(5), each, 0.25, 3) for each in (*work, no_samples)]] if ranks > 1 else []


def descent(inputs, weigh=True, rate=1, late=False, untouched=True, back=True):
    """Serial descent over the samples of all workers: the weights, and the array that was given."""
    given, _, step, steps = inputs[0]
    weights = given
    for _ in range(steps):
        means, counts = zip(*(gradient(weights) for _, gradient, *_ in inputs[:-1]), strict=True)
        mean = np.average(means, axis=0, weights=counts if weigh else None)
        before, weights = weights, weights - rate * step * mean
    workers = [(before if late else weights, given)] * (len(inputs) - 1)
    return [*workers, (weights if back else None, given if untouched else weights)]


EXERCISES = {
    "22-1": Exercise(
        traffic, cases=[(p, k, 1e8) for p, k in ((1, 1), (2, 1), (8, 4), (3, 3), (4, 8), (64, 16))],
        hint="A worker sends all parts of its gradient; a server answers every worker.",
        mistakes={
            "Every server gets a part of the gradient: how much is it in all?":
                lambda p, k, n: (n / k, *traffic(p, k, n)[1:]),
            "It answers every worker, with the part of the weights that it holds.":
                lambda p, k, n: (n, p * n, traffic(p, k, n)[2]),
            "2 (p - 1) messages of n / p bytes; one rank alone sends nothing.":
                lambda p, k, n: (*traffic(p, k, n)[:2], 2 * n),
        },
        remark="As many servers as workers, on the same machines: nearly the 2 n of a ring."),
    "22-2": [
        Exercise(
            staleness, cases=[(order,) for order in ORDERS],
            hint="The updates between sending the weights and using the gradient, in order.",
            mistakes={
                "A worker got its own last update with the weights.": partial(staleness, own=0),
                "A worker's first gradient: its weights had seen no update at all.":
                    partial(staleness, first=1),
            }),
        letter(
            "B",
            {"A": "An asynchronous worker does not wait for any other.",
             "C": "Try it on an order in which one worker sends nearly everything.",
             "D": "Cut off the first ten gradients of a long order: does the mean change?"},
            "Whatever the speeds, the mean is p - 1; a slow worker only makes the tail long."),
    ],
    "22-3": Exercise(
        best, cases=[(times,) for times in TIMES],
        hint="Sort each step's times. With k left out a step lasts as the (p - k)-th of them.",
        mistakes={
            "The shortest step is not the aim: how many gradients does it use?":
                lambda times: times.shape[1] - 1,
            "Waiting for all is not always best: count the gradients per second.": lambda times: 0,
            "That is the number to wait for. How many are left out?":
                lambda times: times.shape[1] - best(times),
        },
        remark=f"{best(TIMES[-1])} of 20 in the last case. See Teng and Wood (2018)."),
    "22-4": Exercise(
        serve, ranks=(2, 3), cases=tasks, serial=descent,
        call=lambda answer, comm, weights, *rest: (answer(comm, weights, *rest), weights),
        hint="Is each step made at the weights of the step before?",
        mistakes={
            "Workers have different numbers of samples: weight each gradient by its own.":
                partial(descent, weigh=False),
            "The weights did not change: which rank makes the update?": partial(descent, rate=0),
            "Only the server is correct: does the last answer arrive?": partial(descent, late=True),
            "Return the weights on every rank, also on the server.": partial(descent, back=False),
            "Do not change the given array: work on a copy.": partial(descent, untouched=False),
        },
        remark="A parameter server in a dozen lines, equal to one process with all the samples."),
}  # fmt: skip
