"""Checks of the exercises of notebook 70: laws, turning points, waiting, forecasts held out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dlguide.exercises import NotAnswered, answered, expect, expect_close, expect_function, near
from dlguide.exercises.on_ranks import results

# Each observation of 70-4: its cause, and what tells it from the others.
CAUSES = {
    "MXNet at 64": ("B", "All workers send through the same few places. What is full there?"),
    "AlexNet on 4": ("D", "The global batch stays 128. What has each GPU left to compute?"),
    "two of four": ("F", "A whole node does better than half of one. Who has the other half?"),
    "29.4 or 22.5": ("A", "The training itself is 29.4 times as fast. What else is in the hours?"),
    "1.00 at 8 GPUs": ("E", "Read the column's name: times as fast as what?"),
    "none is slow": ("C", "No worker is slow on average. And the last one of each step?"),
}
# What 70-5 is held against: throughput (images/s) by GPUs, up to 8 given, the rest asked for.
SERIES = {
    "MXNet ps-lite (guide, Table 8)": {1: 182, 4: 705, 8: 1402, 16: 2680, 32: 5120, 64: 7080},
    "Horovod + PyTorch (guide, Table 9)": {1: 208, 4: 768, 8: 1497, 16: 2942, 32: 5796},
    "Horovod + TensorFlow, batch 64 (thesis, Tables 1, 4, 7)": {
        **{1: 234.01, 2: 424.27, 4: 856.30, 8: 1683.31},
        **{16: 3301.11, 24: 4832.52, 32: 6210.30},
    },
    "Horovod + PyTorch (thesis, Tables 3, 6, 9)": {
        **{1: 207.79, 2: 390.24, 4: 807.57, 8: 1551.51},
        **{16: 3150.76, 24: 4711.65, 32: 6104.32},
    },
    "InceptionV3 on EC2 (TensorFlow's guide, 2017)": {1: 29.7, 8: 229, 16: 459, 32: 902, 64: 1783},
    "ResNet-152 on EC2 (TensorFlow's guide, 2017)": {1: 19.4, 8: 146, 16: 291, 32: 565, 64: 981},
}


def exercise_70_1(speed_ups: Callable[..., Any]) -> str:
    """Check what an evaluation that nobody divides does to a speed-up.

    Args:
        speed_ups: called with the speed-up of the training, the workers and the evaluation's
            share; returns three speed-ups of the job: evaluation not divided, divided by the
            workers, and the limit of the first for ever more workers.

    Returns:
        str: what it means.
    """
    expect_function(speed_ups)
    for speed_up, workers, share in ((29.4, 32, 0.013), (7.0, 8, 0.1), (500.0, 1000, 0.002)):
        came = answered(speed_ups(speed_up, workers, share))
        case = f"training {speed_up:g} times on {workers} workers, evaluation {share:g} of it"
        expect(np.shape(came) == (3,), "three numbers", came)
        right = (1 + share) / (1 / speed_up + share)
        hint = "Time of the whole job on one worker, over its time on all."
        if near(came[0], 1 / (1 / speed_up + share), 2e-3):
            hint = "The job on one worker evaluates, too."
        elif near(came[0], speed_up, 2e-3):
            hint = "Only the training is so much faster; the evaluation takes as long as before."
        expect_close(came[0], right, f"the speed-up with evaluation undivided ({case})", hint)
        right = (1 + share) / (1 / speed_up + share / workers)
        hint = "Training takes 1 / speed-up; the evaluation needs no exchange."
        if near(came[1], speed_up, 2e-3):
            hint = "The evaluation needs no exchange: it is divided by the workers."
        expect_close(came[1], right, f"the speed-up with evaluation divided ({case})", hint)
        hint = "Let the training take no time at all: what is left?"
        if near(came[2], 1 / share, 2e-3):
            hint = "The job on one worker is the training and the evaluation."
        expect_close(came[2], (1 + share) / share, f"the limit ({case})", hint)
    return "An evaluation of one hundredth allows 101 times, however many workers you rent."


def exercise_70_2(crossover: Callable[..., Any], interval_s: Callable[..., Any]) -> str:
    """Check from how many bytes on a ring is faster, and how long to work between checkpoints.

    Args:
        crossover: called with workers (a power of two), latency_s and bytes_per_s; returns the
            bytes of the array for which both take equally long.
        interval_s: called with the seconds between two failures of one worker, the workers and
            the seconds that a checkpoint takes; returns the best seconds of work between two.

    Returns:
        str: what it means.
    """
    expect_function(crossover)
    expect_function(interval_s)
    _expect_crossover(crossover)
    _expect_interval(interval_s)
    return (
        "For two workers a ring never loses; for 1024 on the last of these links it needs 7 MB to "
        "earn its messages. And a hundred times the workers: a tenth of the interval, ten times "
        "the share that is lost."
    )


def _expect_crossover(crossover: Callable[..., Any]) -> None:
    for workers, latency_s, bytes_per_s in (
        (4, 1e-6, 1e10),
        (2, 2e-6, 5e9),
        (64, 1.5e-6, 12.5e9),
        (1024, 50e-6, 1.25e9),
    ):
        came = answered(crossover(workers, latency_s, bytes_per_s))
        log, ring = math.log2(workers), (workers - 1) / workers
        right = latency_s * bytes_per_s * (workers - 1 - log) / (log - ring)
        case = f"{workers} workers, {latency_s:g} s, {bytes_per_s:g} bytes/s"
        hint = "Set the two formulas equal and solve for the bytes."
        if workers > 2:
            rate = latency_s * bytes_per_s
            if near(came, rate * (2 * (workers - 1) - log) / (log - 2 * ring), 2e-3):
                hint = "A tree goes down, too: 2 log2 p messages, one after the other."
            elif near(came, rate * (workers - 1 - log) / (log - workers + 1), 2e-3):
                hint = "Messages of a ring are small: a p-th of the array each."
            elif near(came, right / 8, 2e-3) or near(came, 8 * right, 2e-3):
                hint = "Bytes, not bits."
            elif isinstance(came, int | float) and 0 <= came < math.inf:
                ring_s = 2 * ((workers - 1) * latency_s + ring * came / bytes_per_s)
                tree_s = 2 * log * (latency_s + came / bytes_per_s)
                hint = f"With yours a ring takes {ring_s:.4g} s and a tree {tree_s:.4g} s."
        wanted = f"the bytes from which on a ring is faster ({case})"
        _expect_number(came, wanted)
        distance = abs(came - right) <= 1e-3 * max(right, 1.0)
        expect(distance, wanted, came, hint)


def _expect_interval(interval_s: Callable[..., Any]) -> None:
    for between_s, workers, checkpoint_s in (
        (1e8, 1000, 30.0),
        (1e8, 10_000, 5.0),
        (3e7, 100, 60.0),
        (2e6, 1, 10.0),
    ):
        came = answered(interval_s(between_s, workers, checkpoint_s))
        right = math.sqrt(2 * checkpoint_s * between_s / workers)
        case = f"{workers} workers, each fails every {between_s:g} s, {checkpoint_s:g} s to save"
        hint = "Write down the share that is lost, and set its derivative to zero."
        if near(came, right * math.sqrt(workers), 2e-3) and workers > 1:
            hint = "Any of them stops all: how often does some worker fail?"
        elif near(came, right * workers, 2e-3) and workers > 1:
            hint = "More workers fail more often, so the interval becomes shorter."
        elif near(came, right / math.sqrt(2), 2e-3):
            hint = "A failure comes half-way between two checkpoints, on average."
        elif near(came, right**2, 2e-3) or near(came, right**2 / 2, 2e-3):
            hint = "That is the square: seconds times seconds."
        expect_close(came, right, f"the best interval in seconds ({case})", hint, 0.05)


def exercise_70_3(waiting: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks how long steps are in which everybody waits for the slowest.

    Args:
        waiting: called with the communicator, the seconds that this rank computes in each step
            (an array) and those of an exchange; returns the seconds of all steps, and the share
            of all ranks' time in which they wait for slower ones.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    ranks, exchange_s = cluster.ranks, 0.02
    random = np.random.default_rng(70)
    step_s = random.uniform(0.1, 0.2, (ranks, 12)) + 0.01 * np.arange(ranks)[:, None]
    came = results(cluster, waiting, [(own.copy(), exchange_s) for own in step_s])
    pairs = all(np.shape(each) == (2,) for each in came)
    expect(pairs, "two numbers, the seconds and the share", came[0])
    alike = all(near(each, came[0], 1e-9) for each in came)
    hint = "What one rank knows is not enough. `comm.allreduce(x, op=MPI.MAX)` gives it to all."
    expect(alike, "the same two numbers on all ranks", came, hint)
    slowest = step_s.max(axis=0).sum()
    seconds = slowest + 12 * exchange_s
    total, share = came[0]
    hint = "In each step all wait for its slowest rank; then comes one exchange."
    if ranks > 1 and near(total, step_s.sum(axis=1).max() + 12 * exchange_s, 1e-6):
        hint = "The slowest rank of a step need not be that of the next: compare step by step."
    elif near(total, slowest, 1e-6) or near(total, slowest + exchange_s, 1e-6):
        hint = "Every step has its exchange."
    elif ranks > 1 and near(total, step_s.mean(axis=0).sum() + 12 * exchange_s, 1e-6):
        hint = "Nobody waits for the mean."
    expect_close(total, seconds, "the seconds of all steps together", hint, 1e-6)
    right = (slowest - step_s.sum() / ranks) / seconds
    hint = "Of all ranks' seconds: what is neither computing nor exchange."
    if ranks > 1 and near(share, right * seconds, 1e-6):
        hint = "That is in seconds. Which part of the time is it?"
    elif near(share, right + 12 * exchange_s / seconds, 1e-6):
        hint = "In the exchange nobody waits for a slower rank: all take part in it."
    elif ranks > 1 and near(share, right * ranks, 1e-6):
        hint = "Divide by the time of all ranks, not by that of one."
    distance = near(share, right, 1e-6) if ranks > 1 else near(share, 0.0, 1e-9)
    expect(distance, "the share of the time in which ranks wait", share, hint)
    if ranks == 1:
        return "One rank waits for nobody; try it on two."
    longest = step_s.sum(axis=1).max() + 12 * exchange_s
    return (
        f"{share:.0%} of all time is waiting. The slowest rank alone would have needed "
        f"{longest:.2f} s, not {seconds:.2f} s: in other steps another one was late."
    )


def exercise_70_4(causes: dict[str, Any]) -> str:
    """Check what was behind six observations.

    Args:
        causes: for each observation the letter of its cause.

    Returns:
        str: what it means.
    """
    expect(isinstance(causes, dict), "a dictionary from observations to letters", causes)
    missing = [each for each in CAUSES if each not in causes]
    expect(not missing, "an answer to all six observations", f"nothing for {', '.join(missing)}")
    if any(causes[each] is Ellipsis for each in CAUSES):
        raise NotAnswered
    for observation, (letter, hint) in CAUSES.items():
        came = causes[observation]
        known = isinstance(came, str) and came in set("ABCDEF")
        expect(known, f"{observation!r}: a letter from A to F", came)
        expect(came == letter, f"another cause of {observation!r}", came, hint)
    return "Four of the six are no property of the training: server, neighbours, baseline, others."


def exercise_70_5(forecast: Callable[..., Any]) -> str:
    """Check a forecast against laws and against published series that it has not seen.

    Args:
        forecast: called with a dictionary from workers to images/s and a number of workers;
            returns the images/s predicted for that number.

    Returns:
        str: how far it was from the published measurements.
    """
    expect_function(forecast)
    line = {p: 100.0 * p for p in (1, 2, 4, 8)}
    came = answered(forecast(dict(line), 32))
    _expect_number(came, "images/s")
    hint = "Is that the throughput of all workers together?" if came <= 120 else ""
    expect_close(came, 3200, "a training without any loss: 3200 images/s on 32", hint, 0.06)
    few = {p: 100.0 * p / (1 + 0.1 * math.log2(p)) for p in (1, 2, 4, 8)}
    came, right = forecast(dict(few), 64), 6400 / 1.6
    hint = "Look at the seconds a step takes on 1, 2, 4, 8: how do they grow?"
    if came > 1.12 * right:
        hint += " A straight line believes in the last efficiency for ever."
    elif came < 0.88 * right:
        hint += " Yours grow too fast: they gain the same with each doubling."
    _expect_number(came, "images/s")
    expect_close(came, right, "64 workers, where each doubling adds a tenth to a step", hint, 0.12)
    errors = {}
    for name, points in SERIES.items():
        seen = {p: rate for p, rate in points.items() if p <= 8}
        for p in (p for p in points if p > 8):
            came = forecast(dict(seen), p)
            _expect_number(came, f"images/s for {name} on {p}")
            errors[f"{name} on {p}"] = came / points[p] - 1
    away = np.abs(list(errors.values()))
    hint = "Which parts of a step grow with the workers? One coefficient may do."
    told = f"median {np.median(away):.1%}, {np.mean(away <= 0.1):.0%} within 10 %"
    good = np.median(away) <= 0.04 and np.mean(away <= 0.1) >= 0.8
    expect(good, "a median error of 4 % at most, 80 % within 10 %", told, hint)
    worst = max(errors, key=lambda name: abs(errors[name]))
    return f"{told}; the worst is {worst}: {errors[worst]:+.0%}. No small count knew of it."


def _expect_number(came: Any, wanted: str) -> None:
    number = isinstance(came, int | float | np.number) and math.isfinite(came)
    expect(number, f"{wanted}: a finite number", came)
