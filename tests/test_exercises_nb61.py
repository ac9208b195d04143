"""Exercises of notebook 61: model answers, usual mistakes, and tasks claimed on real ranks.

Tests dlguide.exercises.nb61.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest

from dlguide import exercises, search
from dlguide.exercises import nb61
from dlguide.search import makespan

pytestmark = pytest.mark.timeout(240)


def trials_needed(share, chance):
    trials = 1
    while 1 - (1 - share) ** trials < chance - 1e-12:
        trials += 1
    return trials


def halving(trials, epochs, factor, budget):
    rungs, spent = [], 0
    while trials > 0 and spent + trials * epochs <= budget:
        rungs.append((trials, epochs))
        spent += trials * epochs
        trials, epochs = trials // factor, epochs * factor
    return rungs, spent


def makespans(seconds, ranks):
    return tuple(
        makespan.makespan(deal(seconds, ranks))
        for deal in (makespan.first_free, makespan.beforehand)
    )


def without_budget(trials, epochs, factor, budget):
    return halving(trials, epochs, factor, 10**9)


def one_more(trials, epochs, factor, budget):
    rungs, spent = halving(trials, epochs, factor, budget)
    return [*rungs, (0, 1)], spent


def without_end(trials, epochs, factor, budget):
    rungs, spent = [], 0
    while spent + trials * epochs <= budget:
        rungs.append((trials, epochs))
        spent += trials * epochs
        trials, epochs = trials // factor, epochs * factor
    return rungs, spent


def without_end_downwards(trials, epochs, factor, budget):
    rungs, left = [], budget
    while left >= trials * epochs:
        rungs.append((trials, epochs))
        left -= trials * epochs
        trials, epochs = int(trials / factor), epochs * factor
    return rungs, budget - left


def two_rungs(trials, epochs, factor, budget):
    rungs, _ = halving(trials, epochs, factor, budget)
    return rungs[:2], sum(count * length for count, length in rungs[:2])


def same_length(trials, epochs, factor, budget):
    rungs, spent = halving(trials, epochs, factor, budget)
    return [(count, epochs) for count, _ in rungs], spent


def ideal(seconds, ranks):
    return sum(seconds) / ranks, makespans(seconds, ranks)[1]


def in_turn(seconds, ranks):
    dealt = max(sum(seconds[rank::ranks]) for rank in range(ranks))
    return makespans(seconds, ranks)[0], dealt


RIGHT_CAUSES = {symptom: letter for symptom, (letter, _) in nb61.CAUSES.items()}
RIGHT = {"61-1": trials_needed, "61-2": halving, "61-3": makespans, "61-4": RIGHT_CAUSES}
EMPTY = {"61-4": [dict.fromkeys(RIGHT_CAUSES, ...)]}
WRONG = {
    "not rounded": ("61-1", lambda q, p: math.log(1 - p) / math.log(1 - q), "a whole number"),
    "rounded down": ("61-1", lambda q, p: trials_needed(q, p) - 1, "round up"),
    "one by one": ("61-1", lambda q, p: math.ceil(p / q), "all n trials miss"),
    "budget forgotten": ("61-2", without_budget, "pays for all of it"),
    "empty rung": ("61-2", one_more, "without a trial"),
    "no end": ("61-2", without_end, "costs nothing"),
    "no end, downwards": ("61-2", without_end_downwards, "costs nothing"),
    "stopped early": ("61-2", two_rungs, "one more rung"),
    "equal lengths": ("61-2", same_length, "`factor` times the epochs"),
    "rungs only": ("61-2", lambda *a: halving(*a)[0], "a list of pairs"),
    "trials counted": ("61-2", lambda *a: (halving(*a)[0], 1), "trials x epochs"),
    "least free forgotten": ("61-3", lambda s, p: (sum(s), 0), "when it will be free"),
    "tasks cut": ("61-3", ideal, "cannot be cut"),
    "longest first": (
        "61-3",
        lambda s, p: (makespans(sorted(s, reverse=True), p)[0], makespans(s, p)[1]),
        "not sorted",
    ),
    "dealt in turn": ("61-3", in_turn, "blocks of neighbours"),
    "one number": ("61-3", lambda *a: 3.0, "two numbers"),
    "tail": ("61-4", RIGHT_CAUSES | {"tail": "E"}, "when did that one begin"),
    "luck": ("61-4", RIGHT_CAUSES | {"worse on test": "F"}, "the same 300 questions"),
    "edge": ("61-4", RIGHT_CAUSES | {"edge": "A"}, "look next"),
    "no letter": ("61-4", RIGHT_CAUSES | {"edge": 7}, "letter"),
}


def test_oracles_agree_with_the_package():
    for trials, epochs, factor in ((81, 1, 3), (20, 2, 3), (16, 1, 2)):
        method = search.Halving(trials, epochs, factor)
        rungs = [(rung.trials, rung.epochs) for rung in method.plan()]
        assert halving(trials, epochs, factor, 10**6) == (rungs, method.budget)
    drawn = np.random.default_rng(0).random((4000, trials_needed(0.1, 0.9)))
    assert (drawn.min(axis=1) < 0.1).mean() == pytest.approx(0.9, abs=0.03)


# --- on ranks ----------------------------------------------------------------------------------


def share(comm, tasks, work, folder, way="claims"):
    mine = {}
    if way == "first to the first":
        others = max(comm.size - 1, 1)
        dealt = [[0], *np.array_split(range(1, tasks), others)]
        mine = {int(task): work(int(task)) for task in dealt[comm.rank]}
    elif way == "race":
        for task in range(tasks):
            if not os.path.exists(f"{folder}/{task}"):
                comm.Barrier()  # between looking and creating another one comes
                open(f"{folder}/{task}", "w").close()
                mine[task] = work(task)
            comm.Barrier()
    elif way == "race with the long task":
        if work.slow is None:
            return share(comm, tasks, work, folder)
        mine = {task: work(task) for task in range(tasks)}
    elif way == "in turn":
        mine = {task: work(task) for task in range(comm.rank, tasks, comm.size)}
    elif way == "everybody":
        mine = {task: work(task) for task in range(tasks)}
    else:
        order = range(way == "from one", tasks)
        for task in reversed(order) if way == "downwards" else order:
            try:
                open(f"{folder}/{task}", "x").close()
            except FileExistsError:
                continue
            mine[task] = work(task)
    if way == "own":
        return list(mine.values())
    parts = comm.allgather(mine)
    if way == "rank order":
        return [value for part in reversed(parts) for value in reversed(part.values())]
    whole = {task: value for part in parts for task, value in part.items()}
    return [whole[task] for task in range(tasks)] if len(whole) == tasks else []


@pytest.mark.parametrize("way", ["claims", "downwards"])
def test_claimed_tasks_are_ticked(way, cluster, capsys):
    ticked = exercises.check("61-5", lambda *given: share(*given, way), cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("way", "hint", "alone"),
    [
        ("everybody", "same number", True),
        ("from one", "go from 0 to", False),
        ("rank order", "whoever did it", False),
        ("own", "gather them", True),
        ("in turn", "deal none beforehand", True),
        ("race", "same number", True),
        ("race with the long task", "same number", True),
    ],
)
def test_other_ways_of_sharing_get_their_hint(way, hint, alone, cluster, capsys):
    answer = lambda *given: share(*given, way)  # noqa: E731
    ticked = exercises.check("61-5", answer, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and alone:
        assert ticked, out
        assert "try it on two" in out
    else:
        assert not ticked
        assert hint in out


def test_a_deal_that_knows_the_first_long_task_is_refused(cluster, capsys):
    if cluster.ranks > 1:
        answer = lambda *given: share(*given, "first to the first")  # noqa: E731
        assert not exercises.check("61-5", answer, cluster)
        assert "deal none beforehand" in capsys.readouterr().out


def test_nothing_shared_is_not_answered(cluster, capsys):
    assert not exercises.check("61-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
