"""The case's training step, to be timed on ranks against one process."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from dlcourse.usecases.chest_xray import net as nets
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.chest_xray.steps import balance, label_step
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require_count
from dlguide.training.step_breakdown import StepWorker, TimedStep

# Each finding in one of eight: as often as in the phantoms.
_OFTEN = 8


def step(
    batch_per_rank: int = 128, seed: int = 0, net: str = nets.SMALL, image: int | None = None
) -> TimedStep:
    """Give one step of the fine-tuning, for `usecases.speedup.measure`.

    Args:
        batch_per_rank: radiographs of one rank; fewer make a step of the small net so short
            that the exchange takes a large part of it.
        seed: of the first weights.
        net: one of `NETS`.
        image: height and width (pixels); None for the net's own.

    Returns:
        TimedStep: with radiographs in memory, for the input has its own measurements.

    Raises:
        ValueError: when a number is out of range or the net is unknown.
    """
    size = nets.SIZES.get(net) if image is None else image
    shape = size, size, nets.channels(net)
    made = partial(_samples, shape=shape)
    return TimedStep(
        f"{net} with 14 labels", require_count(batch_per_rank, "batch_per_rank"),
        partial(_build, net=net, image=size, seed=seed), made,
    )  # fmt: skip


def _samples(count: int, seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(_OFTEN, size=(count, len(FINDINGS))) == 0
    return rng.standard_normal((count, *shape)).astype(np.float32), labels.astype(np.int32)


def _build(comm: Communicator, net: str, image: int, seed: int) -> StepWorker:
    import tensorflow as tf

    model = nets.build(net, image, seed=seed)
    from dlguide.training.optimizers import MomentumSGD

    rule = comm.distribute(MomentumSGD(1e-3, weight_decay=None))
    rule.build(model.trainable_variables)
    often = np.eye(_OFTEN)[:, :1].repeat(len(FINDINGS), axis=1)
    one = label_step(model, rule, comm.size, balance(often))

    def whole(images: Any, labels: Any) -> float:
        scale = tf.constant(1 / (comm.size * len(images)), tf.float32)
        return float(one(images, labels, scale)[0])

    return StepWorker(whole, ((rule, model.trainable_variables),))
