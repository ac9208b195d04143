"""Notebook 81's checks tick what is right on 1 to 4 ranks and say which usual mistake was made."""

import math
import sys

import cloudpickle
import numpy as np
import pytest

from dlguide import exercises
from dlguide.cluster import Cluster
from dlguide.exercises import nb81
from dlguide.usecases import imagenet


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def cluster(request):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with Cluster(ranks=request.param, oversubscribe=True) as cluster:
        yield cluster
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def iterations(pictures, workers, batch, epochs, warmup, leaves):
    each = pictures / (workers * batch)
    up = int(warmup * each)
    return up, round(epochs * each) - up, round(leaves * each), round((epochs - leaves) * each)


def course(step, warmup, whole, left, top, start, decay):
    if step < warmup:
        return start + (top - start) * step / warmup, decay, True
    if step < left:
        return top * (whole - step) / (whole - warmup), decay, True
    line = top * (whole - left) / (whole - warmup)
    return line * ((whole - step) / (whole - left)) ** 2, 2 * decay, False


CAUSES = {
    "94.5 epochs": "D",
    "too slow": "F",
    "three times": "A",
    "one process": "B",
    "test above training": "E",
    "smaller batches": "C",
}


def gain(line, collapsed):
    apart = 100 * (np.array(collapsed) - line)
    return apart.mean(), apart.std(ddof=1) / math.sqrt(len(apart))


def whole_steps(pictures, workers, batch, epochs, warmup, leaves):
    each = -(-pictures // (workers * batch))
    return warmup * each, (epochs - warmup) * each, round(leaves * each), 0


def restarts(step, warmup, whole, left, top, start, decay):
    rate, *others = course(step, warmup, whole, left, top, start, decay)
    return (top * ((whole - step) / (whole - left)) ** 2 if step >= left else rate, *others)


def unpaired(line, collapsed):
    spread = np.var(line, ddof=1) + np.var(collapsed, ddof=1)
    return gain(line, collapsed)[0], 100 * math.sqrt(spread / len(line))


RIGHT = {"81-1": iterations, "81-2": course, "81-3": CAUSES, "81-4": gain}
EMPTY = {"81-3": [dict.fromkeys(CAUSES, ...)]}
WRONG = {
    "epochs of whole steps": ("81-1", whole_steps, "divide first, round last"),
    "decay from the start": (
        "81-1",
        lambda *road: (iterations(*road)[0], sum(iterations(*road)[:2]), *iterations(*road)[2:]),
        "take the warmup's updates away",
    ),
    "one node's batch": (
        "81-1",
        lambda n, w, b, *rest: iterations(n, 2 * w, b, *rest),
        "of all workers together",
    ),
    "warmup rounded up": (
        "81-1",
        lambda *road: (iterations(*road)[0] + 1, iterations(*road)[1] - 1, *iterations(*road)[2:]),
        "rounded down",
    ),
    "last part from a whole epoch": (
        "81-1",
        lambda *road: (*iterations(*road)[:2], *iterations(*road[:-1], int(road[-1]))[2:]),
        "fraction of an epoch",
    ),
    "last part from the top": ("81-2", restarts, "It begins with the 0.254"),
    "line from step 0": (
        "81-2",
        lambda s, w, n, left, top, *rest: (
            top * (n - s) / n if w <= s < left else course(s, w, n, left, top, *rest)[0],
            *course(s, w, n, left, top, *rest)[1:],
        ),
        "from the warmup's end on",
    ),
    "decay not doubled": (
        "81-2",
        lambda *at: (course(*at)[0], at[-1], course(*at)[2]),
        "It doubles",
    ),
    "pictures always random": ("81-2", lambda *at: (*course(*at)[:2], True), "Plain pictures"),
    "bytes blamed": ("81-3", CAUSES | {"too slow": "A", "three times": "F"}, "bytes are not many"),
    "no letter": ("81-3", CAUSES | {"too slow": "the disk"}, "Each letter fits once"),
    "epochs not paid": (
        "81-3",
        CAUSES | {"94.5 epochs": "E", "test above training": "D"},
        "What had part 1 done",
    ),
    "not in pairs": ("81-4", unpaired, "seed by seed"),
    "wrong way": ("81-4", lambda a, b: gain(b, a), "Collapsed minus line"),
    "fractions": ("81-4", lambda a, b: np.divide(gain(a, b), 100), "percentage points"),
    "divided by all": (
        "81-4",
        lambda a, b: (gain(a, b)[0], 100 * np.std(np.subtract(b, a)) / math.sqrt(len(a))),
        "ddof=1",
    ),
    "of one seed": (
        "81-4",
        lambda a, b: (gain(a, b)[0], 100 * np.std(np.subtract(b, a), ddof=1)),
        "varies less",
    ),
    "no function": ("81-4", 0.5, "Write it with `def`"),
}


def test_oracle_of_the_iterations_is_the_guides_and_the_packages():
    assert iterations(*nb81.ROADS[0]) == (446, 7594, 7638, 402)
    for road, numbers in zip((imagenet.GUIDE, imagenet.SMALL), nb81.ROADS, strict=False):
        found = road.iterations()
        assert iterations(*numbers) == (found.warmup, found.decay, found.snapshot, found.collapsed)


def test_oracle_of_the_course_is_the_packages_schedule():
    road = imagenet.SMALL
    end, line = road.part_2(), road.part_1()
    rates, decays = end.rates.at(30), end.weight_decay.at(30)
    for step in (0, 10, 29, 30, 200, 305, 306, 320, 359):
        rate, decay, random = course(step, 30, 360, 306, road.rate, road.start, road.weight_decay)
        assert rate == pytest.approx(rates.rate(step))
        assert decay == pytest.approx(decays.rate(step))
        assert random == (step < 306)
    assert course(305, 30, 360, 306, 0.2, road.start, 0)[0] == pytest.approx(
        line.rates.at(30).rate(305)
    )


def averages(comm, batches, momentum):
    mean, variance = np.zeros(2), np.ones(2)
    for batch in batches:
        mean = momentum * mean + (1 - momentum) * batch.mean(axis=0)
        variance = momentum * variance + (1 - momentum) * batch.var(axis=0)
    return comm.allreduce(np.array([mean, variance])) / comm.size


def swapped(comm, batches, momentum):
    return averages(comm, batches, 1 - momentum)


def all_together(comm, batches, momentum):
    gathered = comm.allgather(batches)
    return averages(comm, [np.concatenate(step) for step in zip(*gathered, strict=True)], momentum)


def own_only(comm, batches, momentum):
    from mpi4py import MPI

    return averages(MPI.COMM_SELF, batches, momentum)


def summed(comm, batches, momentum):
    return comm.size * averages(comm, batches, momentum)


MISTAKES = {
    "swapped": (swapped, "what a step keeps", 1),
    "all together": (all_together, "batches of the others", 2),
    "own only": (own_only, "take the mean of their averages", 2),
    "summed": (summed, "not a sum", 2),
}


def test_averages_are_ticked_on_any_ranks(cluster, capsys):
    assert exercises.check("81-5", averages, cluster), capsys.readouterr().out
    out = capsys.readouterr().out
    assert ("try it on two" in out) == (cluster.ranks == 1)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_averages_get_their_hint(cluster, mistake, capsys):
    answer, hint, least = MISTAKES[mistake]
    ticked = exercises.check("81-5", answer, cluster)
    out = capsys.readouterr().out
    if cluster.ranks < least:
        assert ticked  # one rank hides it
    else:
        assert not ticked
        assert hint in out


def test_empty_averages_are_not_answered_yet(cluster, capsys):
    assert not exercises.check("81-5", lambda comm, batches, momentum: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
