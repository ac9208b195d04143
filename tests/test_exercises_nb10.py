"""Notebook 10's checks tick what is right and say which usual mistake was made.

Tests dlguide.exercises.nb10.
"""

import math

import numpy as np
import pytest

from dlguide import exercises
from dlguide.exercises import nb10
from dlguide.training import descent


def largest_rate(hessian, momentum):
    return 2 * (1 + momentum) / np.linalg.eigvalsh(hessian).max()


def adam(w, g, mean, square, step, rate, corrected=True, inside=False, keep=True):
    first, second = (1 - 0.9**step, 1 - 0.999**step) if corrected else (1, 1)
    mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
    below = np.sqrt(square / second + 1e-8) if inside else np.sqrt(square / second) + 1e-8
    moved = w - rate * mean / first / below
    return (moved, mean, square) if keep else (moved, mean / first, square / second)


def adam_in_place(w, g, mean, square, step, rate):
    mean *= 0.9
    mean += 0.1 * g
    return adam(w, g, (mean - 0.1 * g) / 0.9, square, step, rate)


def smallest_batch(variance, length, share, samples):
    for batch in range(1, samples + 1):
        noise = math.sqrt(variance / batch * (samples - batch) / (samples - 1))
        if noise <= share * length * (1 + 1e-12):
            return batch


CAUSES = {letter: cause for letter, (cause, _) in nb10.CAUSES.items()}
RIGHT = {"10-1": largest_rate, "10-2": adam, "10-3": CAUSES, "10-4": smallest_batch}
EMPTY = {"10-3": [dict.fromkeys("ABCDE", ...), {**CAUSES, "E": ...}]}
WRONG = {
    "smallest curvature": (
        "10-1",
        lambda h, m: 2 * (1 + m) / np.linalg.eigvalsh(h).min(),
        "steepest direction",
    ),
    "sum of curvatures": ("10-1", lambda h, m: 2 * (1 + m) / np.trace(h), "not a sum"),
    "only the diagonal": ("10-1", lambda h, m: 2 * (1 + m) / np.diag(h).max(), "lies askew"),
    "no momentum": ("10-1", lambda h, m: largest_rate(h, 0), "bears more"),
    "no function": ("10-1", 0.4, "Write it with `def`"),
    "not corrected": ("10-2", lambda *a: adam(*a, corrected=False), "by 1 - b1^step"),
    "corrected for the step before": (
        "10-2",
        lambda w, g, m, s, t, r: adam(w, g, m, s, t + 1, r),
        "by 1 - b1^step",
    ),
    "epsilon in the root": ("10-2", lambda *a: adam(*a, inside=True), "epsilon outside"),
    "corrected memories": ("10-2", lambda *a: adam(*a, keep=False), "stay uncorrected"),
    "changed arguments": ("10-2", adam_in_place, "Make new arrays"),
    "only the weights": ("10-2", lambda *a: adam(*a)[:1], "three arrays"),
    "uphill": ("10-2", lambda w, *a: (2 * w - adam(w, *a)[0], *adam(w, *a)[1:]), "how far"),
    "A is not noise": ("10-3", {**CAUSES, "A": "noise", "E": "rate too small"}, "straight line"),
    "D is not over-fitting": (
        "10-3",
        {**CAUSES, "C": "too few updates", "D": "over-fitting"},
        "while the test loss rises",
    ),
    "D is not a small rate": (
        "10-3",
        {**CAUSES, "D": "rate too small"},
        "with a small batch the same rate was fine",
    ),
    "another word": ("10-3", {**CAUSES, "B": "explosion"}, "for B one of"),
    "a letter is missing": ("10-3", {"A": "noise"}, "letters A, B, C, D, E"),
    "with putting back": (
        "10-4",
        lambda v, g, s, n: math.ceil(v / (s * g) ** 2 - 1e-9),
        "a smaller one would do",
    ),
    "more than all": (
        "10-4",
        lambda v, g, s, n: math.ceil(v / (s * g) ** 2) if s < 0.1 else smallest_batch(v, g, s, n),
        "More than all samples",
    ),
    "noise not squared": (
        "10-4",
        lambda v, g, s, n: math.ceil(v / (s * g)),
        "too much",
    ),
    "one too few": ("10-4", lambda *a: smallest_batch(*a) - 1, "too much"),
    "a fraction": ("10-4", lambda v, g, s, n: v * n / ((s * g) ** 2 * (n - 1) + v), "rounded up"),
}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_limit_of_the_rate_is_where_walks_begin_to_rise(momentum):
    import keras

    hessian = np.array([[3.0, 1.0], [1.0, 2.0]])
    for share, falls in ((0.98, True), (1.02, False)):
        rate = float(share * largest_rate(hessian, momentum))
        optimizer = keras.optimizers.SGD(rate, momentum)
        end = descent.walk(lambda point: hessian @ point, [1.0, 0.3], optimizer, 600)[-1]
        assert bool(np.linalg.norm(end) < 1) == falls


def test_model_answer_of_adam_is_keras_adam():
    import keras

    gradient = descent.bowl((1.0, 7.0)).gradient
    walked = descent.walk(gradient, [1.0, -2.0], keras.optimizers.Adam(0.1, epsilon=1e-8), 10)
    w, mean, square = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step in range(1, 11):
        w, mean, square = adam(w, gradient(w), mean, square, step, 0.1)
        assert np.allclose(w, walked[step], atol=1e-4)  # Keras' 0.999 is of single precision


def generation(comm, draw, loss, parents, mine=None, order=True, best=True, nbytes=None):
    children = draw()
    own = range(comm.rank, len(children), comm.size) if mine is None else mine(comm, children)
    parts = comm.allgather([(index, loss(children[index])) for index in own])
    losses = [value for part in parts for value in (sorted(part) if order else part)]
    ranked = sorted(losses, key=lambda one: one[1] if best else -one[1])[:parents]
    kept = [children[index if order else place] for place, (index, _) in enumerate(ranked)]
    return np.mean(kept, axis=0), nbytes or 8 * len(children)


def test_generation_of_all_ranks_is_ticked(cluster, capsys):
    ticked = exercises.check("10-5", generation, cluster)
    assert ticked, capsys.readouterr().out


FAULTS = {
    "everybody judges all": (
        {"mine": lambda comm, children: range(len(children))},
        "by one of",
        2,
    ),
    "rank 0 judges all": (
        {"mine": lambda comm, children: range(len(children) if comm.rank == 0 else 0)},
        "equal work",
        2,
    ),
    "the rest is forgotten": (
        {
            "mine": lambda comm, children: range(
                comm.rank * (len(children) // comm.size),
                (comm.rank + 1) * (len(children) // comm.size),
            )
        },
        "judged once",
        2,
    ),
    "the worst survive": ({"best": False}, "smallest losses are the best", 1),
    "losses of other children": ({"order": False}, "still belong", 1),
    "bytes of one rank": ({"nbytes": 8}, "no child travels", 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_of_a_generation_is_named(fault, cluster, capsys):
    how, hint, ranks = FAULTS[fault]
    ticked = exercises.check("10-5", lambda *a: generation(*a, **how), cluster)
    out = capsys.readouterr().out
    if cluster.ranks < ranks:
        assert ticked
    else:
        assert not ticked
        assert hint in out


def test_generation_that_is_empty_is_not_answered(cluster, capsys):
    assert not exercises.check("10-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
    assert not exercises.check("10-5", lambda *arguments: 1.0, cluster)
    assert "judged once" in capsys.readouterr().out
