"""Batches: what the last one of an epoch holds, and which size serves both speed and quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.errors import require, require_count
from dlguide.training.experiments.differences import compare
from dlguide.training.experiments.record import Result, require_fraction
from dlguide.training.experiments.tables import Row, groups, table

EFFICIENT = 0.9  # of the highest throughput: below it the hardware waits for work


@dataclass(frozen=True)
class Regions:
    """Batches per worker, and the region of each, as the thesis' Figure 10 names them.

    A: too small, the throughput is low; B: serves both; C: too large, the accuracy suffers; AC:
    neither fast nor good. batches (images per worker, rising), rows (of each), regions (of
    each), efficient (share of the highest throughput that is enough).
    """

    batches: tuple[int, ...]
    rows: tuple[Row, ...]
    regions: tuple[str, ...]
    efficient: float

    @property
    def interval(self) -> tuple[int, int] | None:
        """The smallest and the largest batch of region B; None where there is none."""
        good = [b for b, r in zip(self.batches, self.regions, strict=True) if r == "B"]
        return (min(good), max(good)) if good else None

    def __str__(self) -> str:
        told = []
        for region, why in (
            ("A", f"below {100 * self.efficient:.0f} % of the highest throughput"),
            ("C", "clearly less accurate than the best"),
            ("AC", "both"),
        ):
            mine = [str(b) for b, r in zip(self.batches, self.regions, strict=True) if r == region]
            if mine:
                told.append(f"Region {region} ({why}): {', '.join(mine)}.")
        if self.interval is None:
            return " ".join(["No batch serves both speed and accuracy.", *told])
        low, high = self.interval
        best = f"{low} to {high} images" if low < high else f"{low} images"
        return " ".join([f"Region B: {best} per worker.", *told])


def last_batch(samples: int, batch: int, workers: int) -> int:
    """Count the images of one worker in the last step of an epoch.

    Each worker has ceil(samples / workers) of them, as PyTorch's sampler deals them out, and
    takes `batch` of them at a time: the last step has what is left.

    Args:
        samples: training images (count).
        batch: images per worker and step (count).
        workers: that train together (count).

    Returns:
        int: between 1 and `batch` (count).

    Raises:
        ValueError: when a count is not at least 1.

    Source:
        The thesis trains on 1 281 167 images with batches of 128 and meets trouble it could not
        explain with 24 workers only, whose last step has 6 images each (sections 5.4 to 5.9 and
        6.2; that the one has to do with the other is a hypothesis).

    >>> [last_batch(1_281_167, 128, workers) for workers in (1, 8, 16, 24, 32)]
    [15, 18, 73, 6, 101]
    """
    own = -(-require_count(samples, "samples") // require_count(workers, "workers"))
    return (own - 1) % require_count(batch, "batch") + 1


def best_batch(results: Sequence[Result], efficient: float = EFFICIENT) -> Regions:
    """Find the batches per worker that are neither too small for the hardware nor too large.

    Region A ends at the smallest batch that reaches `efficient` of the highest throughput. Region
    C begins at the smallest batch from which on all diverge with some seed, or are clearly less
    accurate than the best one of those that never do (`Difference.clear`). With one seed no
    difference is clear, and only what diverges is in region C.

    Args:
        results: that differ in `batch` and seed only; the others are left out.
        efficient: share of the highest throughput that is enough.

    Returns:
        Regions: prints as a sentence.

    Raises:
        ValueError: when there are fewer than two batches.

    Source:
        The thesis, section 3.3 and Figure 10, after Ben-Nun and Hoefler, arXiv:1802.09941.
    """
    require_fraction(efficient, "efficient")
    sizes = {one.setting.batch: one for one in results}
    require(len(sizes) > 1, "results", "hold two batches or more", sorted(sizes))
    rows, each = table(results, by="batch"), groups(results, by="batch")
    batches = sorted(b for b in sizes if f"batch {b}" in each)
    require(len(batches) > 1, "results", "differ in `batch` alone", batches)
    names = [f"batch {b}" for b in batches]
    speeds = [rows[name].images_per_s or 0.0 for name in names]
    enough = [speed >= efficient * max(speeds) for speed in speeds]
    lost = {name for name in names if rows[name].diverged}
    sound = [name for name in names if name not in lost]
    best = max(sound, key=lambda name: rows[name].accuracy, default=None)
    worse = [name in lost or _worse(each[name], each[best]) for name in names]
    regions = []
    for place in range(len(batches)):
        slow, spoilt = not any(enough[: place + 1]), all(worse[place:])
        regions.append("AC" if slow and spoilt else "A" if slow else "C" if spoilt else "B")
    chosen = tuple(rows[name] for name in names)
    return Regions(tuple(batches), chosen, tuple(regions), efficient)


def _worse(ones: list[Result], best: list[Result]) -> bool:
    if ones is best:
        return False
    difference = compare(ones, best)
    return difference.clear and difference.mean < 0
