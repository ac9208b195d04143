"""Training on up to ten thousand workers, event by event: who waits, for whom, and how long."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dlguide.errors import require, require_count, require_positive

__all__ = ["SimulatedTraining", "WorkerTimes", "asynchronous", "local", "synchronous"]

BLOCK = 1 << 14  # random numbers drawn at a time


@dataclass(frozen=True)
class WorkerTimes:
    """Distribution of the workers' step times, slow workers, and failures.

    The time of a step follows a gamma distribution: the same each time with `spread` 0, nearly
    normal with a small one, exponential with 1.

    Args:
        count: p, number of workers.
        step_s: mean time to compute one step (s).
        spread: standard deviation of a step's time over its mean (ratio).
        slow: factor on the step times of single workers, by worker (index).
        between_failures_s: mean time between two failures of one worker, exponential (s).
        restart_s: from a failure until work continues (s).

    Raises:
        ValueError: if a value is out of range or a slow worker does not exist.
    """

    count: int
    step_s: float
    spread: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    between_failures_s: float = math.inf
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        require_count(self.count, "count")
        require_positive(self.step_s, "step_s")
        _check_time(self.spread, "spread")
        _check_time(self.restart_s, "restart_s")
        between = self.between_failures_s
        require(between > 0, "between_failures_s", "be positive", between)
        for worker, factor in self.slow.items():
            known = worker in range(self.count)
            require(known, "slow", f"name workers 0 to {self.count - 1}", worker)
            require_positive(factor, f"slow[{worker}]")

    def steps(self, random: np.random.Generator, many: int = 1) -> np.ndarray:
        """Draw for each worker the summed time of `many` consecutive steps, (p,) (s)."""
        sums = many * self.step_s * self.factors()
        if self.spread:
            shape = many / self.spread**2
            sums = sums * random.gamma(shape, 1 / shape, self.count)
        return sums

    def factors(self) -> np.ndarray:
        """Return the factor on each worker's step times, (p,)."""
        return np.array([self.slow.get(worker, 1.0) for worker in range(self.count)])


@dataclass(frozen=True)
class SimulatedTraining:
    """Time and work of a simulated training.

    Args:
        seconds: from the start to the last update (s).
        updates: updates of the weights.
        gradients: gradients used in them.
        waited: share of all workers' time in which they did not compute (fraction).
        staleness: for each used gradient of asynchronous training the updates since its weights
            were sent; empty for synchronous training.
        failures: failures of workers.
        lost_s: time lost to failures, restarts and repeated work included (s of the training if all
            stop, s of the worker if the others continue).
    """

    seconds: float
    updates: int
    gradients: int
    waited: float
    staleness: np.ndarray
    failures: int
    lost_s: float

    @property
    def updates_per_s(self) -> float:
        """Updates of the weights per second (1/s)."""
        return self.updates / self.seconds

    @property
    def gradients_per_s(self) -> float:
        """Gradients used per second (1/s); times the batch this is the throughput."""
        return self.gradients / self.seconds


def synchronous(
    workers: WorkerTimes,
    steps: int,
    exchange_s: float = 0.0,
    backups: int = 0,
    checkpoint_every: int | None = None,
    checkpoint_s: float = 0.0,
    seed: int = 0,
) -> SimulatedTraining:
    """Simulate synchronous data parallelism: a step takes as long as its slowest worker.

    If a worker fails, all stop and return to the last checkpoint, or to the start. The exchange
    begins when the last needed gradient is ready (no overlap). Each step is one update.

    Args:
        workers: their times.
        steps: updates to make.
        exchange_s: time to combine the gradients, such as `costs.allreduce` predicts (s).
        backups: number of slowest workers that are not waited for; their gradients are dropped.
        checkpoint_every: updates between two checkpoints; None saves none.
        checkpoint_s: time that all wait while one is written (s).
        seed: of the drawn times.

    Returns:
        SimulatedTraining: time, updates and the share of waiting.

    Raises:
        ValueError: if a value is out of range, or failures are so frequent that the training
            is not expected to end within a million times its work.

    Source:
        Backup workers: Chen et al., arXiv:1604.00981 (2016).
    """
    require_count(steps, "steps")
    require_count(backups, "backups", 0)
    require(backups < workers.count, "backups", f"be below the {workers.count} workers", backups)
    _check_time(exchange_s, "exchange_s")
    _check_time(checkpoint_s, "checkpoint_s")
    saving = checkpoint_every is not None
    every = require_count(checkpoint_every, "checkpoint_every") if saving else steps
    random, needed = np.random.default_rng(seed), workers.count - backups
    clock = _Clock(workers, random)
    computed_s = done = 0
    while done < steps:
        part = min(every, steps - done)
        saves = checkpoint_s if saving else 0.0
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
    return clock.result(steps, steps * needed, computed_s)


def local(
    workers: WorkerTimes, rounds: int, period: int, exchange_s: float = 0.0, seed: int = 0
) -> SimulatedTraining:
    """Simulate local SGD: each worker makes `period` steps alone, then all average their weights.

    The times of one worker's steps add up before any worker waits, so fluctuations average out:
    the slowest of p is fewer standard deviations of a longer time late. Each round is one update
    that uses `period` gradients of every worker.

    Args:
        workers: their times; a failure stops all, who return to the last average.
        rounds: averages to make.
        period: steps of each worker between two of them.
        exchange_s: time of an average (s).
        seed: of the drawn times.

    Returns:
        SimulatedTraining: time, updates and the share of waiting.

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
    return clock.result(rounds, rounds * period * workers.count, computed_s)


class _Clock:
    """Time of a training that any worker's failure stops; failures are memoryless."""

    def __init__(self, workers: WorkerTimes, random: np.random.Generator) -> None:
        self.workers, self.random = workers, random
        self.until_failure_s = workers.between_failures_s / workers.count
        self.now_s = self.lost_s = 0.0
        self.failures = 0

    def passes(self, length_s: float) -> bool:
        """Advance by a stretch of work; False if a failure interrupted it."""
        if math.isinf(self.until_failure_s):
            self.now_s += length_s
            return True
        failure_s = self.random.exponential(self.until_failure_s)
        if failure_s >= length_s:
            self.now_s += length_s
            return True
        lost_s = 0.0
        while failure_s < length_s:
            self.failures += 1
            lost_s += failure_s
            # A worker may fail during the restart.
            failure_s = self.random.exponential(self.until_failure_s)
            length_s = self.workers.restart_s
        lost_s += self.workers.restart_s
        self.now_s += lost_s
        self.lost_s += lost_s
        return False

    def result(self, updates: int, gradients: int, computed_s: float) -> SimulatedTraining:
        """Return the finished training, in which all workers together computed `computed_s`."""
        waited = 1 - computed_s / (self.workers.count * self.now_s)
        none, failures = np.array([], int), self.failures
        return SimulatedTraining(
            self.now_s, updates, gradients, waited, none, failures, self.lost_s
        )

    def require_progress(self, length_s: float) -> None:
        """Refuse a stretch of work that failures would practically always interrupt."""
        tries = (length_s + self.workers.restart_s) / self.until_failure_s
        must = "leave time for the work between two checkpoints"
        then = f"With {self.workers.count} workers one fails every {self.until_failure_s:.3g} s."
        between = self.workers.between_failures_s
        require(tries < math.log(1e6), "between_failures_s", must, between, then)


def asynchronous(
    workers: WorkerTimes,
    updates: int,
    update_s: float = 0.0,
    travel_s: float = 0.0,
    bound: int | None = None,
    seed: int = 0,
) -> SimulatedTraining:
    """Simulate asynchronous training with one queue in front of the weights.

    A worker computes a gradient, which travels to the server, waits its turn, and updates the
    weights; the new weights travel back. No worker waits for others, except with a bound: then a
    worker that is more than `bound` steps ahead of the slowest waits. A worker that fails loses
    its gradient and restarts; the others continue.

    Args:
        workers: their times.
        updates: updates of the weights to make.
        update_s: time the server is busy with one gradient; with k servers that hold a part of
            the weights each, a k-th of it (s).
        travel_s: time of a gradient's way to the server and the weights' way back (s).
        bound: steps a worker may be ahead of the slowest; None for any.
        seed: of the drawn times.

    Returns:
        SimulatedTraining: time, updates and the share of waiting.

    Raises:
        ValueError: if a value is out of range.

    Source:
        Dean et al., NIPS (2012): asynchronous servers; Ho et al., NIPS (2013): the bound.
    """
    require_count(updates, "updates")
    _check_time(update_s, "update_s")
    _check_time(travel_s, "travel_s")
    if bound is not None:
        require_count(bound, "bound", 0)
    team = _Team(workers, np.random.default_rng(seed))
    coming = [
        (team.computed(worker, 0.0) + travel_s / 2, worker) for worker in range(workers.count)
    ]
    heapq.heapify(coming)
    sent_with, staleness = [0] * workers.count, np.empty(updates, int)
    ahead = _Ahead(workers.count, bound)
    free_s = 0.0
    for version in range(updates):
        arrived_s, worker = heapq.heappop(coming)
        free_s = max(arrived_s, free_s) + update_s
        staleness[version] = version - sent_with[worker]
        for released in ahead.has_done(worker):
            # Workers that were held wait at the server: they receive the current weights.
            sent_with[released] = version + 1
            there_s = team.computed(released, free_s + travel_s / 2)
            heapq.heappush(coming, (there_s + travel_s / 2, released))
    waited = 1 - min(1.0, team.used_s / (workers.count * free_s))
    return SimulatedTraining(
        free_s, updates, updates, waited, staleness, team.failures, team.lost_s
    )


class _Team:
    """Draws the times of the workers' next steps in blocks, failures included."""

    def __init__(self, workers: WorkerTimes, random: np.random.Generator) -> None:
        self.workers, self.random = workers, random
        self.means = (workers.step_s * workers.factors()).tolist()
        self.block: list[float] = []
        self.used_s = self.lost_s = 0.0
        self.failures = 0

    def computed(self, worker: int, start_s: float) -> float:
        """Return when a worker that starts at `start_s` has its gradient (s)."""
        length_s = self.means[worker] * self._stretch()
        while math.isfinite(self.workers.between_failures_s):
            failure_s = self.random.exponential(self.workers.between_failures_s)
            if failure_s >= length_s:
                break
            self.failures += 1
            self.lost_s += failure_s + self.workers.restart_s
            start_s += failure_s + self.workers.restart_s
            length_s = self.means[worker] * self._stretch()
        self.used_s += length_s
        return start_s + length_s

    def _stretch(self) -> float:
        if not self.workers.spread:
            return 1.0
        if not self.block:
            shape = 1 / self.workers.spread**2
            self.block = self.random.gamma(shape, 1 / shape, BLOCK).tolist()
        return self.block.pop()


class _Ahead:
    """Decides which workers may continue: those at most `bound` steps ahead of the slowest."""

    def __init__(self, workers: int, bound: int | None) -> None:
        self.bound = bound
        self.done = [0] * workers
        self.count_at = {0: workers}  # number of workers by steps done
        self.slowest = 0
        self.held: dict[int, list[int]] = {}

    def has_done(self, worker: int) -> list[int]:
        """Record a step; return the workers that begin their next one now."""
        if self.bound is None:
            return [worker]
        steps = self.done[worker]
        self.done[worker] = steps + 1
        self.count_at[steps] -= 1
        self.count_at[steps + 1] = self.count_at.get(steps + 1, 0) + 1
        self.held.setdefault(steps + 1, []).append(worker)
        if not self.count_at[self.slowest]:
            del self.count_at[self.slowest]
            self.slowest += 1
        go = []
        for ready in [each for each in self.held if each - self.slowest <= self.bound]:
            go += self.held.pop(ready)
        return go


def _check_time(value: float, name: str) -> None:
    require(0 <= value < math.inf, name, "be at least 0", value)
