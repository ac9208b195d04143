"""Time a function several times: warm-up apart, slowest rank, median and quartiles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np

from dlguide.errors import require, require_count


@dataclass(frozen=True)
class Timing:
    """Every repeat of one measurement, in seconds; nothing is dropped but the warm-up.

    `median` is the number to quote, `low` and `high` (the quartiles) say how far to trust it.
    """

    seconds: tuple[float, ...]
    warmup_s: tuple[float, ...] = ()

    @property
    def median(self) -> float:
        """The middle one of the repeats (s)."""
        return float(np.median(self.seconds))

    @property
    def low(self) -> float:
        """The first quartile (s)."""
        return float(np.quantile(self.seconds, 0.25))

    @property
    def high(self) -> float:
        """The third quartile (s)."""
        return float(np.quantile(self.seconds, 0.75))

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a fraction of the median."""
        return (self.high - self.low) / self.median if self.median > 0 else 0.0

    def __str__(self) -> str:
        return (
            f"{_seconds(self.median)} ({_seconds(self.low)} to {_seconds(self.high)}, "
            f"{len(self.seconds)} repeats)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record; `from_dict` reads them back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Timing:
        """Read back what `as_dict` wrote, also after a journey through JSON."""
        return cls(tuple(record["seconds"]), tuple(record["warmup_s"]))


@dataclass(frozen=True)
class Ratio:
    """One time divided by another, and the range its quartiles allow."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def timing(
    function: Callable[[], Any], repeats: int = 5, warmup: int = 1, communicator: Any = None
) -> Timing:
    """Call a function again and again and keep every time it took.

    With a communicator all its ranks must call this, with the same counts: each repeat starts
    at a barrier and the slowest rank's time is everyone's, so all ranks return the same Timing.
    Leaves out the barrier itself.

    Args:
        function: what to time; called without arguments, its result is thrown away.
        repeats: calls that count (count).
        warmup: calls before them, kept apart in `warmup_s` (count).
        communicator: an mpi4py communicator; without one, this process alone.

    Returns:
        Timing: the seconds of every repeat.

    Raises:
        ValueError: when a count is not a whole number, `repeats` of at least 1.

    >>> len(timing(lambda: sum(range(1000)), repeats=3).seconds)
    3
    """
    require_count(repeats, "repeats")
    require_count(warmup, "warmup", least=0)

    def once() -> float:
        if communicator is not None:
            communicator.Barrier()
        start = perf_counter()
        function()
        elapsed = perf_counter() - start
        return elapsed if communicator is None else max(communicator.allgather(elapsed))

    before = tuple(once() for _ in range(warmup))
    return Timing(tuple(once() for _ in range(repeats)), before)


def ratio(a: Timing, b: Timing) -> Ratio:
    """Say how many times as long `a` took as `b`.

    The median is median(a) / median(b); the range goes from low(a) / high(b) to
    high(a) / low(b). Treat two measurements as different only when it leaves out 1; quartiles of a
    few repeats are no confidence interval, so that this is a rule of caution and not a proof.

    Args:
        a: the time above the line.
        b: the time below it.

    Returns:
        Ratio: median, low and high; `str()` of it reads "1.52 (1.48 to 1.57)".

    Raises:
        ValueError: when `b` took no time at all.

    >>> print(ratio(Timing((3.0, 3.0, 3.0)), Timing((2.0, 2.0, 2.0))))
    1.50 (1.50 to 1.50)
    """
    require(b.low > 0, "b", "have taken some time", b.seconds, "Let it do more work a call.")
    return Ratio(a.median / b.median, a.low / b.high, a.high / b.low)


def _seconds(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"
