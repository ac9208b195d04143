"""Notebook 23's checks tick what is right and say which usual mistake was made."""

import math

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises
from dlguide.exercises import nb23
from dlguide.parallel import schedules


def microbatches(stages, share):
    return next(m for m in range(1, 10**6) if (stages - 1) <= share * (m + stages - 1) + 1e-9)


def order(stage, stages, microbatches):
    work = schedules.order("1f1b", stage, stages, microbatches)
    return [(kind[0].upper(), number) for kind, number in work]


def all_forward(stage, stages, microbatches):
    numbers = range(microbatches)
    return [("F", number) for number in numbers] + [("B", number) for number in numbers]


def one_at_a_time(stage, stages, microbatches):
    return [(kind, number) for number in range(microbatches) for kind in "FB"]


def local(x, w, mesh, layout):
    both = {**x, **w}
    shape = {
        name: size // mesh.get(layout.get(name), 1)
        for name, size in both.items()
        if not (name in x and name in w)
    }
    return shape, {layout[name] for name in layout if name in x and name in w}


def prune(weights, share):
    pruned = weights.copy()
    gone = round(share * weights.size)
    pruned.flat[np.argsort(np.abs(weights), axis=None)[:gone]] = 0
    return pruned, 8 * (weights.size - gone)


def signed(weights, share):
    pruned = weights.copy()
    gone = round(share * weights.size)
    pruned.flat[np.argsort(weights, axis=None)[:gone]] = 0
    return pruned, 8 * (weights.size - gone)


def in_place(weights, share):
    weights *= 0.5
    return prune(weights, share)


def because(function):
    return Parts((function, "C"))


EMPTY = {"23-3": [Parts((lambda *arguments: ..., "C")), Parts((local, ...))]}
RIGHT = {
    "23-1": microbatches,
    "23-2": order,
    "23-3": Parts((local, "C")),
    "23-4": prune,
}
WRONG = {
    "share of m": ("23-1", lambda p, s: max(1, math.ceil((p - 1) / s - 1e-9)), "whole step"),
    "rounded down": (
        "23-1",
        lambda p, s: max(1, math.floor((p - 1) * (1 - s) / s + 1e-9)),
        "one microbatch fewer",
    ),
    "twice the stages": ("23-1", lambda p, s: 2 * p + 5, "Solve"),
    "no microbatch": ("23-1", lambda p, s: microbatches(p, s) if p > 1 else 0, "needs one"),
    "GPipe": ("23-2", all_forward, "take turns"),
    "nothing ahead": ("23-2", one_at_a_time, "waits too long"),
    "backward first": ("23-2", lambda *a: order(*a)[::-1], "before the forward"),
    "one lost": ("23-2", lambda *a: order(*a)[:-1], "forward once and backward once"),
    "no pairs": ("23-2", lambda *a: "FB", "pairs"),
    "whole shape": (
        "23-3",
        because(lambda x, w, m, c: ({"batch": 64, "hidden": 128}, local(x, w, m, c)[1])),
        "divided by their side",
    ),
    "sum over all": (
        "23-3",
        because(lambda x, w, m, c: (local(x, w, m, c)[0], set(c.values()))),
        "cut is",
    ),
    "no sum": ("23-3", because(lambda *a: (local(*a)[0], set())), "part of the sum"),
    "only a shape": ("23-3", because(lambda *a: local(*a)[0]), "two things"),
    "all have all images": ("23-3", Parts((local, "A")), "its own part of `batch`"),
    "hidden": ("23-3", Parts((local, "B")), "Is there a message to hide"),
    "weights are cut": ("23-3", Parts((local, "D")), "Which names do the weights have"),
    "no reason": ("23-3", Parts((local, "because")), "one of the letters A, B, C, D"),
    "by sign": ("23-4", signed, "absolute value"),
    "in place": ("23-4", in_place, "Work on a copy"),
    "share kept": ("23-4", lambda w, s: prune(w, 1 - s), "How many is that share"),
    "places for free": (
        "23-4",
        lambda w, s: (prune(w, s)[0], prune(w, s)[1] // 2),
        "4 for its place",
    ),
    "no function": ("23-4", 3.0, "Write it with `def`"),
}


def test_oracle_of_orders_agrees_with_the_schedules_of_the_package():
    for name, stages, number in (("gpipe", 3, 4), ("1f1b", 4, 6), ("1f1b", 3, 2)):
        rows = [
            [(kind[0].upper(), m) for kind, m in schedules.order(name, stage, stages, number)]
            for stage in range(stages)
        ]
        cells = schedules.predict(name, stages, number)
        assert nb23._seconds(rows) == max(cell.end_s for cell in cells)
    assert nb23._seconds([[("B", 0), ("F", 0)]]) is None


def mixture(comm, tokens, choice, expert, fault=""):
    wanted = np.argsort(choice, kind="stable")
    to = [tokens[choice == rank] for rank in range(comm.size)]
    came = comm.alltoall(to)
    if fault == "nothing sent":
        return expert(tokens)
    if fault == "no expert":
        return tokens
    done = came if fault == "only moved" else [expert(each) for each in came]
    back = np.concatenate(comm.alltoall(done))
    if fault == "one row lost":
        return back[1:]
    if fault == "order":
        return back
    out = np.empty_like(back)
    out[wanted] = back
    return out


def test_tokens_that_come_back_in_their_place_are_ticked(cluster, capsys):
    ticked = exercises.check("23-5", mixture, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "nothing sent": "used its own expert",
        "no expert": "No expert has worked",
        "order": "order of the tokens",
        "one row lost": "As many tokens come back",
    }.items(),
)
def test_fault_is_named_on_more_than_one_rank(fault, hint, cluster, capsys):
    def faulty(*arguments):
        return mixture(*arguments, fault=fault)

    ticked = exercises.check("23-5", faulty, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and fault in ("nothing sent", "order"):
        assert ticked
    else:
        assert not ticked
        assert hint in out


def test_mixture_that_returns_nothing_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("23-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out


def test_lists_do_as_well_as_tuples():
    for kind in (list, tuple):
        assert exercises.check("23-2", lambda *a, kind=kind: kind(map(kind, order(*a))))
        assert exercises.check("23-3", lambda *a, kind=kind: kind(local(*a)), "c")
        assert exercises.check("23-4", lambda *a, kind=kind: kind(prune(*a)))
