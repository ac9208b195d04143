"""Exercises of lesson 61: chances, a budget, makespans, causes, tasks that ranks claim."""

import time
from contextlib import nullcontext
from functools import partial
from math import ceil, log
from tempfile import TemporaryDirectory

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters, TimeUp, limit

LONG_S = 0.6  # of the long task in 61-5; all others take next to nothing


def trials_needed(share, chance):
    return ceil(round(log(1 - chance) / log(1 - share), 9))


def halving(trials, epochs, factor, budget, least=1, most=99, longer=True):
    rungs, spent = [], 0
    while trials >= least and spent + trials * epochs <= budget and len(rungs) < most:
        rungs.append((trials, epochs))
        spent += trials * epochs
        trials, epochs = trials // factor, epochs * (factor if longer else 1)
    return rungs, spent


def call_halving(answer, *case):
    try:
        with limit(1), np.errstate(all="ignore"):
            return answer(*map(np.int64, case))  # numbers that do not grow in an endless loop
    except TimeUp:
        return "rungs without end"


def makespans(seconds, ranks):
    free = [0.0] * ranks
    for each in seconds:
        free[free.index(min(free))] += each
    return max(free), max(map(sum, np.array_split(seconds, ranks)))


def share(comm, tasks, work, folder):
    mine = {}
    for number in range(tasks):
        try:
            open(f"{folder}/{number}", "x").close()
        except FileExistsError:
            continue
        mine[number] = work(number)
    every = {number: came for part in comm.allgather(mine) for number, came in part.items()}
    return [every[number] for number in range(tasks)]


def call_share(answer, comm, tasks, slow):
    """What the answer returned on this rank, and the tasks that it has done, in their order."""
    done = []

    def work(number):
        time.sleep(LONG_S * (number == slow))
        done.append(int(number))
        return int(number) ** 2

    with TemporaryDirectory() if comm.rank == 0 else nullcontext() as folder:
        folder = comm.bcast(folder)
        comm.Barrier()  # no rank is done before the others begin
        came = answer(comm, tasks, work, folder)
        comm.Barrier()
    return came if came is ... else (came, done, tasks, slow)


def verdict(results):
    """The first thing that is wrong with what all ranks returned and did."""
    found, done, (tasks, *_), (slow, *_) = zip(*results, strict=True)
    numbers = sorted(number for each in done for number in each)
    if set(range(tasks)) - set(numbers):
        return "a task that was never done"
    if len(numbers) > tasks:
        return "a task that was done twice"
    if not all(isinstance(each, list | tuple) and len(each) == tasks for each in found):
        return "not all results on every rank"
    if any(list(each) != [number**2 for number in range(tasks)] for each in found):
        return "results in another order"
    if next(each for each in done if slow in each)[-1] != slow:
        return "tasks after the long one on its rank"
    return "each task once, and none after the long one on its rank"


def did(inputs, first=0, done=None, found=lambda squares, rank: squares):
    """All ranks' results: `done` are the tasks of each, by default the long one alone on rank 0."""
    (tasks, slow), ranks = inputs[0], len(inputs)
    rest = [number for number in range(first, tasks) if number != slow]
    squares = [number**2 for number in range(tasks)]
    done = done(tasks, ranks) if done else [[slow], rest, *[[]] * (ranks - 2)]
    return [(found(squares, rank), done[rank], tasks, slow) for rank in range(ranks)]


EXERCISES = {
    "61-1": Exercise(
        trials_needed, cases=[(0.05, 0.95), (0.5, 0.5), (0.1, 0.9), (0.01, 0.99), (0.25, 0.6)],
        hint="With which chance is at least one of n trials good?",
        mistakes={
            "All n trials miss with a chance of (1 - share) ** n.": lambda q, p: ceil(p / q),
            "A whole number: round up.": lambda q, p: log(1 - p) / log(1 - q),
            "Round up: the chance must be reached.": lambda q, p: int(log(1 - p) / log(1 - q)),
        },
        remark="59 trials reach the best twentieth with 95 %, for 2 parameters or for 20."),
    "61-2": Exercise(
        halving, call=call_halving,
        cases=[(81, 1, 3, 300), (20, 2, 3, 10_000), (16, 1, 4, 32), (16, 1, 2, 50), (9, 5, 3, 44)],
        hint="A list of pairs (trials, epochs), and the epochs that they cost together.",
        mistakes={
            "Each rung has `trials // factor` of the last one's, with `factor` times the epochs.":
                partial(halving, longer=False),
            "The next rung only begins if the budget pays for all of it.":
                lambda n, e, factor, budget: halving(n, e, factor, 10**9),
            "A rung without a trial is none: stop before it.":
                lambda *a: ([*halving(*a)[0], (0, 1)], halving(*a)[1]),
            "There is budget left, and there are trials: one more rung.": partial(halving, most=2),
            "Every trial of a rung costs its epochs: trials x epochs, added up.":
                lambda *a: (halving(*a)[0], sum(trials for trials, _ in halving(*a)[0])),
            "A rung without a trial costs nothing, so any budget pays for it: stop before it.":
                partial(halving, least=0, most=10**9),
        },
        remark="Where the factor divides evenly every rung costs the same: half of all is search."),
    "61-3": Exercise(
        makespans,
        cases=[([3, 1, 1, 1], 2), ([1, 1, 1, 4], 2), ([1, 1, 1, 1, 1, 1, 3], 3),
               ([5, 1, 2, 4, 1, 1, 2, 6, 1, 3], 4), ([2.5], 3)],
        hint="The time until the last rank is done: first free, and in blocks.",
        mistakes={
            "Keep for each rank when it will be free; the next task goes to the least of them.":
                lambda s, p: (max(sum(s[rank::p]) for rank in range(p)), makespans(s, p)[1]),
            "In the order in which the tasks come: they are not sorted.":
                lambda s, p: (makespans(sorted(s)[::-1], p)[0], makespans(s, p)[1]),
            "A task cannot be cut: the sum divided by the ranks is a bound, not a schedule.":
                lambda s, p: (sum(s) / p, makespans(s, p)[1]),
            "Blocks of neighbours, as `np.array_split` cuts them: the slowest block counts.":
                lambda s, p: (makespans(s, p)[0], max(sum(s[rank::p]) for rank in range(p))),
        },
        remark="A long task that comes last makes all wait: begin with the long ones if you can."),
    "61-4": Letters({
        "edge": ("D", "Where would you look next, if the best value is the largest allowed one?"),
        "other trials": ("A", "Which rank draws the k-th numbers, if the k-th to ask gets them?"),
        "late bloomer": ("F", "Which trials does a rung of one epoch favour?"),
        "tail": ("B", "Only one rank has anything to do. When did it begin its task?"),
        "worse on test": ("C", "How many nets were tested with the same 300 images?"),
        "no speed-up": ("E", "What do two trainings on one machine share, without any message?"),
    }, "Two of the six are about time; the other four change which net you end up with."),
    "61-5": Exercise(
        share, ranks=(2, 3), call=call_share, view=verdict, serial=did,
        cases=lambda ranks: [[(3 + 4 * ranks, slow)] * ranks for slow in (0, 1 + ranks)],
        hint="Each task once, and on every rank the results of all.",
        mistakes={
            "The numbers go from 0 to `tasks - 1`.": partial(did, first=2),
            "Two ranks took the same number: only the rank that created its file may do it.":
                partial(did, done=lambda tasks, ranks: [list(range(tasks))] * ranks),
            "Each rank knows its own results only: gather them with `comm.allgather`.":
                partial(did, found=lambda squares, rank: squares[rank::2]),
            "The result of task 0 first, no matter which rank did it, then that of task 1.":
                partial(did, found=lambda squares, rank: squares[::-1]),
            "One task lasted longer than all others together: assign none beforehand.":
                partial(did, done=lambda tasks, p: [[*range(r, tasks, p)] for r in range(p)]),
        },
        remark="The rank with the long task did none after it: the others had done them all."),
}  # fmt: skip
