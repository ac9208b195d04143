"""Notebook 72's checks tick what is right and say which usual mistake was made."""

import pytest

from dlguide import exercises
from dlguide.cluster.batch import Job, course
from dlguide.cluster.explain import explain
from dlguide.exercises import nb72


def paid(nodes, ranks, threads, hours, cores, exclusive):
    return nodes * (cores if exclusive else ranks * threads) * hours


def core_hours(epochs, links, epoch_s, before_s, cores):
    return cores * (epochs * epoch_s + links * before_s) / 3600


LETTERS = {line: letter for line, (letter, _) in nb72.MISTAKES.items()}
FIRST, HYPHEN, OPENIB, SHARED, EXPORT, NODES = nb72.MISTAKES
RIGHT = {"72-1": paid, "72-2": LETTERS, "72-3": core_hours}
EMPTY = {"72-2": [dict.fromkeys(LETTERS, ...), LETTERS | {NODES: ...}]}
WRONG = {
    "asked for is paid": ("72-1", lambda n, r, t, h, c, x: n * r * t * h, "idle cores"),
    "all nodes whole": ("72-1", lambda n, r, t, h, c, x: n * c * h, "others pay"),
    "ranks are cores": ("72-1", lambda n, r, t, h, c, x: n * r * h, "`threads` asks for"),
    "one node": (
        "72-1",
        lambda n, r, t, h, c, x: paid(1, r, t, h, c, x) if not x else r * t * h,
        "That is one node",
    ),
    "data not there": ("72-2", LETTERS | {FIRST: "E"}, "look for"),
    "hyphen": ("72-2", LETTERS | {HYPHEN: "C"}, "cannot belong to its name"),
    "network": ("72-2", LETTERS | {OPENIB: "F"}, "all but this"),
    "neighbours": ("72-2", LETTERS | {SHARED: "D"}, "other two GPUs"),
    "export": ("72-2", LETTERS | {EXPORT: "A"}, "follow `export`"),
    "too many nodes": ("72-2", LETTERS | {NODES: "B"}, "Divide"),
    "no letter": ("72-2", LETTERS | {NODES: "Z"}, "a letter from A to F"),
    "staged once": ("72-3", lambda n, k, e, b, c: c * (n * e + b) / 3600, "stages anew"),
    "hours": ("72-3", lambda n, k, e, b, c: (n * e + k * b) / 3600, "all are paid"),
    "seconds": ("72-3", lambda n, k, e, b, c: c * (n * e + k * b), "core-seconds"),
    "last link full": (
        "72-3",
        lambda n, k, e, b, c: c * k * (-(-n // k) * e + b) / 3600,
        "epochs that are left",
    ),
}


def test_what_is_paid_is_what_a_job_says_of_itself():
    job = Job("train.py", nodes=2, ranks_per_node=4, threads=7, time="10:00:00", chain=1)
    assert paid(2, 4, 7, 10, 28, exclusive=False) == job.core_hours == 560


def test_core_hours_of_a_chain_are_those_of_its_spans():
    before = {"queue": 1000.0, "staging": 600.0, "start": 60.0}
    found = course.spans(90, 600.0, 72000.0, before, per_job=10)
    seconds = found[-1].end_s - course.totals(found)["queue"]
    assert core_hours(90, 9, 600, 660, 28) == pytest.approx(28 * seconds / 3600)


def test_mistakes_are_what_the_dictionary_of_launch_lines_says():
    assert "As printed this runs nothing" in "".join(explain(EXPORT).findings)
    told = explain("mpirun -np 8 -bind-to none -mca btl ^openib python train.py")
    assert [each.state for each in told.words if "openib" in each.text] == ["harmful"]
    assert "need 256 nodes" in explain("mpiexec -n 512 -ppn 2 python a.py").findings[0]
    assert sorted(LETTERS.values()) == list("ABCDEF")


# --- 72-4 on ranks -----------------------------------------------------------------------------


def any_of_them(comm, seen):
    return any(comm.allgather(seen))


def rank_0(comm, seen):
    return comm.bcast(seen)


@pytest.mark.parametrize("answer", [any_of_them, rank_0])
def test_ranks_that_agree_are_ticked(answer, cluster, capsys):
    ticked = exercises.check("72-4", answer, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda comm, seen: seen, "The ranks must agree"),
        (lambda comm, seen: False, "nearly over"),
        (lambda comm, seen: True, "Nobody has told them"),
        (lambda comm, seen: comm.reduce(seen) or seen, "The ranks must agree"),
    ],
)
def test_mistake_is_named(answer, hint, cluster, capsys):
    ticked = exercises.check("72-4", answer, cluster)
    out = capsys.readouterr().out
    if ticked:  # one rank alone agrees with itself
        assert cluster.ranks == 1
        assert "try it on two" in out
    else:
        assert hint in out


def test_empty_answer_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("72-4", lambda *given: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
