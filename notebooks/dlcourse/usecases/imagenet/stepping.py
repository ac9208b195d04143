"""One training step of the road, to be timed: the small net's, or ResNet-50's at its real size."""

from __future__ import annotations

import os
from functools import partial

import numpy as np

from dlcourse.usecases.case import StepWorker, TimedStep
from dlcourse.usecases.imagenet.road import GUIDE, SMALL, Road
from dlcourse.usecases.imagenet.way import build_net
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require_count
from dlguide.training import step_breakdown

RATE = 1e-3  # speed does not depend on it, the weights must stay finite


def step(
    batch: int | None = None,
    seed: int = 0,
    real: str | os.PathLike | bool | None = None,
    dtype: str = "float32",
) -> TimedStep:
    """Give a step of one worker, for `usecases.speedup.measure` or a clock of one's own.

    Args:
        batch: pictures of one worker; None for the guide's 16 (count).
        seed: of the first weights.
        real: anything but None or False for ResNet-50 with pictures of 224 x 224 and 1000
            classes; which pictures makes no difference to the time.
        dtype: of the net.

    Returns:
        TimedStep: can be pickled.

    Raises:
        ValueError: when `batch` is no count.
    """
    road = GUIDE if real else SMALL
    batch = road.batch if batch is None else require_count(batch, "batch")
    name = f"{road.net}, {road.image} x {road.image}"
    return TimedStep(name, batch, partial(_worker, road, seed, dtype), partial(_samples, road))


def _worker(road: Road, seed: int, dtype: str, comm: Communicator) -> StepWorker:
    model = build_net(road, seed, dtype)
    from dlguide.training.optimizers import MomentumSGD

    rule = MomentumSGD(RATE, road.momentum, road.weight_decay)
    return step_breakdown.classifier_worker(model, rule, comm)


def _samples(road: Road, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    pictures = random.normal(size=(count, road.image, road.image, 3)).astype(np.float32)
    return pictures, random.integers(0, road.classes, count, np.int32)
