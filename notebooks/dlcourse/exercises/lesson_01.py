"""Exercises of lesson 01: messages, collectives, a deadlock, one-sided access."""

from __future__ import annotations

import time

import numpy as np

from dlcourse.exercises.engine import Exercise

LARGE = 2**17  # elements; larger than what MPI sends before the receiver is there
TASKS = 6  # per rank


def shift(comm, array):
    received = np.empty_like(array)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(array, dest=right, recvbuf=received, source=left)
    return received


def arrays(ranks):
    return [
        [(np.full(length, 10.0 * rank) + np.arange(length) % 7,) for rank in range(ranks)]
        for length in (3, LARGE)
    ]


def moved(inputs, by=-1):
    return [inputs[(rank + by) % len(inputs)][0] for rank in range(len(inputs))]


def mean(comm, part):
    total, count = comm.allreduce(part.sum()), comm.allreduce(len(part))
    return total / count


def parts(ranks):
    counts = ((4, 4, 4, 4), (7, 2, 3, 5), (5, 9, 0, 2))
    return [[(100.0 * r + np.arange(count[r % 4]),) for r in range(ranks)] for count in counts]


def of_all(function):
    """The same number on every rank, from the list of their parts."""
    return lambda inputs: [function([part for (part,) in inputs])] * len(inputs)


def same_decision(comm, losses, enough):
    for steps, own in enumerate(losses, 1):
        loss = comm.allreduce(own) / comm.size
        if loss < enough:
            break
    return steps, loss


def losses(ranks):
    random = np.random.default_rng(1)
    rows = [1 / (1 + np.arange(12.0)) + random.uniform(0, 0.3, (ranks, 12)) for _ in range(3)]
    return [[(own, enough) for own in each] for each, enough in zip(rows, (0.5, 0.2, 0.0), strict=True)]


def decided(inputs, mean=lambda rows: rows.mean(axis=0)):
    means = mean(np.array([row for row, _ in inputs]))
    small = np.flatnonzero(means < inputs[0][1])
    steps = int(small[0]) + 1 if len(small) else len(means)
    return [(steps, means[steps - 1])] * len(inputs)


def dot(comm, x, y):
    pieces = [np.array_split(each, comm.size) if comm.rank == 0 else None for each in (x, y)]
    own_x, own_y = (comm.scatter(each) for each in pieces)
    return comm.allreduce(own_x @ own_y)


def vectors(ranks):
    random = np.random.default_rng(2)
    pairs = [tuple(random.normal(size=(2, length))) for length in (4 * ranks, 4 * ranks + 1, 1)]
    return [[pair, *[(None, None)] * (ranks - 1)] for pair in pairs]


def own_parts(inputs):
    pieces = (np.array_split(each, len(inputs)) for each in inputs[0])
    return [float(x @ y) for x, y in zip(*pieces, strict=True)]


def take(comm, tasks, work):
    from mpi4py import MPI

    counter = MPI.Win.Allocate(8 if comm.rank == 0 else 0, 8, comm=comm)
    if comm.rank == 0:
        np.frombuffer(counter, "i8")[:] = 0
    comm.Barrier()
    done, one, ticket = [], np.ones(1, "i8"), np.zeros(1, "i8")
    counter.Lock_all()
    while True:
        counter.Fetch_and_op(one, ticket, 0)
        counter.Flush(0)
        if ticket[0] >= tasks:
            break
        work(int(ticket[0]))
        done.append(int(ticket[0]))
    counter.Unlock_all()
    comm.Barrier()
    counter.Free()
    return done


def call_take(answer, comm, tasks):
    return answer(comm, tasks, lambda task: time.sleep(0.2 if comm.rank == 0 else 0.002))


def dealt(lists):
    """All tasks that were done, and whether the slow rank 0 did fewer than its share."""
    return sorted(task for each in lists for task in each), len(lists[0]) < TASKS


def in_order(inputs, most=0, first=0):
    """Tasks 0 to `most` more than there are: the first on rank 0, the others on the last rank."""
    every = range(first, inputs[0][0] + most)
    return [[0] if first == 0 else [], *[[] for _ in inputs[2:]], [task for task in every if task]]


EXERCISES = {
    "01-1": Exercise(
        shift,
        ranks=(2, 3),
        cases=arrays,
        serial=moved,
        hint="Each rank must end with the array of its left neighbour, on a ring.",
        mistakes={
            "That is the array of the right neighbour.": lambda inputs: moved(inputs, 1),
            "Each rank has kept its array.": lambda inputs: moved(inputs, 0),
            "All ranks have the array of rank 0.": lambda inputs: [inputs[0][0]] * len(inputs),
        },
        remark="Small and large arrays, and no rank waited indefinitely.",
    ),
    "01-2": Exercise(
        mean,
        ranks=(2, 3),
        cases=parts,
        serial=of_all(lambda each: np.concatenate(each).mean()),
        relative=1e-9,
        hint="Add up sums and counts over the ranks, and divide at the end.",
        mistakes={
            "Which rank's mean should count more? A mean of means weighs them equally.": (
                of_all(lambda each: np.mean([part.mean() for part in each]))
            ),
            "That is the mean of this rank's part only.": lambda each: [part.mean() for (part,) in each],
            "That is the sum: divide by the number of all elements.": (
                of_all(lambda each: np.concatenate(each).sum())
            ),
        },
        remark="A mean of means is the mean only when all parts have the same size.",
    ),
}
