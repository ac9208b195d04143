"""Notebook 25's checks tick what is right and say which usual mistake was made.

Tests dlguide.exercises.nb25.
"""

import math

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises
from dlguide.exercises import nb25
from dlguide.training import experiments, schedules


def rate(base_rate, base_batch, workers, batch):
    return base_rate * workers * batch / base_batch


def warmup(kind, start, rate, epochs, steps, stairs=1, least=1, every=1, whole=0):
    step = np.arange(epochs * steps)
    if kind == "constant":
        return np.full(epochs * steps, start)
    if kind == "stepping":
        return rate * (step // steps + least) / (epochs + stairs)
    step = step if every == 1 else step // steps * steps
    return start + (rate - start) * step / (epochs * steps - whole)


def rising(kind, start, rate, epochs, steps):
    return warmup("stepping" if kind == "constant" else kind, start, rate, epochs, steps)


def step(weights, velocity, gradient, rate, last_rate, momentum, fault=""):
    times = rate / last_rate
    factor = {"none": 1, "upside down": 1 / times}.get(fault, times)
    new = momentum * factor * velocity - rate * gradient
    if fault == "all":
        new = times * (momentum * velocity - rate * gradient)
    return (weights + new, new) if fault != "minus" else (weights - new, new)


def times_too_large(samples, batch, workers):
    return batch / ((math.ceil(samples / workers) - 1) % batch + 1)


EMPTY = {"25-4": [Parts((lambda *arguments: ..., "D")), Parts((times_too_large, ...))]}
RIGHT = {"25-1": rate, "25-2": warmup, "25-3": step, "25-4": Parts((times_too_large, "D"))}
WRONG = {
    "workers only": ("25-1", lambda r, b, w, i: r * w, "workers alone"),
    "batch only": ("25-1", lambda r, b, w, i: r * i / b, "multiply by them"),
    "root": ("25-1", lambda r, b, w, i: r * math.sqrt(w * i / b), "rule for Adam"),
    "divided": ("25-1", lambda r, b, w, i: r / (w * i / b), "Upside down"),
    "text": ("25-1", lambda r, b, w, i: "1.6", "global batch"),
    "constant rises": ("25-2", rising, "rises nowhere"),
    "no last stair": ("25-2", lambda *a: warmup(*a, stairs=0), "one below the rate"),
    "begins at 0": ("25-2", lambda *a: warmup(*a, stairs=0, least=0), "one stair above 0"),
    "gradual once an epoch": ("25-2", lambda *a: warmup(*a, every=0), "at every step"),
    "gradual to the end": ("25-2", lambda *a: warmup(*a, whole=1), "first step after"),
    "one number": ("25-2", lambda *a: 0.05, "all the time"),
    "not corrected": ("25-3", lambda *a: step(*a, fault="none"), "made with the old rate"),
    "upside down": ("25-3", lambda *a: step(*a, fault="upside down"), "too short"),
    "gradient too": ("25-3", lambda *a: step(*a, fault="all"), "old velocity only"),
    "minus": ("25-3", lambda *a: step(*a, fault="minus"), "w <- w + v"),
    "weights only": ("25-3", lambda *a: step(*a)[0], "two arrays"),
    "share": ("25-4", Parts((lambda *a: 1 / times_too_large(*a), "D")), "Upside down"),
    "images": (
        "25-4",
        Parts((lambda s, b, w: b / times_too_large(s, b, w), "D")),
        "how much too large",
    ),
    "rounded down": ("25-4", Parts((lambda s, b, w: b / (s // w % b or b), "D")), "rounded up"),
    "one step": ("25-4", Parts((times_too_large, "A")), "keep of a gradient"),
    "for ever": ("25-4", Parts((times_too_large, "B")), "after fifty of them"),
    "left out": ("25-4", Parts((times_too_large, "C")), "only when they are told"),
    "no reason": ("25-4", Parts((times_too_large, "E")), "one of the letters A, B, C, D"),
    "none left": ("25-4", Parts((lambda s, b, w: b / max(1, -(-s // w) % b), "D")), "full"),
}


def test_two_arrays_may_come_in_a_list(capsys):
    assert exercises.check("25-3", lambda *a: list(step(*a))), capsys.readouterr().out
    assert not exercises.check("25-3", lambda *a: [step(*a)[0]])


def test_warmups_of_the_exercise_are_those_of_the_package():
    for kind, start, per in (
        ("constant", 0.05, "step"),
        ("stepping", None, "epoch"),
        ("gradual", 0.05, "step"),
    ):
        there = schedules.warmup(kind, 0.8, 3, start, per).at(20).rates()
        assert np.allclose(nb25._warmup(kind, 0.05, 0.8, 3, 20), there)


def test_last_batch_of_the_exercise_is_that_of_the_package():
    for samples, batch, workers in ((1_281_167, 128, 24), (1_281_167, 32, 32), (1024, 32, 8)):
        last = experiments.last_batch(samples, batch, workers)
        assert times_too_large(samples, batch, workers) == batch / last


def test_factor_for_24_workers_is_the_largest_of_the_thesis():
    factors = {w: times_too_large(nb25.IMAGENET, 128, w) for w in (8, 16, 24, 32)}
    assert max(factors, key=factors.get) == 24
    assert int(factors[24]) == 21


def train(comm, weights, gradient, samples, batch, rate, warmup, momentum, fault=""):
    velocity = np.zeros_like(weights)
    for number in range(-(-len(samples) // batch)):
        some = samples[number * batch : (number + 1) * batch]
        own = gradient(weights, some)
        if fault == "mean of means":
            whole = comm.allreduce(own) / comm.size
        elif fault == "sum":
            whole = comm.allreduce(own)
        else:
            whole = comm.allreduce(len(some) * own) / comm.allreduce(len(some))
        part = 1.0 if fault == "cold" else min(1.0, number / warmup)
        now = rate * (1 if fault == "unscaled" else 1 + (comm.size - 1) * part)
        if fault == "inside":
            velocity = momentum * velocity + now * whole
            weights = weights - velocity
        else:
            velocity = momentum * velocity + whole
            weights = weights - now * velocity
    return weights[:1] if fault == "one weight" else weights


def test_large_batch_training_is_ticked(cluster, capsys):
    ticked = exercises.check("25-5", train, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "unscaled": "ranks x the rate",
        "cold": "t / warmup of its way",
        "mean of means": "weigh by them",
        "sum": "divided by all",
        "inside": "must be corrected",
        "one weight": "Came: shape",
    }.items(),
)
def test_fault_is_named_on_more_than_one_rank(fault, hint, cluster, capsys):
    def faulty(*arguments):
        return train(*arguments, fault=fault)

    ticked = exercises.check("25-5", faulty, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and fault != "one weight":
        assert ticked
    else:
        assert not ticked
        assert hint in out


def test_training_that_returns_nothing_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("25-5", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out


def test_every_exercise_of_the_module_is_tested():
    there = {name for name in vars(nb25) if name.startswith("exercise_25_")}
    assert there == {f"exercise_25_{number}" for number in range(1, 6)}
