"""Notebook 21's checks tick what is right on 1 to 4 ranks and say which usual mistake was made."""

import itertools
import math

import numpy as np
import pytest

from dlguide import exercises


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cluster_ranks(request):
    return request.param


def seconds(name, ranks, nbytes, latency_s, byte_s):
    log = math.log2(ranks)
    if name in ("tree", "recursive_doubling"):
        return (2 if name == "tree" else 1) * log * (latency_s + nbytes * byte_s)
    messages = 2 * (ranks - 1) if name == "ring" else 2 * log
    return messages * latency_s + 2 * (ranks - 1) / ranks * nbytes * byte_s


def crossover(ranks, latency_s, byte_s):
    if ranks == 2:
        return math.inf
    log = math.log2(ranks)
    return (2 * (ranks - 1) - log) * latency_s / ((log - 2 * (ranks - 1) / ranks) * byte_s)


CLAIMS = {"a": False, "b": False, "c": True, "d": True, "e": False}
RIGHT = {"21-1": seconds, "21-2": CLAIMS, "21-3": crossover}
EMPTY = {"21-2": [dict.fromkeys("abcde", ...)]}
WRONG = {
    "tree only down": (
        "21-1",
        lambda n, *more: seconds("recursive_doubling" if n == "tree" else n, *more),
        "tree: see the table",
    ),
    "natural logarithm": (
        "21-1",
        lambda n, p, *more: seconds(n, p, *more) * (0.69 if "doubling" in n else 1),
        "base 2",
    ),
    "ring of p steps": ("21-1", lambda n, p, m, a, b: seconds(n, p, m, a, b) + a, "Expected"),
    "no function": ("21-1", 1.0, "Write it with `def`"),
    "ring beats all": ("21-2", {**CLAIMS, "a": True}, "one library's allreduce"),
    "one column is enough": ("21-2", {**CLAIMS, "b": True}, "divide by what"),
    "unequal for two": ("21-2", {**CLAIMS, "c": False}, "Put p = 2"),
    "tables may differ": ("21-2", {**CLAIMS, "d": False}, "never sends"),
    "bytes grow": ("21-2", {**CLAIMS, "e": True}, "ever exceed 2"),
    "one letter missing": ("21-2", {"a": False}, "each of a to e"),
    "a text": ("21-2", {**CLAIMS, "c": "yes"}, "True or False for claim c"),
    "finite for two": (
        "21-3",
        lambda p, a, b: crossover(p, a, b) if p > 2 else a / b,
        "the times are never equal",
    ),
    "upside down": (
        "21-3",
        lambda p, a, b: crossover(p, 1 / a, 1 / b) if p > 2 else math.inf,
        "spared bytes",
    ),
    "half of the ring": (
        "21-3",
        lambda p, a, b: crossover(p, a, b) / 2 if p > 2 else math.inf,
        "solve for n",
    ),
}


def ring(comm, array, fault=""):
    p, rank = comm.size, comm.rank
    bounds = [part * array.size // p for part in range(p + 1)]
    parts = [array[start:stop] for start, stop in itertools.pairwise(bounds)]
    for adds in (True, False):
        for step in range(p - 1 - (fault == "a step too few" and not adds)):
            out, come = parts[(rank - step + (not adds)) % p], parts[(rank - step - adds) % p]
            space = np.empty_like(come)
            comm.Sendrecv(out, (rank + 1) % p, 0, space, (rank - 1) % p, 0)
            come[:] = come + space if adds else space
    return array


def whole_arrays(comm, array):
    total, on_its_way = array.copy(), array.copy()
    for _ in range(comm.size - 1):
        space = np.empty_like(array)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        comm.Sendrecv(on_its_way, right, 0, space, left, 0)
        on_its_way = space
        total += space
    return total


def by_library(comm, array):
    from mpi4py import MPI

    comm.Allreduce(MPI.IN_PLACE, array)
    return array


def test_ring_is_ticked(cluster, capsys):
    ticked = exercises.check("21-4", ring, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "hint", "from_ranks"),
    [
        (by_library, "messages between neighbours", 1),
        (lambda comm, array: array, "still has its own numbers", 2),
        (lambda comm, array: ring(comm, array, "a step too few"), "Which part does a rank send", 2),
        (whole_arrays, "not the whole array", 3),
        (lambda comm, array: None, "Nothing came back", 1),
    ],
    ids=["library", "nothing done", "a step too few", "whole arrays", "returns nothing"],
)
def test_wrong_ring_gets_its_hint(answer, hint, from_ranks, cluster, capsys):
    if cluster.ranks < from_ranks:
        pytest.skip("the mistake does not show on so few ranks")
    assert not exercises.check("21-4", answer, cluster)
    assert hint in capsys.readouterr().out


def test_empty_ring_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("21-4", lambda comm, array: ..., cluster)
    assert capsys.readouterr().out == "… Exercise 21-4 is not answered yet.\n"
