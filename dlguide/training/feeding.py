"""What a training eats: batches of arrays in memory, or of an input pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.communicator import Communicator
from dlguide.data import datasets
from dlguide.data.datasets import Dataset, RankShard
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import DataError, require
from dlguide.training.schedules_steps import whole_steps

if TYPE_CHECKING:
    import keras

# Images, labels, and the weight of each sample in the mean over the global batch.
Batch = tuple[Any, Any, float]


def gathered(data: Dataset, parts: list[RankShard], first: int = 0) -> Iterator[Batch]:
    """Take each step's samples out of arrays."""
    images, labels = data.train_images, data.train_labels
    # Also where the last step alone is asked for: its image goes into the moving averages.
    seen = np.concatenate([np.zeros(1, int), *(part.indices[:1] for part in parts[:first])])[-1:]
    for part in parts[first:]:
        if len(part.indices):
            seen = part.indices[:1]
            yield images[part.indices], labels[part.indices], 1 / part.global_size
        else:
            yield images[seen], labels[seen], 0.0


class ArrayFeed:
    """Takes each step's samples out of arrays."""

    def __init__(
        self,
        data: Dataset,
        batch: int,
        seed: int,
        shuffle: bool,
        rank: int,
        ranks: int,
        model: keras.Model,
    ) -> None:
        self.data, self.samples = data, len(data.train_labels)
        self._order = partial(
            datasets.epoch_batches, self.samples, batch, rank, ranks,
            seed=seed, shuffle=shuffle,
        )  # fmt: skip
        classes = model.outputs[0].shape[-1]
        wrong = np.flatnonzero((data.train_labels < 0) | (data.train_labels >= classes))
        if len(wrong):
            must = f"have labels from 0 to {classes - 1} for this net"
            found = f"{data.train_labels[wrong[0]]} for training sample {wrong[0]}"
            require(False, "data", must, found)

    def steps(self, epoch: int) -> list[RankShard]:
        """Say which samples this rank uses in which step of an epoch."""
        return self._order(epoch=epoch)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Give one batch for every step, as an epoch from its start would."""
        return gathered(self.data, self.steps(epoch), first)

    def check(self) -> None:
        """Nothing can have failed."""


class PipelineFeed:
    """Takes each step's samples from a pipeline, one batch for every step whatever happens.

    A rank whose data turn out to be damaged, or not to be what the net takes, would leave the
    others waiting in their allreduce. So it goes on to the end of the epoch with a batch of
    weight 0, and `check` then raises on all ranks. A process alone raises at once.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        comm: Communicator,
        model: keras.Model,
        plain_from: float | None = None,
    ) -> None:
        self.pipeline, self.comm = pipeline, comm
        self._plain: Pipeline | None = None
        if plain_from is not None and any(one.draws for one in pipeline.augment):
            self._plain = pipeline.without_augmentation()
            self._plain_step = whole_steps(plain_from, len(pipeline.steps(0)))
        self.samples, self.steps = pipeline.samples, pipeline.steps
        self._shape = tuple(model.inputs[0].shape[1:])
        self._classes = model.outputs[0].shape[-1]
        self._failure: Exception | None = None

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Give one batch for every step, as an epoch from its start would."""
        last, steps = None, self.steps(epoch)
        # A rank without samples in the last step takes an image of the step before it.
        begin = first - 1 if 0 < first < len(steps) and not len(steps[first].indices) else first
        for pipeline, start, end in self._pieces(epoch, begin, len(steps)):
            with pipeline.epoch(epoch, start) as passing:
                for number, part in enumerate(passing.steps[: end - start], start=start):
                    batch = self._next(passing, part) if self._failure is None else None
                    if number < first:
                        last = None if batch is None else (batch[0][:1], batch[1][:1])
                    elif batch is None or not len(part.indices):
                        yield *(self._spare() if last is None else last), 0.0
                    else:
                        last = batch[0][:1], batch[1][:1]
                        yield *batch, 1 / part.global_size

    def _pieces(self, epoch: int, begin: int, steps: int) -> list[tuple[Pipeline, int, int]]:
        """Give the pipelines of an epoch from a step on: before and after images become plain."""
        split = steps if self._plain is None else self._plain_step - epoch * steps
        split = min(max(split, begin), steps)
        pieces = [(self.pipeline, begin, split), (self._plain, split, steps)]
        return [(one, start, end) for one, start, end in pieces if one is not None and start < end]

    def check(self) -> None:
        """Fail on all ranks where one of them could not use its data; all must call it."""
        with self.comm.agree_or_raise():
            if self._failure is not None:
                raise self._failure

    def _next(self, passing: Any, part: RankShard) -> tuple[Any, Any] | None:
        """Take the next batch, and note it when it cannot be used."""
        try:
            images, labels = next(passing)
            self._require_fit(images, labels, part)
        except Exception as error:
            if self.comm.size == 1:
                raise
            self._failure = error
            return None
        return images, labels

    def _require_fit(self, images: Any, labels: Any, part: RankShard) -> None:
        shape, name = tuple(images.shape[1:]), self.pipeline.name
        fits = len(shape) == len(self._shape) and all(
            wanted in (None, found) for wanted, found in zip(self._shape, shape, strict=True)
        )
        if not fits:
            raise DataError(f"{name}: images of {shape}, but the net takes {self._shape}.")
        labels = np.asarray(labels)
        wrong = np.flatnonzero((labels < 0) | (labels >= self._classes))
        if len(wrong):
            place = int(wrong[0])
            what = f"has label {labels[place]}, the net has classes 0 to {self._classes - 1}"
            raise self.pipeline.source.damaged(int(part.indices[place]), what)

    def _spare(self) -> tuple[Any, Any]:
        """Make up an image for a rank that has not seen any."""
        shape = [length or 32 for length in self._shape]
        return np.zeros((1, *shape), np.float32), np.zeros(1, np.int32)
