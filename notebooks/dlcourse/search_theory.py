"""Lesson 61: the makespan of tasks shared by ranks, and the optimism of choosing the best.

The makespan is the time until the last rank has finished its last task. Tasks send nothing to each
other, so their times and the number of ranks determine it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

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
    """Assign tasks in their order, each to the first free rank (list scheduling)."""
    _require(seconds, ranks)
    free = [(0.0, rank) for rank in range(ranks)]
    bars = []
    for number, length in enumerate(seconds):
        start_s, rank = heapq.heappop(free)
        bars.append(TaskBar(number, rank, start_s, start_s + length))
        heapq.heappush(free, (start_s + length, rank))
    return bars


def beforehand(seconds: Sequence[float], ranks: int) -> list[TaskBar]:
    """Assign tasks in blocks of equal numbers, whatever their times."""
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
    """Bound the makespan of `first_free`, without knowing the order of the tasks."""
    _require(seconds, ranks)
    longest = max(seconds, default=0.0)
    share = sum(seconds) / ranks
    return max(share, longest), share + (1 - 1 / ranks) * longest


def expected_least_error(error: float, images: int, trials: int) -> float:
    """Predict the smallest validation error of several equally good nets."""
    require(0 <= error <= 1, "error", "be a share from 0 to 1", error)
    above = scipy.stats.binom.sf(np.arange(images), images, error)
    return float((above**trials).sum() / images)


def _require(seconds: Sequence[float], ranks: int) -> None:
    require_count(ranks, "ranks")
    right = all(each >= 0 for each in seconds)
    require(right, "seconds", "be at least 0 for each task", list(seconds))
