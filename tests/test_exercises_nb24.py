"""Notebook 24's checks tick what is right and say which usual mistake was made.

Tests dlguide.exercises.nb24.
"""

import math

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises
from dlguide.exercises import nb24
from dlguide.parallel import compression, fusion


def nbytes(shapes, fraction, place=4, least=1, small=256, whole=True):
    total = 0
    for shape in shapes:
        size = math.prod(shape)
        message = (4 + place) * max(least, round(fraction * size))
        sent_whole = size < small or (whole and message >= 4 * size)
        total += 4 * size if sent_whole else message
    return total


def step(gradient, error, k, key=np.abs, add=True, keep=True):
    total = gradient + error
    ranked = key(total if add else gradient).reshape(-1)
    sent = np.zeros(total.size)
    places = np.argsort(ranked)[-k:]
    sent[places] = (total if add else gradient).reshape(-1)[places]
    sent = sent.reshape(total.shape)
    return sent, (total if keep else gradient) - sent


def in_place(gradient, error, k):
    gradient += error
    return step(gradient, 0 * error, k)


def break_even(gradient, message, ranks, coding_s, ring=True, gather=True, floor=True):
    whole = 2 * (ranks - 1) / ranks * gradient if ring else gradient
    sent = (ranks - 1) * message if gather else message
    speed = (whole - sent) / coding_s
    return max(0.0, speed) if floor else speed


def fuse(sizes, threshold, equal=True, last=True):
    messages, filled = [], 0
    for size in sizes:
        fits = filled + size <= threshold if equal else filled + size < threshold
        if filled and not fits:
            messages.append(filled)
            filled = 0
        filled += size
        if not threshold:
            messages.append(filled)
            filled = 0
    return messages + [filled] * bool(filled and last)


def add_until_full(sizes, threshold):
    messages = []
    for size in sizes:
        if messages and messages[-1] < threshold:
            messages[-1] += size
        else:
            messages.append(size)
    return messages


EMPTY = {"24-3": [Parts((lambda *arguments: ..., "B")), Parts((break_even, ...))]}
RIGHT = {"24-1": nbytes, "24-2": step, "24-3": Parts((break_even, "B")), "24-4": fuse}
WRONG = {
    "places for free": ("24-1", lambda s, f: nbytes(s, f, place=0), "places travel"),
    "none sent": ("24-1", lambda s, f: nbytes(s, f, least=0), "At least one"),
    "biases cut": ("24-1", lambda s, f: nbytes(s, f, small=0), "sent whole"),
    "larger than before": ("24-1", lambda s, f: nbytes(s, f, whole=False), "larger than the array"),
    "by sign": ("24-2", lambda *a: step(*a, key=lambda x: x), "absolute value"),
    "error not added": ("24-2", lambda *a: step(*a, add=False), "Add the error"),
    "old error lost": ("24-2", lambda *a: step(*a, keep=False), "old error is lost"),
    "in place": ("24-2", in_place, "Work on a copy"),
    "only what is sent": ("24-2", lambda *a: step(*a)[0], "two arrays"),
    "all is kept": ("24-2", lambda g, e, k: (step(g, e, k)[0], g + e), "not sent stays"),
    "no ring": ("24-3", Parts((lambda *a: break_even(*a, ring=False), "B")), "twice the gradient"),
    "no gathering": (
        "24-3",
        Parts((lambda *a: break_even(*a, gather=False), "B")),
        "grows with the ranks",
    ),
    "bytes only": (
        "24-3",
        Parts((lambda *a: break_even(*a, ring=False, gather=False), "B")),
        "What leaves a rank",
    ),
    "below zero": ("24-3", Parts((lambda *a: break_even(*a, floor=False), "B")), "Return 0"),
    "a text": ("24-3", Parts((lambda *a: "slow", "B")), "a number"),
    "coding blamed": ("24-3", Parts((break_even, "A")), "whatever the ranks"),
    "accuracy blamed": ("24-3", Parts((break_even, "C")), "Accuracy does not stand"),
    "links blamed": ("24-3", Parts((break_even, "d")), "What one link can carry"),
    "no reason": ("24-3", Parts((break_even, 3)), "one of the letters A, B, C, D"),
    "one too much": ("24-4", add_until_full, "larger than the threshold"),
    "last lost": ("24-4", lambda *a: fuse(*a, last=False), "last message"),
    "below the threshold": ("24-4", lambda *a: fuse(*a, equal=False), "Equal to the threshold"),
    "no fusion": ("24-4", lambda sizes, threshold: sizes, "Fill a message"),
    "all at once": ("24-4", lambda sizes, threshold: [sum(sizes)], "larger than the threshold"),
    "sorted": ("24-4", lambda s, t: fuse(sorted(s), t), "nothing is put to it"),
    "no function": ("24-4", 3.0, "Write it with `def`"),
}


def test_bytes_of_the_exercise_are_those_of_the_package():
    for fraction in (0.001, 0.01, 0.1, 0.75):
        way = compression.top_k(fraction)
        for shape in (*nb24.MNIST_CNN, (300, 10), (20, 20), (255,), (256,)):
            size = math.prod(shape)
            assert nb24._top_k_nbytes(size, fraction) == way.nbytes(shape, 2), shape


def test_step_of_the_exercise_is_that_of_the_package():
    random, way = np.random.default_rng(0), compression.top_k(0.05, small=0)
    gradient = random.normal(size=(10, 10))
    there = way.codec.decode(way.codec.encode(gradient), gradient.shape, gradient.dtype)
    assert np.array_equal(there, nb24._largest(gradient, 5))


def test_messages_of_the_exercise_are_those_of_the_package():
    sizes = np.random.default_rng(1).integers(1, 100, 60).tolist()
    for threshold in (0, 50, 99, 100, 400, 10**6):
        messages = [sum(sizes[i] for i in one) for one in fusion.fused(sizes, threshold)]
        assert nb24._fused(sizes, threshold) == messages


def train(comm, weights, gradient, rate, steps, every, fault=""):
    from mpi4py import MPI

    weights, sent, drifts = weights.copy(), 0, []
    for number in range(steps):
        weights -= rate * gradient(weights, number)
        last = number + 1 == steps and fault != "no last meeting"
        if (number + 1) % every == 0 or last:
            mean = weights.copy()
            comm.Allreduce(MPI.IN_PLACE, mean)
            if fault != "sum":
                mean /= comm.size
            if fault == "signed":
                drifts.append((weights - mean).max())
            else:
                drifts.append(np.abs(weights - mean).max())
            if fault != "rank 0 only" or comm.rank == 0:
                weights = mean
            sent += weights.size if fault == "numbers" else weights.nbytes
        if fault == "twice at the end" and number + 1 == steps:
            drifts.append(0.0)
    return (weights, sent) if fault == "two things" else (weights, sent, drifts)


def test_local_sgd_is_ticked(cluster, capsys):
    ticked = exercises.check("24-5", train, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "sum": "divide it by the ranks",
        "rank 0 only": "Only rank 0 has the mean",
        "signed": "as absolute values",
        "numbers": "The whole array",
        "no last meeting": "once at the end",
        "twice at the end": "not twice",
        "two things": "three things",
    }.items(),
)
def test_fault_is_named_on_more_than_one_rank(fault, hint, cluster, capsys):
    def faulty(*arguments):
        return train(*arguments, fault=fault)

    ticked = exercises.check("24-5", faulty, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and fault in ("sum", "rank 0 only", "signed"):
        assert ticked
    else:
        assert not ticked
        assert hint in out


def test_training_that_returns_nothing_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("24-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out


def test_every_exercise_of_the_module_is_tested():
    there = {name for name in vars(nb24) if name.startswith("exercise_24_")}
    assert there == {f"exercise_24_{number}" for number in range(1, 6)}


def test_sizes_and_speeds_may_be_of_any_kind():
    for kind in (tuple, np.array):
        assert exercises.check("24-4", lambda sizes, most, kind=kind: kind(fuse(sizes, most)))
    assert exercises.check("24-3", lambda *a: np.float64(break_even(*a)), " b ")
    assert exercises.check("24-2", lambda *a: list(step(*a)))
