"""What a training spent its time on: named phases, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter, time


class Clock:
    """Runs from its making; `phase` names stretches of time, which may come again."""

    def __init__(self) -> None:
        self.started_unix_s, self._start = time(), perf_counter()
        self.phases: list[tuple[str, float, float]] = []

    @property
    def now_s(self) -> float:
        """Time since the start (s)."""
        return perf_counter() - self._start

    def after_start_s(self, counter_s: float) -> float:
        """Give a time that `perf_counter` told as one after the start."""
        return counter_s - self._start

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the block's time to a name."""
        begin = self.now_s
        yield
        self.phases.append((name, begin, self.now_s))

    def total_s(self, name: str) -> float:
        """Give the time of all phases of a name."""
        return float(sum(end - begin for phase, begin, end in self.phases if phase == name))
