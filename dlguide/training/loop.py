"""One epoch of training: the loop itself, with every step's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.data.datasets import RankShard
from dlguide.training.feeding import Batch

if TYPE_CHECKING:
    import keras

_REPORT_PAUSE_S = 0.1


class Steps:
    """What was measured of the steps so far: begin, seconds, seconds of waiting, global images."""

    def __init__(self) -> None:
        self.begin_s: list[float] = []  # by `perf_counter`
        self.step_s: list[float] = []
        self.wait_s: list[float] = []
        self.images: list[int] = []

    def images_per_s(self) -> float:
        """Give the mean over all steps, the slow first one inside (images of all ranks / s)."""
        return sum(self.images) / sum(self.step_s) if self.step_s else 0.0


def train_epoch(
    step: Callable[..., Any],
    batches: Iterator[Batch] | Iterator[tuple[Batch, ...]],
    parts: list[RankShard],
    measured: Steps,
    report: Callable[..., None],
    first: int = 0,
    until: int | None = None,
    sums: tuple[float, float] = (0.0, 0.0),
    after: Callable[..., None] | None = None,
) -> tuple[float, float]:
    """Take the steps of one epoch, or a stretch of them, each as soon as the one before is done."""
    (total, right), done = sums, 0
    done_here = sum(len(part.indices) for part in parts[:first])
    begin = reported = perf_counter()
    reported_images = 0
    for number, part in enumerate(parts[first:until], start=first + 1):
        batch = next(batches)
        ready = perf_counter()
        loss, told_right = (float(number) for number in np.asarray(step(*batch)))
        end = perf_counter()
        measured.begin_s.append(begin)
        measured.step_s.append(end - begin)
        measured.wait_s.append(ready - begin)
        measured.images.append(part.global_size)
        begin = end
        total, right = total + loss * part.global_size, right + told_right
        done, done_here = done + part.global_size, done_here + len(part.indices)
        if end - reported >= _REPORT_PAUSE_S or number == len(parts):
            speed = (done - reported_images) / (end - reported)
            mean = total / max(done_here, 1)
            report(step=number, steps=len(parts), loss=mean, images_per_s=speed)
            reported, reported_images = end, done
        if after is not None:
            after(loss, step=number)
    return total, right


def reseed_dropout(model: keras.Model, seed: int, rank: int, step: int) -> None:
    """Set the model's random generators to what belongs to this rank and step.

    Ranks drop different units, and a training that goes on from a checkpoint drops those that
    it would have dropped had it not been interrupted, with no generator's state to store.
    """
    weights = {id(weight) for weight in model.weights}
    states = [variable for variable in model.variables if id(variable) not in weights]
    for layer, state in enumerate(states):
        first = np.random.SeedSequence([seed, rank, layer]).generate_state(1)[0] >> 1
        state.assign(np.asarray([first, step], dtype=state.dtype))
