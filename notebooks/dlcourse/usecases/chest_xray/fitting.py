"""The loop of the case: `training.fit`'s pieces, for radiographs with many labels each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray.steps import label_step
from dlguide import measure
from dlguide.collectives.communicator import Communicator
from dlguide.data.input_pipeline import Pipeline
from dlguide.training import checkpoint as checkpoints
from dlguide.training import optimizers
from dlguide.training.divergence import Watch
from dlguide.training.feeding import PipelineFeed
from dlguide.training.loop import Steps, reseed_dropout, train_epoch
from dlguide.training.saving import Saver, Start
from dlguide.training.schedules import Recipe, as_keras
from dlguide.training.workers import own_state

if TYPE_CHECKING:
    import keras

INFERENCE_BLOCK = 200


@dataclass(frozen=True)
class Stage:
    """What one stage is asked to do; `saving.Saver` reads it as it reads the arguments of `fit`."""

    name: str
    batch: int
    schedule: Recipe
    seed: int
    about: dict[str, Any]
    checkpoint: str | None = None
    keep_all: bool = False
    save_every: None = None
    workers: int = 1

    @property
    def epochs(self) -> int:
        """Passes over the radiographs (count)."""
        return round(self.schedule.epochs)

    def identity(self) -> dict[str, Any]:
        """Give what cannot change when the training goes on."""
        told = {"stage": self.name, "seed": self.seed, "schedule": self.schedule.config()}
        return told | self.about


@dataclass(frozen=True)
class Fitted:
    """What a stage came to, as this rank saw it."""

    epochs: int
    first_epoch: int
    loss: tuple[float, ...]
    rates: tuple[float, ...]
    steps_per_epoch: int
    samples: int
    step_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    images_per_s: float
    digest: str


class StageSaver(Saver):
    """The checkpoints of a stage: of a pre-training all of them, each with its learning rate."""

    def __init__(self, asked: Stage, comm: Communicator, rates: tuple[float, ...]) -> None:
        super().__init__(asked, comm)
        self._rates = rates
        self.loss: list[float] = []  # of the epochs done

    def resume(self, model: keras.Model, rule: keras.Optimizer) -> Start:
        """Set all ranks to the last checkpoint, and remember the losses until there."""
        start, told = super().resume(model, rule), "[]"
        with self._comm.agree_or_raise():
            if start.epoch and self._comm.rank == 0:
                found, _ = checkpoints.read(checkpoints.latest(self._asked.checkpoint))
                told = json.dumps(found.settings.get("loss", []))
        self.loss = json.loads(self._comm.allgather(told)[0])
        return start

    def save(self, epoch: int, steps: int) -> None:
        """Write a checkpoint of an epoch's end; all ranks must call it."""
        asked, done = self._asked, self._before + steps
        about = self._identity() | {"rate": self._rates[epoch - 1], "loss": self.loss}
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:
                checkpoints.save(
                    asked.checkpoint, self._model, self._rule, done, epoch, about,
                    keep=asked.epochs if asked.keep_all else 2,
                )  # fmt: skip


class LabelFeed(PipelineFeed):
    """Feeds a net with many labels for each image."""

    def _require_fit(self, images: Any, labels: Any, part: Any) -> None:
        wrong = np.flatnonzero(((np.asarray(labels) >> 1) != 0).any(axis=1))
        if len(wrong):
            place = int(wrong[0])
            what = f"has labels {np.asarray(labels[place]).tolist()}, must be zeros and ones"
            raise self.pipeline.source.damaged(int(part.indices[place]), what)
        super()._require_fit(images, np.zeros(len(labels), np.int32), part)

    def _spare(self) -> tuple[Any, Any]:
        images, _ = super()._spare()
        return images, np.zeros((1, self._classes), np.int32)


def fit_stage(
    model: keras.Model,
    pipeline: Pipeline,
    weights: np.ndarray,
    stage: Stage,
    comm: Communicator,
    report: Callable[..., None] | None = None,
) -> Fitted:
    """Train a net with many labels, synchronously on all ranks; all must call it.

    Momentum 0.9, the rate outside of the velocity (`optimizers.momentum_sgd`). On p ranks with
    `batch` radiographs each, a net without batch normalisation and dropout comes to the weights
    of one process with p * batch. A folder that holds a checkpoint of this stage is gone on from,
    bit by bit; a finished one is announced and not trained.
    """
    report = measure.report_progress if report is None else report
    pipeline = pipeline.replace(
        batch=stage.batch, seed=stage.seed, shuffle=True, rank=comm.rank, ranks=comm.size
    )
    feed, epochs = LabelFeed(pipeline, comm, model), stage.epochs
    steps = len(feed.steps(0))
    schedule = stage.schedule.at(steps)
    rates = tuple(float(schedule.rate(steps * (epoch + 1) - 1)) for epoch in range(epochs))
    saver = StageSaver(stage, comm, rates)
    with comm.agree_or_raise({**stage.identity(), "batch": stage.batch}):
        saver.announce()
    rule = comm.distribute(optimizers.momentum_sgd(as_keras(schedule), weight_decay=None))
    rule.build(model.trainable_variables)
    comm.broadcast(model.weights)
    start = saver.resume(model, rule)
    step = label_step(model, rule, comm.size, weights)
    watch = Watch(model, rule, comm, start.done, saver.last_good)
    averages = [one for one in own_state(model) if "float" in str(one.dtype)]
    measured, loss = Steps(), saver.loss
    for epoch in range(start.epoch, epochs):
        parts = feed.steps(epoch)
        reseed_dropout(model, stage.seed, comm.rank, epoch * steps)
        sums = train_epoch(
            step, feed.batches(epoch), parts, measured,
            partial(report, epoch=epoch + 1, epochs=epochs),
            after=partial(watch.after, epoch=epoch + 1),
        )  # fmt: skip
        feed.check()
        summed = comm.allreduce_sum(sums)
        comm.allreduce_mean(averages)  # batch normalisation saw each rank's own radiographs
        watch.settle()
        loss.append(summed[0] / feed.samples)
        if stage.checkpoint is not None:
            saver.save(epoch + 1, len(measured.step_s))
    speed = measure.steady_images_per_s(measured.step_s, measured.images)
    return Fitted(
        epochs, start.epoch, tuple(loss), rates, steps, feed.samples, tuple(measured.step_s),
        tuple(measured.wait_s), speed, digest_of(model),
    )  # fmt: skip


def infer(model: keras.Model, pipeline: Pipeline, comm: Communicator) -> np.ndarray:
    """Give the logits of all radiographs on all ranks, each of which computes its share.

    Args:
        model: the net.
        pipeline: gives the images.
        comm: the ranks; all of them must call.

    Returns:
        numpy.ndarray: float64, shape (samples, labels), in the order of the source.
    """
    block = max(1, min(INFERENCE_BLOCK, pipeline.samples // comm.size))
    mine = pipeline.replace(batch=block, shuffle=False, rank=comm.rank, ranks=comm.size)
    logits = np.zeros((pipeline.samples, model.outputs[0].shape[-1]))
    with comm.agree_or_raise(), mine.epoch() as passing:  # one rank's data may be damaged
        for part, (images, _) in zip(mine.steps(), passing, strict=True):
            if len(part.indices):
                logits[part.indices] = np.asarray(model(images, training=False))
    # each row was computed by one rank and is 0 on all others
    return np.sum([np.frombuffer(one).reshape(logits.shape)
                   for one in comm.allgather_bytes(logits.tobytes())], axis=0)  # fmt: skip


def digest_of(model: keras.Model) -> str:
    """Compute the SHA-256 of a net's weights."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(np.asarray(weight).tobytes())
    return digest.hexdigest()


def folder_of(checkpoint: str | None, stage: str) -> str | None:
    """Name the folder of a stage's checkpoints."""
    return None if checkpoint is None else str(Path(checkpoint) / stage)
