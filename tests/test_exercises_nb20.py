"""Notebook 20's checks tick what is right on 1 to 4 ranks and say which usual mistake was made."""

import math

import numpy as np
import pytest

from dlguide import exercises
from dlguide.data import datasets


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cluster_ranks(request):
    return request.param


def adapt(ranks, samples, batch, rate):
    steps = -(-samples // (ranks * batch))
    return rate * ranks, steps, samples - (steps - 1) * ranks * batch


def in_pieces(gradient, samples, piece):
    pieces = np.split(np.arange(samples), range(piece, samples, piece))
    return sum(len(part) * gradient(part) for part in pieces) / samples


def images_per_s(ranks, batch, image_s, nbytes, bytes_per_s):
    exchange_s = 2 * (ranks - 1) / ranks * nbytes / bytes_per_s
    return ranks * batch / (batch * image_s + exchange_s)


RIGHT = {"20-1": adapt, "20-2": in_pieces, "20-3": images_per_s}
WRONG = {
    "steps rounded down": ("20-1", lambda p, n, b, r: (r * p, n // (p * b), b * p), "steps"),
    "one rank's steps": ("20-1", lambda p, n, b, r: (r * p, -(-n // b), b), "steps"),
    "same rate": ("20-1", lambda p, n, b, r: (r, *adapt(p, n, b, r)[1:]), "linear rule"),
    "full last step": (
        "20-1",
        lambda p, n, b, r: (r * p, -(-n // (p * b)), n % (p * b)),
        "never 0",
    ),
    "pieces not weighed": (
        "20-2",
        lambda g, n, k: np.mean([g(np.arange(n)[i : i + k]) for i in range(0, n, k)], axis=0),
        "Weigh each",
    ),
    "all at once": ("20-2", lambda g, n, k: g(np.arange(n)), "pieces of 1 to 25"),
    "pieces overlap": (
        "20-2",
        lambda g, n, k: np.mean(
            [g(range(i, min(i + k, n))) for i in range(0, n, max(1, k - 1))], axis=0
        ),
        "where does a piece begin",
    ),
    "last piece lost": (
        "20-2",
        lambda g, n, k: np.mean([g(range(i, i + k)) for i in range(0, n - k + 1, k)], axis=0),
        "may be shorter",
    ),
    "one rank's images": (
        "20-3",
        lambda p, b, s, n, w: images_per_s(p, b, s, n, w) / p,
        "images of one rank",
    ),
    "batch shared among the ranks": (
        "20-3",
        lambda p, b, s, n, w: images_per_s(p, b / p, s, n, w),
        "do not make it smaller",
    ),
    "bytes one way": (
        "20-3",
        lambda p, b, s, n, w: images_per_s(p, b, s, n / 2, w),
        "Images of all ranks",
    ),
    "bytes once": (
        "20-3",
        lambda p, b, s, n, w: p * b / (b * s + n / w),
        "One rank exchanges nothing",
    ),
    "no function": ("20-3", 3.0, "Write it with `def`"),
}


def test_oracle_of_steps_agrees_with_the_batches_of_the_package():
    for ranks, samples, batch in ((1, 100, 10), (2, 101, 10), (3, 100, 7), (4, 64, 16)):
        parts = datasets.epoch_batches(samples, batch, 0, ranks)
        assert adapt(ranks, samples, batch, 1.0)[1:] == (len(parts), parts[-1].global_size)


def test_prediction_of_one_rank_is_its_own_speed():
    assert math.isclose(images_per_s(1, 10, 0.01, 10**9, 1.0), 100)


SEEN = {"weights": "A", "mine": "B", "step": "c"}


def train(comm, order, batch, rate, gradient, first_weights, faults=()):
    from mpi4py import MPI

    weights = first_weights(comm.rank)
    if "no broadcast" not in faults:
        comm.Bcast(weights)
    mine = order if "unsharded" in faults else order[comm.rank :: comm.size]
    for begin in range(0, len(mine), batch):
        part = mine[begin : begin + batch]
        step = gradient(weights, part) / len(part)
        comm.Allreduce(MPI.IN_PLACE, step)
        weights -= rate * step / (1 if "sum for mean" in faults else comm.size)
    return weights


def with_faults(*faults):
    return lambda *arguments: train(*arguments, faults=faults)


def test_training_without_faults_is_ticked(cluster, capsys):
    ticked = exercises.check("20-4", SEEN, train, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("faults", "hint"),
    {
        ("no broadcast",): "those of rank 0",
        ("unsharded",): "who takes which ones",
        ("sum for mean",): "times too long",
        ("unsharded", "sum for mean"): "Two faults are left",
        ("no broadcast", "unsharded", "sum for mean"): "those of rank 0",
    }.items(),
)
def test_fault_is_named_on_more_than_one_rank(faults, hint, cluster, capsys):
    ticked = exercises.check("20-4", SEEN, with_faults(*faults), cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1:
        assert ticked
        assert "hides all three faults" in out
    else:
        assert not ticked
        assert hint in out


def test_training_that_forgets_to_return_is_wrong_or_not_answered(cluster, capsys):
    assert not exercises.check("20-4", SEEN, lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
    assert not exercises.check("20-4", {**SEEN, "step": ...}, train, cluster)
    assert "not answered yet" in capsys.readouterr().out
    assert not exercises.check("20-4", SEEN, lambda *arguments: 1.0, cluster)
    assert "shape (3,)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seen", "hint"),
    [
        ({**SEEN, "weights": "D"}, "Which one belongs to a missing broadcast"),
        ({**SEEN, "mine": "E"}, "How many steps are that"),
        ({**SEEN, "step": "A"}, "in place of their mean"),
        ({**SEEN, "step": "F"}, "one of the letters A, B, C, D, E"),
        ("ABC", "a dictionary from line to letter"),
    ],
)
def test_wrong_explanation_of_a_fault_gets_its_hint(seen, hint, capsys):
    assert not exercises.check("20-4", seen, train, "no ranks are asked")
    assert hint in capsys.readouterr().out
