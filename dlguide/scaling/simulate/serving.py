"""Workers that wait for a server only, or for those far behind: asynchronous training."""

from __future__ import annotations

import heapq
import math

import numpy as np

from dlguide.errors import require, require_count
from dlguide.scaling.simulate.workers import Simulated, Workers

BLOCK = 1 << 14  # random numbers drawn at a time


def asynchronous(
    workers: Workers,
    updates: int,
    update_s: float = 0.0,
    travel_s: float = 0.0,
    bound: int | None = None,
    seed: int = 0,
) -> Simulated:
    """Simulate asynchronous training with one queue in front of the weights.

    A worker computes a gradient, which travels to the server, waits its turn, and changes the
    weights; the new weights travel back. Nobody waits for other workers, unless there is a bound:
    then one that is more than `bound` steps ahead of the slowest does. A worker that fails loses
    its gradient and comes back; the others go on.

    Args:
        workers: their times.
        updates: changes of the weights to make (count).
        update_s: time the server is busy with one gradient; with k servers that hold a part of
            the weights each, a k-th of it (s).
        travel_s: time of a gradient's way to the server and the weights' way back (s).
        bound: steps a worker may be ahead of the slowest (count); None for any.
        seed: of the drawn times.

    Returns:
        Simulated: with the staleness of each gradient.

    Raises:
        ValueError: when a number is out of range.

    Source:
        Dean et al., NIPS (2012): asynchronous servers; Ho et al., NIPS (2013): the bound.
    """
    require_count(updates, "updates")
    for name, value in (("update_s", update_s), ("travel_s", travel_s)):
        require(0 <= value < math.inf, name, "be at least 0", value)
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
        for goes_on in ahead.has_done(worker):
            # Those who were held wait at the server: they get the weights of now.
            sent_with[goes_on] = version + 1
            there_s = team.computed(goes_on, free_s + travel_s / 2)
            heapq.heappush(coming, (there_s + travel_s / 2, goes_on))
    waited = 1 - min(1.0, team.used_s / (workers.count * free_s))
    return Simulated(free_s, updates, updates, waited, staleness, team.failures, team.lost_s)


class _Team:
    """Times of the workers' next steps, drawn in blocks; failures included."""

    def __init__(self, workers: Workers, random: np.random.Generator) -> None:
        self.workers, self.random = workers, random
        self.means = (workers.step_s * workers.factors()).tolist()
        self.block: list[float] = []
        self.used_s = self.lost_s = 0.0
        self.failures = 0

    def computed(self, worker: int, start_s: float) -> float:
        """Return when a worker that begins now has its gradient (s)."""
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
    """Who may go on: everybody who is not too far ahead of the slowest."""

    def __init__(self, workers: int, bound: int | None) -> None:
        self.bound = bound
        self.done = [0] * workers
        self.at = {0: workers}  # how many workers have done so many steps
        self.slowest = 0
        self.held: dict[int, list[int]] = {}

    def has_done(self, worker: int) -> list[int]:
        """Note a step; return the workers that begin their next one now."""
        if self.bound is None:
            return [worker]
        steps = self.done[worker]
        self.done[worker] = steps + 1
        self.at[steps] -= 1
        self.at[steps + 1] = self.at.get(steps + 1, 0) + 1
        self.held.setdefault(steps + 1, []).append(worker)
        if not self.at[self.slowest]:
            del self.at[self.slowest]
            self.slowest += 1
        go = []
        for ready in [each for each in self.held if each - self.slowest <= self.bound]:
            go += self.held.pop(ready)
        return go
