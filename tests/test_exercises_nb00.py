"""Notebook 00's checks tick what is right on real ranks and refuse the usual mistakes."""

import os
from types import SimpleNamespace

from dlguide import exercises
from dlguide.exercises import nb00, on_ranks


def who_am_i(comm):
    return comm.rank, comm.size, os.getpid()


def deal(comm, total):
    return list(range(comm.rank, total, comm.size))


def test_cores_are_those_of_the_machine(capsys):
    machine = SimpleNamespace(usable_cores=2)
    assert exercises.check("00-1", 2, machine)
    assert not exercises.check("00-1", 4, machine)
    assert "physical cores" in capsys.readouterr().out


def test_right_answers_are_ticked(cluster, capsys):
    ranks = cluster.ranks
    assert exercises.check("00-2", who_am_i, cluster)
    assert exercises.check("00-3", [1] * ranks, 0, cluster)
    assert exercises.check("00-4", deal, cluster)
    assert capsys.readouterr().out.count("✔") == 3


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

    def refused(number, *answer):
        assert exercises.check(number, *answer) is False
        return capsys.readouterr().out

    assert "is not answered yet" in refused("00-2", no_answer, cluster)
    assert "is not answered yet" in refused("00-4", no_answer, cluster)
    assert "Write it with `def`" in refused("00-2", 7, cluster)
    assert "outside it is the notebook's" in refused("00-2", own_pid, cluster)
    assert "`comm.rank` and `comm.size`" in refused("00-2", swapped, cluster)
    assert "Every rank got a copy" in refused("00-3", [ranks + 1] * ranks, 0, cluster)
    assert "The ranks changed their copies" in refused("00-3", [1] * ranks, ranks, cluster)
    if ranks > 1:
        assert "is on no rank, or on two" in refused("00-4", everything, cluster)
    if ranks > 2:
        assert "Who gets the remainder" in refused("00-4", blocks, cluster)


def test_checks_have_their_numbers():
    assert [name for name in vars(nb00) if name.startswith("exercise")] == [
        f"exercise_00_{number}" for number in (1, 2, 3, 4)
    ]


def test_every_rank_gets_its_own_data(cluster):
    def keep(comm, value):
        return comm.rank, value

    inputs = [(10 * rank,) for rank in range(cluster.ranks)]
    came = on_ranks.results(cluster, keep, inputs)
    assert came == [(rank, 10 * rank) for rank in range(cluster.ranks)]
