"""Memory of each rank if rank 0 owns both nets and sends copies, as in the guide's case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.replicas import DeviceMemory, Replicas
from dlcourse.usecases.video import data
from dlcourse.usecases.video.pair import centred, coarser, flat
from dlcourse.usecases.video.training import build, config_of

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


@dataclass(frozen=True)
class ReplicaStep:
    """One rank's part of a step in which rank 0 sends copies of its nets."""

    rank: int
    held: DeviceMemory
    moved: int
    seconds: dict[str, float]
    loss: float


def replicate(
    comm: Comm | None = None, global_batch: int = 8, steps: int = 2, seed: int = 0, **own: Any
) -> ReplicaStep:
    """Make steps in which rank 0 sends clips and weights and sums the gradients; collective.

    Counted are the arrays that are sent and exchanged, without TensorFlow's own copy of the
    weights and its activations. Both nets learn from one sum of losses, because only bytes and
    times matter here: mean error of the frames for the generator, true against generated clips
    for the discriminator.

    Args:
        comm: the ranks; None for all of MPI.
        global_batch: clips of all ranks in a step.
        steps: number of steps; the last one is returned.
        seed: of initial weights and clips, which are noise.
        own: other fields of `VideoConfig`: size, filters, ...

    Raises:
        ValueError: if an argument is invalid.
    """
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    config = config_of(None, seed=seed, **own)
    config.check()
    nets_of = build(config)
    variables = [weight for net in nets_of for weight in net.trainable_variables]
    weights = [np.array(weight.numpy()) for weight in variables]
    moments = [np.zeros_like(each) for each in (*weights, *weights)]
    random = np.random.default_rng(seed)
    shape = (global_batch, data.BEFORE, config.size, config.size, 3)
    clips = [random.integers(0, 256, shape, np.uint8) for _ in range(3)] if comm.rank == 0 else None
    replicas = Replicas(comm, weights, _gradient_of(nets_of, variables), _Adam(moments), moments)
    loss = 0.0
    for _ in range(steps):
        loss = replicas.step(clips)
    return ReplicaStep(comm.rank, replicas.held, replicas.moved, replicas.seconds, loss)


class _Adam:
    """Adam in NumPy, with rank 0's moments."""

    def __init__(self, moments: Sequence[np.ndarray], rate: float = 1e-3) -> None:
        half = len(moments) // 2
        self._first, self._second = moments[:half], moments[half:]
        self._rate, self._steps = rate, 0

    def __call__(self, weights: Sequence[np.ndarray], gradients: Sequence[np.ndarray]) -> None:
        self._steps += 1
        scale = self._rate * np.sqrt(1 - 0.999**self._steps) / (1 - 0.9**self._steps)
        for weight, gradient, m, v in zip(
            weights, gradients, self._first, self._second, strict=True
        ):
            m += 0.1 * (gradient - m)
            v += 0.001 * (gradient**2 - v)
            weight -= scale * m / (np.sqrt(v) + 1e-7)


def _gradient_of(nets_of: tuple[Any, Any], variables: Sequence[Any]) -> Any:
    import tensorflow as tf

    generator, discriminator = nets_of
    rows = [output.shape[2] for output in generator.outputs]

    @tf.function(autograph=False, reduce_retracing=True)
    def both(past: Any, guess: Any, future: Any) -> Any:
        past, guess, future = (centred(each, "float32") for each in (past, guess, future))
        seen, true = coarser(past, rows), coarser(future, rows)
        with tf.GradientTape() as tape:
            made = flat(generator([past, guess], training=True))
            loss = sum(tf.reduce_mean(abs(a - b)) for a, b in zip(made, true, strict=True))
            for then, sign in ((true, -1.0), (made, 1.0)):
                pairs = zip(seen, map(tf.stop_gradient, then), strict=True)
                judged = discriminator([tf.concat(pair, axis=1) for pair in pairs], training=True)
                loss += sum(tf.reduce_mean(tf.nn.softplus(sign * one)) for one in flat(judged))
        return loss, tape.gradient(loss, list(variables))

    def gradient(weights: Sequence[np.ndarray], arrays: Sequence[np.ndarray]) -> Any:
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)
        loss, found = both(*map(tf.constant, arrays))
        return float(loss), [np.array(each) for each in found], 0

    return gradient
