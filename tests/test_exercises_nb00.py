"""Notebook 00's checks tick what is right on real ranks and refuse the usual mistakes."""

import os
from types import SimpleNamespace

import numpy as np
import pytest

from dlguide import exercises
from dlguide.exercises import nb00, on_ranks


def who_am_i(comm):
    return comm.rank, comm.size, os.getpid()


def deal(comm, total):
    return list(range(comm.rank, total, comm.size))


def test_cores_are_those_of_the_machine():
    machine = SimpleNamespace(usable_cores=2)
    assert exercises.check("00-1", 2, machine)
    for answer in (2.0, np.int64(2), " 2 "):
        assert exercises.check("00-1", answer, machine)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (4, "physical cores"),
        ("4", "physical cores"),
        (1, "needs no core while"),
        ([2, 2], "as many ranks as"),
        ("two", "as many ranks as"),
    ],
)
def test_wrong_number_of_cores_gets_its_hint(answer, hint, capsys):
    assert not exercises.check("00-1", answer, SimpleNamespace(usable_cores=2))
    assert hint in capsys.readouterr().out


EXPLAINED = dict(
    zip(("empty", "gone", "no faster", "two nets", "refused", "wide"), "CEAFBD", strict=True)
)
RIGHT = {"00-4": EXPLAINED}
EMPTY = {"00-4": [dict.fromkeys(EXPLAINED, ...)]}
WRONG = {
    "a copy is no new memory": ("00-4", {**EXPLAINED, "empty": "E"}, "Whose list"),
    "lost by a restart": ("00-4", {**EXPLAINED, "gone": "C"}, "before and after a restart"),
    "images/s of the whole job": ("00-4", {**EXPLAINED, "no faster": "D"}, "What else happens"),
    "digests differ by rounding": ("00-4", {**EXPLAINED, "two nets": "D"}, "What was not equal"),
    "refused by a copy": ("00-4", {**EXPLAINED, "refused": "C"}, "second line of the stamp"),
    "wide by setting up": ("00-4", {**EXPLAINED, "wide": "A"}, "one repeat to the next"),
    "a word for a letter": ("00-4", {**EXPLAINED, "wide": "noise"}, "from A to F"),
}


def test_right_answers_are_ticked(cluster, capsys):
    ranks = cluster.ranks
    assert exercises.check("00-2", who_am_i, cluster)
    assert exercises.check("00-3", [1] * ranks, 0, cluster)
    assert exercises.check("00-5", deal, cluster)
    assert exercises.check("00-2", lambda comm: [*who_am_i(comm)], cluster)
    assert exercises.check("00-2", lambda comm: np.array(who_am_i(comm)), cluster)
    for on_the_ranks in (tuple([1] * ranks), np.ones(ranks)):
        assert exercises.check("00-3", on_the_ranks, np.int64(0), cluster)
    assert capsys.readouterr().out.count("✔") == 7


def test_wrong_answers_are_told_why(cluster, capsys):
    ranks, here = cluster.ranks, os.getpid()

    def no_answer(comm, *inputs):
        return ...

    def own_pid(comm):
        return comm.rank, comm.size, here

    def swapped(comm):
        return comm.size, comm.rank, os.getpid()

    def everything(comm, total):
        return range(total)

    def blocks(comm, total):
        each = total // comm.size
        end = total if comm.rank == comm.size - 1 else (comm.rank + 1) * each
        return range(comm.rank * each, end)

    def from_one(comm, total):
        return range(1 + comm.rank, total + 1, comm.size)

    def lost(comm, total):
        return range(comm.rank, total - 1, comm.size)

    def refused(number, *answer):
        assert exercises.check(number, *answer) is False
        return capsys.readouterr().out

    assert "is not answered yet" in refused("00-2", no_answer, cluster)
    assert "is not answered yet" in refused("00-5", no_answer, cluster)
    assert "Write it with `def`" in refused("00-2", 7, cluster)
    assert "outside it is the notebook's" in refused("00-2", own_pid, cluster)
    assert "`comm.rank` and `comm.size`" in refused("00-2", swapped, cluster)
    assert "`return rank, ranks, pid`" in refused("00-2", lambda comm: comm.rank, cluster)
    assert "Every rank got a copy" in refused("00-3", [ranks + 1] * ranks, 0, cluster)
    assert "The ranks changed their copies" in refused("00-3", [1] * ranks, ranks, cluster)
    assert "one result for each rank" in refused("00-3", ranks, 0, cluster)
    assert "one result for each rank" in refused("00-3", [1] * (ranks + 1), 0, cluster)
    assert "which number is on no rank" in refused("00-5", lost, cluster)
    assert "The first number is 0" in refused("00-5", from_one, cluster)
    if ranks > 1:
        assert "which number is on two ranks" in refused("00-5", everything, cluster)
    if ranks > 2:
        assert "Who gets the remainder" in refused("00-5", blocks, cluster)


def test_checks_have_their_numbers():
    assert [name for name in vars(nb00) if name.startswith("exercise")] == [
        f"exercise_00_{number}" for number in (1, 2, 3, 4, 5)
    ]


def test_every_rank_gets_its_own_data(cluster):
    def keep(comm, value):
        return comm.rank, value

    inputs = [(10 * rank,) for rank in range(cluster.ranks)]
    came = on_ranks.results(cluster, keep, inputs)
    assert came == [(rank, 10 * rank) for rank in range(cluster.ranks)]
