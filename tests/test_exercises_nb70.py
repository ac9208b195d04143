"""Notebook 70's checks tick what is right and say which usual mistake was made.

The model answers are closed forms; those of 70-2 are held against the cost model and against the
simulation, which know nothing of them.
"""

import math

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises, published
from dlguide.exercises import nb70
from dlguide.scaling import costs, predict, simulate


def speed_ups(speed_up, workers, share):
    job = 1 + share
    return job / (1 / speed_up + share), job / (1 / speed_up + share / workers), job / share


def crossover(workers, latency_s, bytes_per_s):
    log = math.log2(workers)
    return latency_s * bytes_per_s * (workers - 1 - log) / (log - (workers - 1) / workers)


def interval_s(between_s, workers, checkpoint_s):
    return math.sqrt(2 * checkpoint_s * between_s / workers)


CAUSES = {name: letter for name, (letter, _) in nb70.CAUSES.items()}


def step_fit(points, shape):
    """Least squares of relative errors for a step of a + b shape(p)."""
    workers = np.array(list(points), float)
    steps = workers / np.array(list(points.values()))
    table = np.stack([np.ones(len(workers)), shape(workers)], axis=1) / steps[:, None]
    a, b = np.linalg.lstsq(table, np.ones(len(workers)), rcond=None)[0]
    return a, max(b, 0.0)


def forecast(points, workers, shape=np.log2):
    a, b = step_fit(points, shape)
    return float(workers / (a + b * shape(np.float64(workers))))


def one_by_one(points, workers):
    return points[min(points)] / min(points) * workers


def straight(points, workers):
    return float(np.polyval(np.polyfit(list(points), list(points.values()), 1), workers))


RIGHT = {
    "70-1": speed_ups,
    "70-2": Parts((crossover, interval_s)),
    "70-4": CAUSES,
    "70-5": forecast,
}
EMPTY = {
    "70-2": [Parts((crossover, lambda *a: ...)), Parts((lambda *a: ..., interval_s))],
    "70-4": [dict.fromkeys(CAUSES, ...), CAUSES | {"none is slow": ...}],
}
WRONG = {
    "one worker does not evaluate": (
        "70-1",
        lambda s, p, e: (1 / (1 / s + e), *speed_ups(s, p, e)[1:]),
        "evaluates, too",
    ),
    "evaluation forgotten": ("70-1", lambda s, p, e: (s, s, s), "as long as before"),
    "divided by the speed-up": (
        "70-1",
        lambda s, p, e: (speed_ups(s, p, e)[0], s, (1 + e) / e),
        "divided by the workers",
    ),
    "limit without the training": (
        "70-1",
        lambda s, p, e: (*speed_ups(s, p, e)[:2], 1 / e),
        "the training and the evaluation",
    ),
    "one number": ("70-1", lambda s, p, e: s, "three numbers"),
    "tree that does not come back": (
        "70-2",
        Parts(
            (
                lambda p, a, r: (
                    a * r * (2 * (p - 1) - math.log2(p)) / (math.log2(p) - 2 * (p - 1) / p)
                ),
                interval_s,
            )
        ),
        "goes down, too",
    ),
    "ring of whole arrays": (
        "70-2",
        Parts(
            (lambda p, a, r: a * r * (p - 1 - math.log2(p)) / (math.log2(p) - p + 1), interval_s)
        ),
        "a p-th of the array",
    ),
    "bits": ("70-2", Parts((lambda p, a, r: 8 * crossover(p, a, r), interval_s)), "not bits"),
    "latency alone": ("70-2", Parts((lambda p, a, r: a * r * (p - 1), interval_s)), "a tree"),
    "endless": ("70-2", Parts((lambda p, a, r: math.inf, interval_s)), "finite number"),
    "one worker's failures": (
        "70-2",
        Parts((crossover, lambda m, p, c: interval_s(m, 1, c))),
        "some worker fail",
    ),
    "more workers, longer": (
        "70-2",
        Parts((crossover, lambda m, p, c: p * interval_s(m, p, c))),
        "shorter",
    ),
    "all of it lost": (
        "70-2",
        Parts((crossover, lambda m, p, c: math.sqrt(c * m / p))),
        "half-way",
    ),
    "no root": ("70-2", Parts((crossover, lambda m, p, c: 2 * c * m / p)), "square"),
    "server and slowest": ("70-4", CAUSES | {"MXNet at 64": "C"}, "full there"),
    "baseline": ("70-4", CAUSES | {"1.00 at 8 GPUs": "B"}, "as what?"),
    "neighbours": ("70-4", CAUSES | {"two of four": "D"}, "the other half"),
    "one forgotten": ("70-4", {"none is slow": "C"}, "nothing for MXNet"),
    "no letter": ("70-4", CAUSES | {"none is slow": "luck"}, "from A to F"),
    "one worker's speed": ("70-5", one_by_one, "for ever"),
    "a straight line": ("70-5", straight, "for ever"),
    "servers": ("70-5", lambda points, p: forecast(points, p, lambda q: q - 1), "too fast"),
    "per worker": ("70-5", lambda points, p: forecast(points, p) / p, "all workers together"),
    "no number": ("70-5", lambda points, p: math.nan, "finite number"),
}


@pytest.mark.parametrize("workers", [4, 16, 256])
def test_at_the_crossover_ring_and_tree_cost_the_same(workers):
    link = costs.Link(2e-6, 1e10)
    nbytes = crossover(workers, link.latency_s, link.bytes_per_s)
    for factor, ring_wins in ((0.9, False), (1.1, True)):
        ring, tree = (
            costs.allreduce(each, factor * nbytes, workers, link) for each in ("ring", "tree")
        )
        assert (ring < tree) == ring_wins


def test_simulated_training_is_fastest_near_the_interval():
    workers = simulate.Workers(100, 60.0, between_failures_s=100 * 30_000.0, restart_s=60.0)
    best = interval_s(workers.between_failures_s, workers.count, 60.0)
    seconds = {}
    for factor in (1 / 6, 1, 6):
        each = [
            simulate.synchronous(
                workers, 3000, checkpoint_every=round(factor * best / 60), checkpoint_s=60, seed=s
            ).seconds
            for s in range(6)
        ]
        seconds[factor] = np.mean(each)
    assert seconds[1] < min(seconds[1 / 6], seconds[6])


def test_library_s_own_fit_passes_the_forecast(capsys):
    def by_the_library(points, workers):
        return predict.fit(points).predict([workers])[0].images_per_s

    assert exercises.check("70-5", by_the_library), capsys.readouterr().out


def test_series_are_the_published_ones():
    tables = list(predict.published_series().values())
    assert [name for name, points in nb70.SERIES.items() if points not in tables] == []


def test_observations_are_the_published_ones():
    rates = predict.published_series()["guide: MXNet ps-lite, batch 64"]
    assert rates[32] / 32 > 0.85 * rates[1]
    assert rates[64] / 64 < 0.65 * rates[1]
    seconds = {
        row["gpus"]: row["seconds"]
        for row in published.load("s_caffe_strong_scaling")
        if row["global_batch"] == 128
    }
    assert seconds[4] == pytest.approx(seconds[2], rel=0.02)
    ddl = [row for row in published.load("scaling_ibm_ddl") if row["gpus"] == 8]
    assert [row["efficiency"] for row in ddl] == [1.0]
    for name, rates in predict.published_series().items():
        if name.startswith("thesis"):
            assert rates[2] / 2 < rates[4] / 4


def waiting(comm, step_s, exchange_s, fault=""):
    from mpi4py import MPI

    highest = np.empty_like(step_s)
    comm.Allreduce(step_s, highest, op=MPI.MAX)
    slowest = highest.sum()
    mean = comm.allreduce(step_s.sum()) / comm.size
    seconds = slowest + len(step_s) * exchange_s
    share = (slowest - mean) / seconds
    if fault == "own":
        seconds = step_s.sum() + len(step_s) * exchange_s
    if fault == "slowest rank":
        seconds = comm.allreduce(step_s.sum(), op=MPI.MAX) + len(step_s) * exchange_s
    if fault == "one exchange":
        seconds = slowest + exchange_s
    if fault == "mean":
        seconds = mean + len(step_s) * exchange_s
    if fault == "in seconds":
        share *= seconds
    if fault == "exchange waits":
        share += len(step_s) * exchange_s / seconds
    if fault == "of one rank":
        share *= comm.size
    return seconds if fault == "one number" else (seconds, share)


def test_waiting_is_ticked_on_any_number_of_ranks(cluster, capsys):
    assert exercises.check("70-3", waiting, cluster), capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "hint"),
    {
        "own": "What one rank knows is not enough",
        "slowest rank": "compare step by step",
        "one exchange": "Every step has its exchange",
        "mean": "Nobody waits for the mean",
        "in seconds": "Which part of the time",
        "exchange waits": "all take part in it",
        "of one rank": "not by that of one",
        "one number": "two numbers",
    }.items(),
)
def test_faulty_waiting_gets_its_hint(cluster, fault, hint, capsys):
    def faulty(*arguments):
        return waiting(*arguments, fault=fault)

    ticked = exercises.check("70-3", faulty, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and fault not in ("one exchange", "exchange waits", "one number"):
        assert ticked  # one rank alone hides these
    else:
        assert not ticked
        assert hint in out


def test_waiting_that_returns_nothing_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("70-3", lambda *arguments: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
