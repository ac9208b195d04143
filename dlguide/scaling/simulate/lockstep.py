"""Workers that wait for each other: at every step, or at every so many."""

from __future__ import annotations

import math

import numpy as np

from dlguide.errors import require, require_count
from dlguide.scaling.simulate.workers import Simulated, Workers


def synchronous(
    workers: Workers,
    steps: int,
    exchange_s: float = 0.0,
    backups: int = 0,
    checkpoint_every: int | None = None,
    checkpoint_s: float = 0.0,
    seed: int = 0,
) -> Simulated:
    """Simulate synchronous data parallelism: a step takes as long as its slowest worker.

    A worker that fails stops all; they go back to the last checkpoint, or to the start. The
    exchange begins when the last needed gradient is there (no overlap).

    Args:
        workers: their times.
        steps: updates to make (count).
        exchange_s: time to combine the gradients, such as `scaling.costs.allreduce` gives (s).
        backups: the slowest so many are not waited for, and their gradients are dropped (count).
        checkpoint_every: updates between two checkpoints (count); None saves none.
        checkpoint_s: time that all wait while one is written (s).
        seed: of the drawn times.

    Returns:
        Simulated: one update a step.

    Raises:
        ValueError: when a number is out of range, or failures come so often that the training
            is not expected to end within a million times its work.

    Source:
        Backup workers: Chen et al., arXiv:1604.00981 (2016).
    """
    require_count(steps, "steps")
    require_count(backups, "backups", 0)
    require(backups < workers.count, "backups", f"be below the {workers.count} workers", backups)
    _check_time(exchange_s, "exchange_s")
    _check_time(checkpoint_s, "checkpoint_s")
    every = (
        steps if checkpoint_every is None else require_count(checkpoint_every, "checkpoint_every")
    )
    random, needed = np.random.default_rng(seed), workers.count - backups
    clock = _Clock(workers, random)
    computed_s = done = 0
    while done < steps:
        part = min(every, steps - done)
        saves = checkpoint_s if checkpoint_every is not None else 0.0
        ideal_s = part * (workers.step_s * workers.factors().max() + exchange_s) + saves
        clock.require_progress(ideal_s)
        while True:
            length, busy_s = saves, 0.0
            for _ in range(part):
                times = workers.steps(random)
                slowest = np.partition(times, needed - 1)[needed - 1]
                length += slowest + exchange_s
                busy_s += float(np.minimum(times, slowest).sum())
            if clock.passes(length):
                break
        computed_s += busy_s
        done += part
    waited = 1 - computed_s / (workers.count * clock.now_s)
    gradients = steps * needed
    none = np.array([], int)
    return Simulated(clock.now_s, steps, gradients, waited, none, clock.failures, clock.lost_s)


def local(
    workers: Workers, rounds: int, period: int, exchange_s: float = 0.0, seed: int = 0
) -> Simulated:
    """Simulate local SGD: each worker makes `period` steps alone, then all average their weights.

    Times of one worker's steps add up before anybody waits, so that chance evens out: the
    slowest of p is fewer standard deviations of a longer time behind.

    Args:
        workers: their times; a failure stops all, who go back to the last average.
        rounds: averages to make (count).
        period: steps of each worker between two of them (count).
        exchange_s: time of an average (s).
        seed: of the drawn times.

    Returns:
        Simulated: each round is an update that uses `period` gradients of every worker.

    Raises:
        ValueError: as `synchronous` does.

    Source:
        Stich, Local SGD converges fast and communicates little, ICLR (2019).
    """
    require_count(rounds, "rounds")
    require_count(period, "period")
    _check_time(exchange_s, "exchange_s")
    random = np.random.default_rng(seed)
    clock, computed_s = _Clock(workers, random), 0.0
    for _ in range(rounds):
        clock.require_progress(period * workers.step_s * workers.factors().max() + exchange_s)
        while True:
            times = workers.steps(random, period)
            if clock.passes(float(times.max()) + exchange_s):
                break
        computed_s += float(times.sum())
    waited = 1 - computed_s / (workers.count * clock.now_s)
    gradients = rounds * period * workers.count
    none = np.array([], int)
    return Simulated(clock.now_s, rounds, gradients, waited, none, clock.failures, clock.lost_s)


class _Clock:
    """Time of a training that any worker's failure stops.

    Failures are memoryless: what happened before the last checkpoint does not matter.
    """

    def __init__(self, workers: Workers, random: np.random.Generator) -> None:
        self.workers, self.random = workers, random
        self.until_failure_s = workers.between_failures_s / workers.count
        self.now_s = self.lost_s = 0.0
        self.failures = 0

    def passes(self, length_s: float) -> bool:
        """Let a stretch of work go by; False when a failure comes in between."""
        if math.isinf(self.until_failure_s):
            self.now_s += length_s
            return True
        failure_s = self.random.exponential(self.until_failure_s)
        if failure_s >= length_s:
            self.now_s += length_s
            return True
        self.failures += 1
        self._lose(failure_s)
        # A worker may fail while all are starting again.
        while (failure_s := self.random.exponential(self.until_failure_s)) < self.workers.restart_s:
            self.failures += 1
            self._lose(failure_s)
        self._lose(self.workers.restart_s)
        return False

    def _lose(self, seconds: float) -> None:
        self.now_s += seconds
        self.lost_s += seconds

    def require_progress(self, length_s: float) -> None:
        """Refuse a stretch of work that failures will practically never let through."""
        tries = (length_s + self.workers.restart_s) / self.until_failure_s
        must = "leave time for the work between two checkpoints"
        then = f"With {self.workers.count} workers one fails every {self.until_failure_s:.3g} s."
        between = self.workers.between_failures_s
        require(tries < math.log(1e6), "between_failures_s", must, between, then)


def _check_time(value: float, name: str) -> None:
    require(0 <= value < math.inf, name, "be at least 0", value)
