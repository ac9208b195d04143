"""The parts of one training along a road, each from a checkpoint and to a checkpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.imagenet.outcome import Curve, Ending
from dlcourse.usecases.imagenet.road import Road
from dlguide import models
from dlguide.collectives.communicator import Communicator
from dlguide.data.input_pipeline import Pipeline
from dlguide.measure import Run
from dlguide.training import checkpoint as checkpoints
from dlguide.training import fit
from dlguide.training.config import CheckpointConfig, FitConfig, describe
from dlguide.training.devices import require_device
from dlguide.training.schedules import CollapsedDecay
from dlguide.training.step import evaluator, top_k

if TYPE_CHECKING:
    import keras

TOP = 5


def build_net(road: Road, seed: int, dtype: str = "float32") -> keras.Model:
    """Build the road's net: its size of pictures, its classes, its moving averages.

    Args:
        road: names the net.
        seed: of the first weights.
        dtype: of the net.

    Returns:
        keras.Model: gives logits.
    """
    model = models.build(road.net, seed, dtype=dtype, image=road.image, classes=road.classes)
    models.set_momentum(model, road.averages)
    return model


@dataclass(frozen=True, eq=False)
class Way:
    """One training along a road: its parts, each in a folder of its own.

    road, pipelines (of training and test), ranks, device, seed, dtype, folder (of all parts),
    report, parallel and save_every (as `fit` takes them).
    """

    road: Road
    train: Pipeline
    test: Pipeline
    comm: Communicator
    device: str
    seed: int
    dtype: str
    folder: Path
    report: Callable[..., None] | None
    parallel: bool | None
    save_every: int | None = None

    def trunk(self) -> tuple[Curve, Any]:
        """Train what both endings have in common, unless both went on from it already."""
        known = self._written("trunk")
        ends = [checkpoints.latest(self.folder / name) for name in ("line", "collapsed")]
        begun = self.comm.allreduce_sum([float(None not in ends)])[0] > 0  # rank 0 sees the folder
        if known is not None and begun:
            return known, None
        return self._fit("trunk", self.road.part_1(self.road.trunk), self.road.trunk)

    def ending(self, name: str, schedule: CollapsedDecay) -> tuple[Ending, Run]:
        """Go on from the common epochs to one of the ends."""
        import tensorflow as tf

        with self.comm.agree_or_raise():
            here = self.folder / name
            if self.comm.rank == 0 and checkpoints.latest(here) is None:
                changes = {"schedule": describe(schedule)}
                checkpoints.branch(self.folder / "trunk", here, changes)
        curve, (run, model) = self._fit(name, schedule, round(schedule.rates.epochs))
        with tf.device(require_device(self.device)):
            metrics = {f"top {top}": top_k(min(top, self.road.classes)) for top in (1, TOP)}
            tops = evaluator(model, self.test, self.comm, metrics)().values()
        return Ending(name, curve, *tops, run.weights_digest), run

    def _fit(
        self, name: str, schedule: CollapsedDecay, epochs: int
    ) -> tuple[Curve, tuple[Run, keras.Model]]:
        made = []

        def build() -> keras.Model:
            made.append(build_net(self.road, self.seed, self.dtype))
            return made[-1]

        road = self.road
        # what a checkpoint knows the net by
        build.__qualname__ = (
            f"{road.net}, {road.image} pixels, {road.classes} classes, {self.dtype}"
        )
        workers = road.workers // self.comm.size
        run = fit(
            build, self.train, epochs=epochs, batch_per_rank=road.batch * workers,
            learning_rate=schedule, optimizer=partial(_rule, momentum=road.momentum),
            checkpoint=CheckpointConfig(folder=self.folder / name, every_steps=self.save_every),
            comm=self.comm, on_result=self.report,
            config=FitConfig(
                seed=self.seed, device=self.device, test=self._glance(), dtype=self.dtype,
                virtual_workers=workers,
            ),
        )  # fmt: skip
        known = self._written(name)
        curve = _curve(run)
        if known is not None and not curve.loss:
            return known, (run, made[-1])  # nothing was trained: an earlier call saw it
        with self.comm.agree_or_raise():
            if self.comm.rank == 0:
                text = json.dumps(asdict(curve))
                written = self.folder / f"{name}.json.partial"
                written.write_text(text, encoding="utf-8")
                os.replace(written, self.folder / f"{name}.json")  # whole, or not at all
        return curve, (run, made[-1])

    def _glance(self) -> Pipeline:
        """Give the test pictures that are looked at after each epoch."""
        few = self.road.tested
        return self.test if few is None else self.test.replace(samples=few)

    def _written(self, name: str) -> Curve | None:
        """Read what an earlier call saw, on rank 0 for all."""
        path, text = self.folder / f"{name}.json", ""
        with self.comm.agree_or_raise():
            if self.comm.rank == 0 and path.exists():
                text = path.read_text(encoding="utf-8")
        text = self.comm.allgather(text)[0]
        if not text:
            return None
        found = json.loads(text)
        lists = {key: tuple(each) for key, each in found.items() if isinstance(each, list)}
        return Curve(**{**found, **lists})


def _rule(rate: Any, weight_decay: Any, momentum: float) -> keras.Optimizer:
    from dlguide.training.optimizers import MomentumSGD

    return MomentumSGD(rate, momentum=momentum, weight_decay=weight_decay)


def _curve(run: Run) -> Curve:
    trained = len(run.loss)
    accuracy = run.test_accuracy[-trained:] if trained else ()
    step_s = float(np.median(run.step_s)) if run.step_s else 0.0
    return Curve(
        run.first_epoch, run.loss, run.train_accuracy, accuracy, step_s, run.images_per_s,
        run.train_s,
    )  # fmt: skip
