"""Phases of a training: the first batch, the load of the cores, copies to a device.

The first batch waits for readers to start, kernels to be tuned and connections to open. A mean
over a few hundred batches contains it, so two systems may seem to differ in every batch while they
differ in how they start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

import numpy as np

from dlcourse.utilisation import Utilisation
from dlguide.errors import require, require_count, require_positive
from dlguide.measure import TrainingResult


@dataclass(frozen=True)
class StartUp:
    """Time of the first of several batches, and of one of the others (mean or median)."""

    images: int
    batches: int
    first_s: float
    others_s: float
    rounding_s: float = 0.0

    @property
    def images_per_s(self) -> float:
        """Throughput without the first batch."""
        return self.images / self.others_s

    @property
    def range(self) -> tuple[float, float]:
        """Bounds of the throughput without the first batch, by the rounding of the source."""
        slow, fast = self.others_s + self.rounding_s, self.others_s - self.rounding_s
        return self.images / slow, self.images / fast

    @property
    def images_per_s_with_first(self) -> float:
        """Throughput over all batches."""
        return self.after(self.batches)

    def after(self, batches: int) -> float:
        """Return the mean throughput over the first batches."""
        return self.images * require_count(batches, "batches") / self.seconds(batches)

    def seconds(self, batches: int) -> float:
        """Return the time of the first batches (s)."""
        return self.first_s + (batches - 1) * self.others_s


def from_mean(
    images_per_s: float, images: int, batches: int, first_s: float, rounding_s: float = 0.0
) -> StartUp:
    """Separate the first batch from a mean."""
    require_count(batches, "batches", least=2)
    whole = (
        batches * require_count(images, "images") / require_positive(images_per_s, "images_per_s")
    )
    then = "Is the throughput that of all workers, and the batch too?"
    must = f"be shorter than all {batches} batches together, {whole:.3g} s"
    require(0 <= first_s < whole, "first_s", must, first_s, then)
    share = batches / (batches - 1)
    return StartUp(images, batches, first_s, (whole - first_s) / (batches - 1), rounding_s * share)


def from_steps(step_s: Sequence[float], images: int) -> StartUp:
    """Separate the first batch from the median of the others, of a `TrainingResult`'s `step_s`."""
    require(len(step_s) > 1, "step_s", "hold at least 2 steps", len(step_s))
    others = np.median(step_s[1:])
    return StartUp(require_count(images, "images"), len(step_s), float(step_s[0]), float(others))


def load_by_phase(record: Utilisation, runs: Sequence[TrainingResult]) -> dict[str, float]:
    """Return the mean load of all cores in each phase of a training (percent).

    "idle" has only samples that lie wholly between a mark "idle" and the next mark. What lies
    neither there nor in a phase, such as starting a call on the ranks, counts nowhere.
    """
    require(len(record.time_s) > 0, "record", "hold at least one sample", 0, "Wait longer.")
    spans = sorted(
        (run.started_unix_s - record.started_unix_s + begin,
         run.started_unix_s - record.started_unix_s + end, name)
        for run in runs
        for name, begin, end in run.phases
    )  # fmt: skip
    marks = [*record.marks, (record.time_s[-1], "end")]
    idle = [(at, after) for (at, name), (after, _) in pairwise(marks) if name == "idle"]
    spent: dict[str, list[float]] = {name: [0.0, 0.0] for _, _, name in spans}
    spent["idle"] = [0.0, 0.0]
    start = 0.0
    for end, busy in zip(record.time_s, record.busy, strict=True):
        begin, middle, start = start, (start + end) / 2, end
        phase = next((name for at, stop, name in spans if at <= middle < stop), None)
        if phase is None and any(at <= begin and end <= after for at, after in idle):
            phase = "idle"
        if phase is not None:
            spent[phase][0] += (end - begin) * sum(busy) / len(busy)
            spent[phase][1] += end - begin
    return {name: load / length for name, (load, length) in spent.items() if length > 0}


def copy_seconds(nbytes: int, device: str = "GPU:0", repeats: int = 5) -> tuple[float, float]:
    """Return the times of copying an array from the host to a device and back (s)."""
    import tensorflow as tf

    there, back = [], []
    array = np.zeros(max(1, nbytes // 4), np.float32)
    for _ in range(repeats + 1):
        start = perf_counter()
        with tf.device(device):
            # a sum of one element is here only when the copy has arrived
            copied = tf.identity(tf.constant(array))
            float(copied[0])
        middle = perf_counter()
        np.array(copied)
        there.append(middle - start)
        back.append(perf_counter() - middle)
    return float(np.median(there[1:])), float(np.median(back[1:]))
