"""A mean throughput taken apart: the first batch, and all the others.

The first batch waits for readers to start, for tables of kernels to be tried, for connections. A
mean over a few hundred batches holds it, and so two systems may seem to differ in what they do
all the time while they differ in how they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_positive


@dataclass(frozen=True)
class StartUp:
    """So many batches: the time of the first, and the mean of the others."""

    images: int
    batches: int
    first_s: float
    others_s: float
    rounding_s: float = 0.0

    @property
    def images_per_s(self) -> float:
        """Without the first batch."""
        return self.images / self.others_s

    @property
    def range(self) -> tuple[float, float]:
        """Lowest and highest images/s without the first batch that the rounding allows."""
        slow, fast = self.others_s + self.rounding_s, self.others_s - self.rounding_s
        return self.images / slow, self.images / fast

    @property
    def images_per_s_with_first(self) -> float:
        """Over all batches that were timed."""
        return self.after(self.batches)

    def after(self, batches: int) -> float:
        """Give the mean throughput over the first batches."""
        return self.images * require_count(batches, "batches") / self.seconds(batches)

    def seconds(self, batches: int) -> float:
        """Give the time of the first batches."""
        return self.first_s + (batches - 1) * self.others_s


def from_mean(
    images_per_s: float, images: int, batches: int, first_s: float, rounding_s: float = 0.0
) -> StartUp:
    """Take the first batch out of a mean.

        mean = images / images_per_s
        others = (batches * mean - first) / (batches - 1)

    >>> round(from_mean(5696.80, 32 * 128, 200, 21.925).images_per_s)
    6688
    """
    require_positive(images_per_s, "images_per_s")
    require_count(batches, "batches", least=2)
    whole = batches * require_count(images, "images") / images_per_s
    then = "Is the throughput that of all workers, and the batch too?"
    must = f"be shorter than all {batches} batches together, {whole:.3g} s"
    require(0 <= first_s < whole, "first_s", must, first_s, then)
    share = batches / (batches - 1)
    return StartUp(images, batches, first_s, (whole - first_s) / (batches - 1), rounding_s * share)


def from_steps(step_s: Sequence[float], images: int) -> StartUp:
    """Take the first batch out of the times of all, such as a `Run`'s `step_s`."""
    require(len(step_s) > 1, "step_s", "hold at least 2 steps", len(step_s))
    others = sum(step_s[1:]) / (len(step_s) - 1)
    return StartUp(require_count(images, "images"), len(step_s), float(step_s[0]), float(others))


def overtakes(late: StartUp, early: StartUp) -> float:
    """Find after how many batches the one with the longer start has caught up.

    late.first + (n - 1) late.others = early.first + (n - 1) early.others
    """
    behind, gain = late.first_s - early.first_s, early.others_s - late.others_s
    if behind <= 0:
        return 1.0
    return 1.0 + behind / gain if gain > 0 else float("inf")
