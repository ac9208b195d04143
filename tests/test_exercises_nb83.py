"""Notebook 83's checks tick what is right and say which usual mistake was made."""

import math
import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster


def area(labels, scores, tie=0.5):
    apart = scores[labels == 1][:, None] - scores[labels == 0]
    return np.mean((apart > 0) + tie * (apart == 0))


def luck(better, of):
    return sum(math.comb(of, k) for k in range(better, of + 1)) / 2**of


def plan(rates, before, now, faults=()):
    good = [at for at, rate in enumerate(rates) if rate >= max(rates) / 2]
    at = len(rates) - 1 if "last" in faults else good[-1]
    at = good[-1] - 1 if "from 0" in faults else at
    first = rates[0] if "first rate" in faults else rates[good[-1]]
    first = first if "falls" in faults else min(first, first * now / before)
    grown = {"shrunk": before / now, "kept": 1.0}
    factor = next((grown[one] for one in faults if one in grown), now / before)
    return at + 1, first, rates[good[-1]] * factor


RESULTS = ("0.99 here, 0.70 elsewhere", "97 % accuracy, 0.50 area", "does not move", "1688 times",
           "10 of 14", "4.7 times")  # fmt: skip
CAUSES = dict(zip(RESULTS, "CFAEBD", strict=True))
RIGHT = {"83-1": area, "83-2": luck, "83-3": plan, "83-4": CAUSES}
EMPTY = {"83-4": [None, dict.fromkeys(RESULTS, ...)]}
WRONG = {
    "ties lost": ("83-1", lambda y, z: area(y, z, 0), "counts half"),
    "ties won": ("83-1", lambda y, z: area(y, z, 1), "not won"),
    "the other way round": ("83-1", lambda y, z: area(y, -z), "other way round"),
    "accuracy": ("83-1", lambda y, z: np.mean((z > 0.5) == y), "one threshold"),
    "sum": ("83-1", lambda y, z: area(y, z) * len(y), "all pairs"),
    "exactly": ("83-2", lambda k, n: math.comb(n, k) / 2**n, "exactly so many"),
    "more than": ("83-2", lambda k, n: luck(k + 1, n), "at least"),
    "share": ("83-2", lambda k, n: k / n, "share of findings"),
    "powers": ("83-2", lambda k, n: 0.5**k, "math.comb"),
    "last checkpoint": ("83-3", lambda *a: plan(*a, ("last",)), "Not the last"),
    "counted from 0": ("83-3", lambda *a: plan(*a, ("from 0",)), "Count epochs from 1"),
    "schedule's first": ("83-3", lambda *a: plan(*a, ("first rate",)), "schedule's first rate"),
    "batch forgotten": ("83-3", lambda *a: plan(*a, ("kept",)), "global batch has changed"),
    "inverse": ("83-3", lambda *a: plan(*a, ("shrunk",)), "other way round"),
    "warmup that falls": ("83-3", lambda *a: plan(*a, ("falls",)), "A warmup rises"),
    "two numbers": ("83-3", lambda *a: plan(*a)[:2], "three numbers"),
    "leak missed": ("83-4", CAUSES | {"0.99 here, 0.70 elsewhere": "B"}, "seen before"),
    "luck missed": ("83-4", CAUSES | {"10 of 14": "E"}, "a coin fall"),
    "baseline missed": ("83-4", CAUSES | {"1688 times": "B"}, "and what else?"),
    "rate missed": ("83-4", CAUSES | {"does not move": "D"}, "end of a schedule"),
}


def area_on_ranks(comm, labels, scores):
    parts = comm.allgather((labels, scores))
    labels, scores = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    apart = scores[labels == 1][:, None] - scores[labels == 0]
    return float(np.mean((apart > 0) + 0.5 * (apart == 0)))


def without_ties(comm, labels, scores):
    parts = comm.allgather((labels, scores))
    labels, scores = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
    return float(np.mean(scores[labels == 1][:, None] > scores[labels == 0]))


def own_area(comm, labels, scores):
    apart = scores[labels == 1][:, None] - scores[labels == 0]
    return float(np.mean((apart > 0) + 0.5 * (apart == 0)))


def mean_of_areas(comm, labels, scores):
    apart = scores[labels == 1][:, None] - scores[labels == 0]
    own = float(np.mean((apart > 0) + 0.5 * (apart == 0)))
    return sum(comm.allgather(own)) / comm.size


@pytest.fixture(scope="module")
def cluster():
    # the answers are sent to the ranks, which do not know this file
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=2, magics=False) as running:
        yield running
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def test_exercise_83_5_takes_the_area_of_all(cluster, capsys):
    assert exercises.check("83-5", area_on_ranks, cluster)
    assert "pairs across ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (mean_of_areas, "mean of the ranks' areas"),
        (own_area, "rank's own radiographs"),
        (without_ties, "A tie counts half"),
        (lambda comm, labels, scores: 0.5, "allgather"),
    ],
)
def test_exercise_83_5_tells_what_is_missing(answer, hint, cluster, capsys):
    assert not exercises.check("83-5", answer, cluster)
    assert hint in capsys.readouterr().out


def test_exercise_83_5_waits_for_an_answer(cluster, capsys):
    assert not exercises.check("83-5", lambda comm, labels, scores: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
