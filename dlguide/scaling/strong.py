"""Strong scaling: the same global batch on more and more workers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require, require_count, require_known

# What an exchange costs, by the algorithm that it may be: shapes over p, 0 for one worker.
SHAPES = {
    "ring": lambda p: 2 * (p - 1) / p,
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
        """What the fit rests on, sentences."""
        return (
            "The number of steps is the same at all points, and so is what a step exchanges.",
            "A worker's time is a straight line over its images: fixed + images x cost.",
            f"The exchange grows as a {self.shape} does, and hides behind nothing.",
            "All workers are equal; none waits for its input.",
        )

    def parts(self, batch: float, workers: int) -> dict[str, float]:
        """Tell what the time is made of."""
        p = require_count(workers, "workers")
        require(0 < batch < math.inf, "batch", "be above 0", batch)
        return {
            "fixed": self.fixed_s,
            "images": self.image_s * batch / p,
            "exchange": self.exchange_s * SHAPES[self.shape](p),
        }

    def seconds(self, batch: float, workers: int) -> float:
        """Predict the time."""
        return math.fsum(self.parts(batch, workers).values())

    def speedup(self, batch: float, workers: int) -> float:
        """Predict how many times sooner p workers have done the same work."""
        return self.seconds(batch, 1) / self.seconds(batch, workers)

    def best_workers(self, batch: float) -> int:
        """Find where more workers make it slower, or bring less than 1 % for twice as many."""
        p = 1
        while p < MOST_WORKERS:
            if self.seconds(batch, 2 * p) > 0.99 * self.seconds(batch, p):
                return p
            p *= 2
        return p

    def most_speedup(self, batch: float) -> float:
        """Predict the largest speed-up that any number of workers reaches."""
        return max(self.speedup(batch, p) for p in range(1, MOST_WORKERS + 1))


def fit(points: Iterable[tuple[int, int, float]], shape: str | None = None) -> StrongFit:
    """Fit the three costs to measured times, by the least sum of squared relative errors.

    No cost may be negative. Leaves out what overlaps, and waiting for the slowest.

    Args:
        points: global batch (count), workers (count), time (s); two batches on one worker tell
            fixed cost and cost of an image apart, a larger count tells the exchange.
        shape: one of `SHAPES`; None for the one that fits best.

    Returns:
        StrongFit: ask it for times.

    Raises:
        ValueError: when there are fewer than three different pairs of batch and workers, or no
            two counts of workers, or a number is out of range.

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
    batch, workers, seconds = (np.array(column, float) for column in zip(*rows, strict=True))
    terms = [np.ones(len(rows)), batch / workers, np.array([SHAPES[shape](p) for p in workers])]
    costs = _least_squares_not_negative(np.stack(terms, 1) / seconds[:, None])
    errors = (np.stack(terms, 1) @ costs) / seconds - 1
    fixed_s, image_s, exchange_s = (float(cost) for cost in costs)
    return StrongFit(fixed_s, image_s, exchange_s, shape, rows, tuple(map(float, errors)))


def _least_squares_not_negative(scaled: np.ndarray) -> np.ndarray:
    """Solve scaled @ costs = 1: of all subsets of costs, the best whose solution is positive."""
    kinds = scaled.shape[1]
    best, least = np.zeros(kinds), math.inf
    for chosen in range(1, 1 << kinds):
        used = [kind for kind in range(kinds) if chosen >> kind & 1]
        found = np.linalg.lstsq(scaled[:, used], np.ones(len(scaled)), rcond=None)[0]
        away = float(((scaled[:, used] @ found - 1) ** 2).sum())
        if (found >= 0).all() and away < least:
            best, least = np.zeros(kinds), away
            best[used] = found
    return best
