"""How long ranks take to share tasks: predicted from the seconds of each task.

The makespan is the time until the last rank has finished its last task. Nothing is sent between
tasks, so tasks and ranks are all there is to know.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.cluster.tasks import blocks
from dlguide.errors import require, require_count


@dataclass(frozen=True)
class Bar:
    """One task on one rank."""

    number: int
    rank: int
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it takes (s)."""
        return self.end_s - self.start_s


def first_free(seconds: Sequence[float], ranks: int) -> list[Bar]:
    """Deal tasks in their order, each to the rank that is free first.

    Leaves out the time between two tasks, and that ranks of one machine slow each other down.

    Source:
        Graham, Bounds on Multiprocessing Timing Anomalies, SIAM J. Appl. Math. 17 (1969): list
        scheduling.

    >>> makespan(first_free([3, 1, 1, 1], ranks=2))
    3.0
    """
    _require(seconds, ranks)
    free = [(0.0, rank) for rank in range(ranks)]
    bars = []
    for number, length in enumerate(seconds):
        start_s, rank = heapq.heappop(free)
        bars.append(Bar(number, rank, start_s, start_s + length))
        heapq.heappush(free, (start_s + length, rank))
    return bars


def beforehand(seconds: Sequence[float], ranks: int) -> list[Bar]:
    """Deal tasks in blocks of equal numbers, without asking how long they take.

    >>> makespan(beforehand([3, 1, 1, 1], ranks=2))
    4.0
    """
    _require(seconds, ranks)
    bars = []
    for rank, block in enumerate(blocks(len(seconds), ranks)):
        start_s = 0.0
        for number in block:
            bars.append(Bar(number, rank, start_s, start_s + seconds[number]))
            start_s += seconds[number]
    return bars


def makespan(bars: Sequence[Bar]) -> float:
    """Return the time from the first begin to the last end."""
    if not bars:
        return 0.0
    return float(max(bar.end_s for bar in bars) - min(bar.start_s for bar in bars))


def bounds(seconds: Sequence[float], ranks: int) -> tuple[float, float]:
    """Bound the makespan of `first_free`, without knowing the order of the tasks.

    With the sum S of the times, the longest L and p ranks:

        max(S / p, L) <= makespan <= S / p + (1 - 1 / p) L

    No schedule at all beats the left side; so first free is never worse than twice the best.

    Source:
        Graham 1969, as above.
    """
    _require(seconds, ranks)
    longest = max(seconds, default=0.0)
    share = sum(seconds) / ranks
    return max(share, longest), share + (1 - 1 / ranks) * longest


def _require(seconds: Sequence[float], ranks: int) -> None:
    require_count(ranks, "ranks")
    right = all(each >= 0 for each in seconds)
    require(right, "seconds", "be at least 0 for each task", list(seconds))
