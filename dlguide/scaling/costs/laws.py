"""Laws of speed-up, and what waiting for the slowest of many costs."""

from __future__ import annotations

import math
from statistics import NormalDist

from dlguide.errors import require, require_count


def amdahl(serial_fraction: float, workers: int) -> float:
    """Speed-up of a fixed amount of work: 1 / (s + (1 - s) / p), never more than 1 / s.

    Args:
        serial_fraction: s, what only one worker can do, measured on one worker (fraction).
        workers: p (count).

    Returns:
        float: the speed-up.

    Source:
        Amdahl, AFIPS Conference Proceedings 30 (1967), 483-485.
    """
    _check_fraction(serial_fraction)
    return 1 / (serial_fraction + (1 - serial_fraction) / require_count(workers, "workers"))


def gustafson(serial_fraction: float, workers: int) -> float:
    """Speed-up of work that grows with the workers: s + (1 - s) p.

    Args:
        serial_fraction: s, the share of time in which one worker works, measured on p (fraction).
        workers: p (count).

    Returns:
        float: the speed-up, against one worker that does all the work.

    Source:
        Gustafson, Communications of the ACM 31 (1988), 532-533.
    """
    _check_fraction(serial_fraction)
    return serial_fraction + (1 - serial_fraction) * require_count(workers, "workers")


def slowest(workers: int) -> float:
    """Expected time of the slowest of p workers, in standard deviations above the mean.

    For independent, normally distributed step times: 0 for one worker, 0.56 for 2, 1.03 for 4,
    2.5 for 100, 3.2 for 1000; it grows like sqrt(2 ln p).

    Args:
        workers: p (count).

    Returns:
        float: the mean of the largest of p standard normal numbers.
    """
    p = require_count(workers, "workers")
    if p == 1:
        return 0.0
    # E[max] is the integral of 1 - F(x)^p - F(-x)^p over x > 0, F the normal distribution.
    normal, width, end = NormalDist(), 1e-3, 9.0
    inside = (
        1 - normal.cdf(x) ** p - normal.cdf(-x) ** p
        for x in (width * (i + 0.5) for i in range(round(end / width)))
    )
    return math.fsum(inside) * width


def _check_fraction(value: float) -> None:
    require(0 <= value <= 1, "serial_fraction", "lie between 0 and 1", value)
