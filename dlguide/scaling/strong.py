"""Strong scaling: the same global batch on more and more workers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dlguide.collectives import ring_share
from dlguide.errors import require, require_count, require_known

__all__ = ["SHAPES", "StrongFit", "fit"]

# Growth of the exchange with p, by algorithm; 0 for one worker.
SHAPES = {
    "ring": ring_share,
    "tree": lambda p: math.ceil(math.log2(p)),
    "server": lambda p: p - 1.0,
}
MOST_WORKERS = 4096


@dataclass(frozen=True)
class StrongFit:
    """The time of some work as a function of its global batch and its workers.

    t(B, p) = fixed_s + image_s B / p + exchange_s shape(p)
    """

    fixed_s: float
    image_s: float
    exchange_s: float
    shape: str
    points: tuple[tuple[int, int, float], ...]
    errors: tuple[float, ...]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the fit (sentences)."""
        return (
            "The number of steps is the same at all points, and so is what a step exchanges.",
            "A worker's time is a straight line over its images: fixed + images x cost.",
            f"The exchange grows as a {self.shape} does, and overlaps with nothing.",
            "All workers are equal; none waits for input.",
        )

    def parts(self, global_batch: float, workers: int) -> dict[str, float]:
        """Return the terms of the time: fixed, images, exchange (s)."""
        p = require_count(workers, "workers")
        require(0 < global_batch < math.inf, "global_batch", "be above 0", global_batch)
        return {
            "fixed": self.fixed_s,
            "images": self.image_s * global_batch / p,
            "exchange": self.exchange_s * SHAPES[self.shape](p),
        }

    def seconds(self, global_batch: float, workers: int) -> float:
        """Predict the time (s)."""
        return math.fsum(self.parts(global_batch, workers).values())

    def speedup(self, global_batch: float, workers: int) -> float:
        """Predict the speed-up of p workers over one."""
        return self.seconds(global_batch, 1) / self.seconds(global_batch, workers)

    def best_workers(self, global_batch: float) -> int:
        """Return the workers (a power of two) beyond which doubling them gains less than 1 %."""
        p = 1
        while p < MOST_WORKERS:
            if self.seconds(global_batch, 2 * p) > 0.99 * self.seconds(global_batch, p):
                return p
            p *= 2
        return p

    def most_speedup(self, global_batch: float) -> float:
        """Predict the largest speed-up with up to `MOST_WORKERS` workers."""
        return max(self.speedup(global_batch, p) for p in range(1, MOST_WORKERS + 1))


def fit(points: Iterable[tuple[int, int, float]], shape: str | None = None) -> StrongFit:
    """Fit the three costs to measured times, by the least sum of squared relative errors.

    No cost may be negative. Leaves out what overlaps, and waiting for the slowest.

    Args:
        points: global batch, workers, time (s); two batches on one worker separate the fixed cost
            from the cost of an image, a larger number of workers determines the exchange.
        shape: one of `SHAPES`; None for the one that fits best.

    Returns:
        StrongFit: the three costs and the errors of the fit.

    Raises:
        ValueError: if there are fewer than three different pairs of batch and workers, or only
            one number of workers, or a value is out of range.

    Source:
        The published series: tutorial, demo of S-Caffe's strong scaling (AlexNet).
    """
    rows = tuple((batch, p, float(seconds)) for batch, p, seconds in points)
    for batch, p, seconds in rows:
        require_count(batch, "batch")
        require_count(p, "workers")
        require(0 < seconds < math.inf, "points", "have times above 0", seconds)
    pairs = {(batch, p) for batch, p, _ in rows}
    then = "Measure two batches on one worker, and one of them on more."
    must = "hold three pairs of batch and workers, several of each"
    enough = len(pairs) > 2 and len({p for _, p in pairs}) > 1 and len({b for b, _ in pairs}) > 1
    require(enough, "points", must, sorted(pairs), then)
    names = list(SHAPES) if shape is None else [require_known(shape, SHAPES, "shape")]
    fits = [_fitted(rows, name) for name in names]
    return min(fits, key=lambda each: math.fsum(error**2 for error in each.errors))


def _fitted(rows: tuple[tuple[int, int, float], ...], shape: str) -> StrongFit:
    from scipy.optimize import nnls

    batch, workers, seconds = (np.array(column, float) for column in zip(*rows, strict=True))
    terms = [np.ones(len(rows)), batch / workers, np.array([SHAPES[shape](p) for p in workers])]
    costs = nnls(np.stack(terms, 1) / seconds[:, None], np.ones(len(rows)))[0]
    errors = (np.stack(terms, 1) @ costs) / seconds - 1
    fixed_s, image_s, exchange_s = (float(cost) for cost in costs)
    return StrongFit(fixed_s, image_s, exchange_s, shape, rows, tuple(map(float, errors)))
