"""Lesson 61: the makespan of tasks shared by ranks, and the optimism of choosing the best.

The makespan is the time until the last rank has finished its last task. Tasks send nothing to each
other, so their times and the number of ranks determine it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dlguide.cluster.tasks import blocks
from dlguide.errors import require, require_count


@dataclass(frozen=True)
class TaskBar:
    """One task on one rank."""

    number: int
    rank: int
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Duration (s)."""
        return self.end_s - self.start_s


def first_free(seconds: Sequence[float], ranks: int) -> list[TaskBar]:
    """Assign tasks in their order, each to the first free rank (list scheduling).

    Leaves out the time between two tasks, and that ranks of one machine slow each other down.

    Source:
        Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17 (1969).

    >>> makespan(first_free([3, 1, 1, 1], ranks=2))
    3.0
    """
    _require(seconds, ranks)
    free = [(0.0, rank) for rank in range(ranks)]
    bars = []
    for number, length in enumerate(seconds):
        start_s, rank = heapq.heappop(free)
        bars.append(TaskBar(number, rank, start_s, start_s + length))
        heapq.heappush(free, (start_s + length, rank))
    return bars


def beforehand(seconds: Sequence[float], ranks: int) -> list[TaskBar]:
    """Assign tasks in blocks of equal numbers, whatever their times.

    >>> makespan(beforehand([3, 1, 1, 1], ranks=2))
    4.0
    """
    _require(seconds, ranks)
    bars = []
    for rank, block in enumerate(blocks(len(seconds), ranks)):
        start_s = 0.0
        for number in block:
            bars.append(TaskBar(number, rank, start_s, start_s + seconds[number]))
            start_s += seconds[number]
    return bars


def makespan(bars: Sequence[TaskBar]) -> float:
    """Return the time from the first start to the last end (s)."""
    if not bars:
        return 0.0
    return float(max(bar.end_s for bar in bars) - min(bar.start_s for bar in bars))


def bounds(seconds: Sequence[float], ranks: int) -> tuple[float, float]:
    """Bound the makespan of `first_free`, without knowing the order of the tasks.

    With the sum S of the times, the longest L and p ranks:

        max(S / p, L) <= makespan <= S / p + (1 - 1 / p) L

    No schedule beats the left side, so `first_free` takes at most twice the best.

    Source:
        Graham 1969, as above.
    """
    _require(seconds, ranks)
    longest = max(seconds, default=0.0)
    share = sum(seconds) / ranks
    return max(share, longest), share + (1 - 1 / ranks) * longest


def expected_least_error(error: float, images: int, trials: int) -> float:
    """Predict the smallest validation error of several equally good nets.

    Each net has the true error e and errs on X of m images, X binomial. Of n nets

        E[min X] / m = 1/m sum_{k=0}^{m-1} P(X > k)^n

    For n = 1 this is e; it falls with n. Leaves out that real nets err on the same images, which
    brings it nearer to e.

    >>> round(expected_least_error(0.5, 1, 3), 3)
    0.125
    """
    require(0 <= error <= 1, "error", "be a share from 0 to 1", error)
    require_count(images, "images")
    require_count(trials, "trials")
    if error in (0, 1):
        return float(error)
    log_odds = math.log(error) - math.log1p(-error)
    k = np.arange(images + 1)
    factorials = np.array([math.lgamma(each + 1) for each in range(images + 1)])
    ways = factorials[-1] - factorials - factorials[::-1]
    shares = np.exp(ways + k * log_odds + images * math.log1p(-error))
    above = 1 - np.cumsum(shares)[:-1]
    return float((np.clip(above, 0, 1) ** trials).sum() / images)


def _require(seconds: Sequence[float], ranks: int) -> None:
    require_count(ranks, "ranks")
    right = all(each >= 0 for each in seconds)
    require(right, "seconds", "be at least 0 for each task", list(seconds))
