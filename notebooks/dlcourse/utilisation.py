"""Utilisation of every core while something runs, sampled in a thread."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import time

from dlguide.errors import require_positive


@dataclass(frozen=True)
class Utilisation:
    """Busy fraction of every core over time.

    started_unix_s is the clock at the start; time_s[i] (s after it) ends the interval that
    busy[i] (percent of each core in `cpus`, of all processes together) is the mean of; marks
    are (s after the start, name) of what began then.
    """

    started_unix_s: float
    cpus: tuple[int, ...]
    time_s: tuple[float, ...]
    busy: tuple[tuple[float, ...], ...]
    marks: tuple[tuple[float, str], ...] = ()


class UtilisationRecorder:
    """Recorder of a `utilisation` block: `mark` inside it, `record` after it."""

    def __init__(self, cpus: tuple[int, ...]) -> None:
        self._cpus = cpus
        self._started = time()
        self._time_s: list[float] = []
        self._busy: list[tuple[float, ...]] = []
        self._marks: list[tuple[float, str]] = []

    def mark(self, name: str) -> None:
        """Mark that something begins now: train, evaluate, idle, ..."""
        self._marks.append((time() - self._started, name))

    @property
    def record(self) -> Utilisation:
        """The samples so far."""
        return Utilisation(
            self._started, self._cpus, tuple(self._time_s), tuple(self._busy), tuple(self._marks)
        )

    def _sample(self, interval_s: float, stop: Event) -> None:
        before, last = _ticks(), False
        while not last:
            last = stop.wait(interval_s)
            now = _ticks()
            self._time_s.append(time() - self._started)
            self._busy.append(tuple(_busy_percent(before[cpu], now[cpu]) for cpu in self._cpus))
            before = now


@contextmanager
def utilisation(interval_s: float = 0.2) -> Iterator[UtilisationRecorder]:
    """Sample the utilisation of every core that this process may use while the block runs.

    All processes count, so a notebook can use it around a training on ranks: the ranks'
    `TrainingResult.phases` have the same clock, and `plots.utilisation` draws both. Sampling
    every `interval_s` takes about 1 % of one core.

    Yields:
        UtilisationRecorder: `.mark(name)` inside the block, `.record` after it.

    Raises:
        ValueError: if `interval_s` is not positive.
    """
    require_positive(interval_s, "interval_s")
    recorder = UtilisationRecorder(tuple(sorted(os.sched_getaffinity(0))))
    stop = Event()
    sampler = Thread(target=recorder._sample, args=(interval_s, stop), daemon=True)
    sampler.start()
    try:
        yield recorder
    finally:
        stop.set()
        sampler.join()


def _ticks() -> dict[int, tuple[int, int]]:
    # /proc/stat and not psutil: its lines name the core, where psutil's list has only places,
    # which shift when a core is offline.
    ticks = {}
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *counts = line.split()
        if name.startswith("cpu") and name != "cpu":
            _user, _nice, _system, idle, iowait, *_ = numbers = [int(count) for count in counts[:8]]
            ticks[int(name[3:])] = (idle + iowait, sum(numbers))
    return ticks


def _busy_percent(before: tuple[int, int], now: tuple[int, int]) -> float:
    idle, all_ticks = now[0] - before[0], now[1] - before[1]
    return 100.0 * max(0.0, 1 - idle / all_ticks) if all_ticks > 0 else 0.0
