"""Notebook 42's checks tick what is right and say which usual mistake was made."""

import itertools
import math

import numpy as np
import pytest

from dlguide import exercises
from dlguide.exercises import nb42
from dlguide.scaling import reading
from dlguide.scaling.storage import Clients, Lustre, epoch


def samples_per_file(samples, epoch_s, opens_per_s, share):
    return math.ceil(samples / (share * opens_per_s * epoch_s))


def place_of(offset, stripe, count, first, targets):
    number = offset // stripe
    return (first + number % count) % targets, number // count * stripe + offset % stripe


CAUSES = {
    "A": "metadata",
    "B": "requests",
    "C": "latency",
    "D": "client link",
    "E": "bandwidth",
}
RIGHT = {"42-1": samples_per_file, "42-2": place_of, "42-3": CAUSES}
EMPTY = {"42-3": [dict.fromkeys("ABCDE", ...), CAUSES | {"E": ...}]}
WRONG = {
    "a second in place of an epoch": ("42-1", lambda n, t, w, s: n / (s * w), "not in one second"),
    "rounded down": ("42-1", lambda n, t, w, s: n // (s * w * t), "rounded up"),
    "all opens are ours": ("42-1", lambda n, t, w, s: math.ceil(n / (w * t)), "rounded up"),
    "no whole number": ("42-1", lambda n, t, w, s: n / (s * w * t), "whole number"),
    "over all targets": (
        "42-2",
        lambda o, s, c, f, t: ((f + o // s) % t, place_of(o, s, c, f, t)[1]),
        "`count` of them",
    ),
    "behind the last target": (
        "42-2",
        lambda o, s, c, f, t: (f + o // s % c, place_of(o, s, c, f, t)[1]),
        "comes target 0",
    ),
    "byte in the file": (
        "42-2",
        lambda o, s, c, f, t: (place_of(o, s, c, f, t)[0], o),
        "byte in the file",
    ),
    "byte in the stripe": (
        "42-2",
        lambda o, s, c, f, t: (place_of(o, s, c, f, t)[0], o % s),
        "lie before it",
    ),
    "target alone": ("42-2", lambda *all_of: place_of(*all_of)[0], "two numbers"),
    "bytes blamed": ("42-3", CAUSES | {"B": "bandwidth"}, "not the bytes"),
    "opens blamed": ("42-3", CAUSES | {"C": "metadata"}, "No server is busy"),
    "targets blamed": ("42-3", CAUSES | {"D": "bandwidth"}, "what belongs to a node"),
    "requests blamed": ("42-3", CAUSES | {"A": "requests"}, "Who is left"),
    "unknown cause": ("42-3", CAUSES | {"A": "the weather"}, "one of bandwidth"),
    "one forgotten": ("42-3", {"A": "metadata"}, "nothing for B, C, D, E"),
}


def test_place_of_a_byte_is_where_writing_byte_after_byte_puts_it():
    for stripe, count, first, targets in ((4, 3, 2, 5), (1, 1, 0, 3), (3, 4, 3, 4)):
        filled = [0] * targets
        for offset in range(60):
            target = (first + offset // stripe % count) % targets
            assert place_of(offset, stripe, count, first, targets) == (target, filled[target])
            filled[target] += 1


LUSTRE = {"metadata_servers": 1, "opens_per_s": 20e3, "targets": 100, "bytes_per_s": 500e6}
LUSTRE |= {"requests_per_s": 1000, "latency_s": 1e-3}
SMALL = reading.one_file_each(1_280_000, 32_812.5)
IN_ORDER = reading.packed(1_280_000, 32_812.5, 1024, 10)


def limit(read, count, in_flight=16, **more):
    found = epoch(Lustre(**LUSTRE | more), read, Clients(count, 1.25e9, in_flight))
    return found.limit, found.least_s


def test_the_model_says_what_each_observation_says():
    # A: the same 64 s with half the nodes
    assert limit(SMALL, 448) == limit(SMALL, 224) == ("metadata", 64.0)
    # B: one file on one target, samples at random: 21 minutes, 33 MB/s
    at_random = reading.packed(1_280_000, 32_812.5, 1, 448, access="random")
    assert limit(at_random, 448) == ("requests", 1280.0)
    assert at_random.nbytes / 1280 == pytest.approx(32.8e6, rel=0.01)
    # C: two nodes, one request at a time: 21 minutes; two at a time: half
    assert limit(SMALL, 2, in_flight=1) == ("latency", pytest.approx(1280.0))
    assert limit(SMALL, 2, in_flight=2) == ("latency", pytest.approx(640.0))
    # D: ten nodes: 3.4 s, whatever is under way; twenty: half
    assert limit(IN_ORDER, 10) == limit(IN_ORDER, 10, 32) == ("client link", pytest.approx(3.36))
    assert limit(IN_ORDER, 20) == ("client link", pytest.approx(1.68))
    # E: one file in order: 84 s on one target, 0.84 s on 100
    single = reading.packed(1_280_000, 32_812.5, 1, 448)
    assert limit(single, 448) == ("bandwidth", pytest.approx(84.0))
    assert limit(single, 448, stripe_count=100) == ("bandwidth", pytest.approx(0.84))
    assert {cause for cause, _ in nb42.CAUSES.values()} == set(CAUSES.values())


# --- 42-4 on ranks -----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cluster_ranks(request):
    return request.param


def fetch(comm, kept, wanted, owner=None, row=None, ordered=True):
    ranks = comm.size
    owner = owner or (lambda sample: sample % ranks)
    row = row or (lambda numbers: numbers // ranks)
    asked = [[s for s in wanted.tolist() if owner(s) == rank] for rank in range(ranks)]
    parts = [kept[row(np.array(each, int))] for each in comm.alltoall(asked)]
    rows = np.concatenate(comm.alltoall(parts))
    if not ordered:
        return rows
    found = dict(zip(itertools.chain(*asked), rows, strict=True))
    return np.array([found[s] for s in wanted.tolist()])


def everything_to_all(comm, kept, wanted):
    parts = comm.allgather(kept)
    return np.array([parts[s % comm.size][s // comm.size] for s in wanted.tolist()])


def everything_as_arrays(comm, kept, wanted):
    parts = []
    for root, rows in enumerate(comm.allgather(len(kept))):
        parts.append(kept if comm.rank == root else np.empty((rows, kept.shape[1])))
        comm.Bcast(parts[root], root=root)
    return np.array([parts[s % comm.size][s // comm.size] for s in wanted.tolist()])


def from_the_neighbour(comm, kept, wanted):
    other = lambda sample: (sample + 1) % comm.size  # noqa: E731
    return fetch(comm, kept, wanted, other, lambda numbers: numbers // comm.size % len(kept))


def the_wrong_row(comm, kept, wanted):
    return fetch(comm, kept, wanted, row=lambda numbers: 0 * numbers)


def test_rows_from_their_owners_are_ticked(cluster, capsys):
    ticked = exercises.check("42-4", fetch, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda *given: fetch(*given, ordered=False), "another order"),
        (everything_to_all, "room for all"),
        (everything_as_arrays, "room for all"),
        (from_the_neighbour, "does not keep them"),
        (the_wrong_row, "The owner is right"),
        (lambda comm, kept, wanted: kept[:3], "One row for each"),
        (lambda *given: [row[:3] for row in fetch(*given)], "rows of 500 numbers"),
    ],
)
def test_mistake_is_named(answer, hint, cluster, capsys):
    ticked = exercises.check("42-4", answer, cluster)
    out = capsys.readouterr().out
    # one rank alone has all rows and no neighbour: some mistakes cannot show
    if ticked:
        assert cluster.ranks == 1
        assert "no peers" in out
    else:
        assert hint in out


def test_empty_answer_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("42-4", lambda *given: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out


def test_causes_may_be_written_large():
    assert exercises.check("42-3", {letter: cause.upper() for letter, cause in CAUSES.items()})
