"""Batch normalization with the statistics of the samples of all ranks, on every backend.

Each rank sends the count, the mean and the sum of squared deviations of its samples; from those
of all ranks every rank forms the same mean and variance:

    n = sum_r n_r,  m = sum_r n_r m_r / n,  v = sum_r (q_r + n_r (m_r - m)^2) / n

Nothing large is subtracted from something large, so that this rounds as little as one process
does, and takes one exchange. The mean and the variance depend on the samples of all ranks, hence
so does the loss of each: the backward pass takes a second exchange.

Source:
    Chan, Golub and LeVeque, The American Statistician 37 (1983), 242-247, for the formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from dlguide.distributed import weighting
from dlguide.distributed.steps import call
from dlguide.distributed.world import MpiCommunicator, backend, world

ops = keras.ops
_counted: Any = True  # whether this rank's samples count; False also ends the exchange
# Other exchanges that may be connected: (layer, inputs, mask, counted) -> moments, None if not.
others: list[Callable[..., tuple[Any, Any] | None]] = []


@keras.saving.register_keras_serializable(package="dlguide")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """`keras.layers.BatchNormalization` with the statistics of all ranks' samples.

    Samples count equally, whatever rank they are on: p ranks train as one process with the
    global batch. All ranks must call the layer equally often. In a training step it sends 3 values
    per channel in the forward pass and 3 in the backward pass.

    Args:
        options: those of `keras.layers.BatchNormalization`.
    """

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        ranks = world()
        if ranks is None:
            return super()._moments(inputs, mask)
        return moments_of_all(self, inputs, mask, ranks)


def synchronize_layers() -> None:
    """Let Keras' `synchronized` layers ask all ranks: they ask replicas of `tf.distribute` only."""
    kind = keras.layers.BatchNormalization
    plain = kind._moments
    if getattr(plain, "asks_all_ranks", False):
        return

    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        if self.synchronized and _counted is not False:
            for ask in others:
                found = ask(self, inputs, mask, _counted)
                if found is not None:
                    return found
            if world.cache_info().currsize and world() is not None:
                return moments_of_all(self, inputs, mask, world(), _counted)
        return plain(self, inputs, mask)

    moments.asks_all_ranks = True
    kind._moments = moments


@contextmanager
def counting(counted: Any) -> Iterator[None]:
    """Say whether this rank's samples count in the layers that are called within the block.

    False for a model that this rank trains alone, which then exchanges nothing; a tensor where
    ranks may hold a placeholder in place of samples.
    """
    global _counted
    before, _counted = _counted, counted
    try:
        yield
    finally:
        _counted = before


def moments_of_all(
    layer: Any, inputs: Any, mask: Any, ranks: MpiCommunicator, counted: Any = True
) -> tuple[Any, Any]:
    """Return what `BatchNormalization._moments` returns in one process with all samples."""
    axes = list(layer._reduction_axes)
    channels = inputs.shape[layer.axis]
    along = [1] * len(inputs.shape)
    along[layer.axis] = channels
    ones = ops.ones_like(inputs)
    small = 0.0
    if mask is not None:
        ones = ones * ops.expand_dims(ops.cast(mask, inputs.dtype), -1)
        small = keras.config.epsilon()  # Keras divides by the count and this
    count = ops.sum(ones, axes)
    mean = ops.sum(inputs * ones, axes) / (count + ops.cast(count == 0, count.dtype))
    squares = ops.sum(ops.square(inputs - ops.reshape(mean, along)) * ones, axes)
    own = ops.stack([count, mean, squares])
    if counted is not True:
        own = ops.where(counted, own, ops.zeros_like(own))
    rows = _gather(own, ranks)
    counts, means, deviations = rows[:, 0], rows[:, 1], rows[:, 2]
    total = ops.sum(counts, 0) + small
    mean = ops.sum(counts * means, 0) / total
    spread = ops.sum(deviations + counts * ops.square(means - mean), 0)
    return mean, spread / total


def _gather(own: Any, ranks: MpiCommunicator) -> Any:
    """Return the tensors of all ranks, stacked; its gradient is summed over the ranks."""
    comm, rank, size = ranks.steps.comm, ranks.rank, ranks.size

    def gather(arrays: list[np.ndarray], into: Any = None) -> list[np.ndarray]:
        mine = np.ascontiguousarray(arrays[0])
        everyone = np.empty((size, *mine.shape), mine.dtype)
        comm.Allgather(mine.view(np.uint8), everyone.view(np.uint8))
        return [everyone]

    def add(arrays: list[np.ndarray], into: Any = None) -> list[np.ndarray]:
        return [gather(arrays)[0].sum(axis=0, dtype=arrays[0].dtype)]

    def forward(tensor: Any) -> Any:
        return call(gather, [tensor], [ops.zeros((size, *tensor.shape), tensor.dtype)])[0]

    def backward(slope: Any) -> Any:
        """Add up what the losses of all ranks say, each with the weight of its rank."""
        samples = weighting.samples_of_step()
        weight = ops.cast(1 if samples is None else samples, slope.dtype)
        return call(add, [slope * weight], [slope])[0][rank] / weight

    return _differentiable(forward, backward)(own)


def _differentiable(forward: Callable, backward: Callable) -> Callable:
    """Return a function whose gradient is computed by `backward`, after the loss is known."""
    if backend() == "jax":
        import jax

        # Keras' own way would trace the gradient together with the forward pass.
        function = jax.custom_vjp(forward)
        function.defvjp(lambda x: (forward(x), None), lambda _, slope: (backward(slope),))
        return function

    @ops.custom_gradient
    def function(tensor: Any) -> tuple[Any, Any]:
        def slope(*slopes: Any, upstream: Any = None) -> Any:
            return backward(slopes[0] if upstream is None else upstream)  # PyTorch names it

        return forward(tensor), slope

    return function
