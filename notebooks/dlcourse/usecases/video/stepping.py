"""One step of the pair, to be timed on ranks, and nets of any size to time it with."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from dlcourse.usecases import case
from dlcourse.usecases.video import scenes
from dlcourse.usecases.video.game import Pair
from dlcourse.usecases.video.settings import Settings, named
from dlcourse.usecases.video.training import build
from dlguide.collectives.communicator import Communicator


def step(
    batch: int = 8, seed: int = 0, real: str | os.PathLike | None = None, **own: Any
) -> case.TimedStep:
    """Give a training step of the whole pair, all resolutions, for `speedup.measure`.

    Args:
        batch: clips of one rank in a step (count).
        seed: of the first weights.
        real: not looked at: what is in the frames does not change a step's time.
        own: what else `Settings` has: size, filters, blocks, ...; its batch is all ranks'.

    Returns:
        TimedStep: its samples are noise.

    Raises:
        ValueError: when an argument is not what it must be.
    """
    asked = named(None, seed=seed, **own)
    asked.check()
    label = f"video GAN of {asked.filters} filters at {asked.size} pixels"
    return case.TimedStep(label, batch, partial(_worker, asked), partial(_clips, asked.size))


def _worker(asked: Settings, comm: Communicator) -> case.StepWorker:
    nets = build(asked)
    stage = len(nets[0].outputs)
    pair = Pair(*nets, stage, comm, asked.learning_rate, asked.edges, asked.adversarial, _optimizer)

    def one(past: Any, guess: Any, future: Any) -> float:
        return pair.step(past, guess, future, comm.size * len(past))[0]

    return case.StepWorker(one, tuple(pair.rules))


def _optimizer(rate: float) -> Any:
    import keras

    # Adam's first step is the gradient's sign, in which rounding shows as large as anything; with
    # a larger epsilon it is the gradient, and takes the same time
    return keras.optimizers.Adam(rate, beta_1=0.5, epsilon=1.0)


def _clips(size: int, samples: int, seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    shape = (samples, scenes.BEFORE, size, size, 3)
    return tuple(random.integers(0, 256, shape, np.uint8) for _ in range(3))
