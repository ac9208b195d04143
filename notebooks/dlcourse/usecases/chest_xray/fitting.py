"""The stages of the case: `training.fit` for radiographs with many labels each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray.steps import labels_right, not_binary, weighted_loss
from dlguide.collectives.communicator import Communicator
from dlguide.data.input_pipeline import Pipeline
from dlguide.training import CheckpointConfig, FitConfig, fit
from dlguide.training.schedules import EpochSchedule

if TYPE_CHECKING:
    import keras

INFERENCE_BLOCK = 200


@dataclass(frozen=True)
class Stage:
    """What one stage is asked to do."""

    name: str
    batch: int
    schedule: EpochSchedule
    seed: int
    about: dict[str, Any]
    checkpoint: str | None = None
    keep_all: bool = False

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


def fit_stage(
    model: keras.Model,
    pipeline: Pipeline,
    weights: np.ndarray,
    stage: Stage,
    comm: Communicator,
    report: Callable[..., None] | None = None,
) -> Fitted:
    """Train a net with many labels, synchronously on all ranks; all must call it.

    Momentum 0.9, the rate outside of the velocity (`optimizers.MomentumSGD`). On p ranks with
    `batch` radiographs each, a net without batch normalisation and dropout comes to the weights
    of one process with p * batch. A folder that holds a checkpoint of this stage is gone on from,
    bit by bit; a finished one is announced and not trained.
    """
    from dlguide.training.optimizers import MomentumSGD

    epochs = stage.epochs
    run = fit(
        model, pipeline, loss=partial(weighted_loss, weights=weights),
        metrics={"accuracy": labels_right}, epochs=epochs, batch_per_rank=stage.batch,
        learning_rate=stage.schedule, optimizer=partial(MomentumSGD, weight_decay=None),
        checkpoint=None if stage.checkpoint is None else CheckpointConfig(
            folder=stage.checkpoint, keep=epochs if stage.keep_all else 2, facts=stage.identity()
        ),
        comm=comm,
        config=FitConfig(seed=stage.seed, evaluate=False, label_check=not_binary),
        on_result=report,
    )  # fmt: skip
    steps = run.steps_per_epoch
    schedule = stage.schedule.at(steps)
    rates = tuple(float(schedule.rate(steps * (epoch + 1) - 1)) for epoch in range(epochs))
    return Fitted(
        epochs, run.first_epoch, run.earlier_loss + run.loss, rates, steps, run.samples,
        run.step_s, run.wait_s, run.images_per_s, digest_of(model),
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
