"""Notebook 80's checks tick what is right and say which usual mistake was made."""

import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.usecases.video import metrics


@pytest.fixture(scope="module")
def cluster():
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        yield cluster
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def psnr(truth, predicted):
    error = truth.astype(float) - predicted
    return 10 * np.log10(255**2 / np.mean(error**2))


def speedups(p, compute_s, nbytes, speed, copies=2, others=-1):
    lent_s = copies * (p + others) * nbytes / speed
    ring_s = 2 * (p - 1) / p * nbytes / speed
    return [p * compute_s / (compute_s + each) for each in (lent_s, ring_s)]


CAUSES = {"2.1 GB": "C", "15.5 GB": "A", "2.8 times": "E", "caption": "B", "blur": "F"}
CAUSES |= {"held out": "D"}
RIGHT = {"80-1": psnr, "80-2": speedups, "80-4": CAUSES}
EMPTY = {"80-4": [dict.fromkeys(CAUSES, ...)]}
WRONG = {
    "wraps around": (
        "80-1",
        lambda a, b: 10 * np.log10(255**2 / np.mean((a - b).astype(float) ** 2)),
        "254 in uint8",
    ),
    "natural logarithm": ("80-1", lambda a, b: psnr(a, b) * np.log(10), "to base 10"),
    "20 of squares": ("80-1", lambda a, b: 2 * psnr(a, b), "but not both"),
    "range of 1": ("80-1", lambda a, b: psnr(a, b) - 20 * np.log10(255), "255 here"),
    "upside down": ("80-1", lambda a, b: -psnr(a, b), "stands below"),
    "efficiency": (
        "80-2",
        lambda p, *more: [one / p for one in speedups(p, *more)],
        "p times as many clips",
    ),
    "one way": ("80-2", lambda *given: speedups(*given, copies=1), "come back: twice"),
    "copy of its own": ("80-2", lambda *given: speedups(*given, others=0), "no copy of its own"),
    "other order": ("80-2", lambda *given: speedups(*given)[::-1], "First with replicas"),
    "ring as replicas": ("80-2", lambda *given: speedups(*given)[:1] * 2, "2 (p - 1) / p"),
    "one number": ("80-2", lambda *given: speedups(*given)[0], "Return a pair"),
    "no function": ("80-2", 2.8, "Write it with `def`"),
    "numbers of a weight": ("80-4", CAUSES | {"2.1 GB": "A"}, "how many numbers"),
    "memory": ("80-4", CAUSES | {"15.5 GB": "E"}, "optimizer remember"),
    "blur": ("80-4", CAUSES | {"blur": "D"}, "smallest error"),
    "no letter": ("80-4", CAUSES | {"blur": "G"}, "Each letter fits once"),
}


def test_oracle_of_decibels_agrees_with_the_package():
    a, b = np.random.default_rng(1).integers(0, 256, (2, 12, 12, 3)).astype(np.uint8)
    assert np.isclose(psnr(a, b), metrics.psnr(a, b))


def exchange(comm, generator, discriminator, clips, total, fault=""):
    both = [*generator, *discriminator]
    weight = 1 if fault == "mean of ranks" else clips
    sent = np.concatenate([np.ravel(one) * weight for one in both] + [[clips]])
    summed = total(sent)
    if fault == "two sums":
        summed[-1] = total(np.array([clips]))[0]
    over = {"mean of ranks": comm.size, "not divided": 1, "by ranks": comm.size}
    summed = summed[:-1] / over.get(fault, summed[-1])
    cuts = np.cumsum([np.size(one) for one in both])[:-1]
    parts = [
        part.reshape(np.shape(one)) for part, one in zip(np.split(summed, cuts), both, strict=True)
    ]
    if fault == "one list":
        return parts
    return parts[: len(generator)], parts[len(generator) :]


def with_fault(fault):
    return lambda *given: exchange(*given, fault=fault)


def test_one_message_for_both_nets_is_ticked(cluster, capsys):
    ticked = exercises.check("80-3", exchange, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "mean of ranks": "one with few clips weighs too much",
        "not divided": "Divide by the clips of all ranks",
        "by ranks": "not by the number of ranks",
        "two sums": "into one flat array",
        "one list": "Return the generator's list",
    }.items(),
)
def test_fault_of_the_exchange_is_named(fault, hint, cluster, capsys):
    assert not exercises.check("80-3", with_fault(fault), cluster)
    assert hint in capsys.readouterr().out


def test_exchange_that_returns_nothing_is_not_answered(cluster, capsys):
    assert not exercises.check("80-3", lambda *given: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
