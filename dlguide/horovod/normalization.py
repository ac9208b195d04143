"""Batch normalization with the statistics of the samples of all ranks.

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

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf
from keras.src import api_export
from tensorflow.python.framework.func_graph import FuncGraph

from dlguide.distributed import normalization
from dlguide.distributed.steps import refuse_xla
from dlguide.errors import require
from dlguide.horovod.native import Sum, native
from dlguide.horovod.ops import allgather, allreduce, in_turn

_exchanges: WeakKeyDictionary[Any, Iterator[int]] = WeakKeyDictionary()  # by outermost graph


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """A layer of batch normalization with the statistics of all ranks' samples.

    Samples count equally, whatever rank they are on (in Horovod 0.28.1 ranks count equally): p
    ranks train as one process with the global batch when their gradients are added up as those of
    its mean loss. All ranks must call the layer equally often. In a training step it sends 3
    values per channel to each other rank, and 2 through an allreduce in the backward pass.

    The same as Keras' own with `synchronized=True`, under whose name it is saved: a saved model
    opens without Horovod.

    Args:
        fused: must be False, as in Horovod.
        options: those of `keras.layers.BatchNormalization`.

    Raises:
        ValueError: for another `fused`.
    """

    def __init__(self, fused: bool = False, **options: Any) -> None:
        require(fused is False, "fused", "be False in a synchronized layer", fused)
        super().__init__(**{**options, "synchronized": True})


SyncBatchNormalization.__name__ = "BatchNormalization"  # by which a file names its weights
api_export.REGISTERED_OBJS_TO_NAMES[SyncBatchNormalization] = "keras.layers.BatchNormalization"


def _ask(layer: Any, inputs: Any, mask: Any, counted: Any) -> tuple[Any, Any] | None:
    """Return the moments of all ranks' samples, if Horovod connects any."""
    if not native.is_initialized() or native.size() == 1:
        return None
    return moments_of_all(layer, inputs, mask, counted, _refuse)


def _refuse(layer: keras.layers.BatchNormalization) -> NoReturn:
    raise NotImplementedError(
        f"The gradient of a gradient through the batch normalization {layer.name!r} is not "
        "available on ranks. Use `keras.layers.GroupNormalization`, which needs no other rank."
    )


def _exchange_name() -> str | None:
    """Return a name that is the same on all ranks; None eagerly, where calls follow each other."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while isinstance(getattr(graph, "outer_graph", None), FuncGraph):
        graph = graph.outer_graph
    return f"batch_normalization.{next(_exchanges.setdefault(graph, itertools.count()))}"


def moments_of_all(
    layer: keras.layers.BatchNormalization,
    inputs: Any,
    mask: Any,
    weight: Any,
    refuse: Callable[[keras.layers.BatchNormalization], NoReturn],
) -> tuple[Any, Any]:
    """Return what `BatchNormalization._moments` returns in one process with the whole batch.

    `weight` is that of this rank's loss in the sum over ranks, 0 where its samples do not count;
    `refuse` raises for a gradient's gradient.
    """
    refuse_xla()
    name, passes, weight = _exchange_name(), itertools.count(), tf.cast(weight, inputs.dtype)

    def gather(own: tf.Tensor) -> tf.Tensor:
        """Return the statistics of all ranks, shape (ranks, 3, channels)."""
        own = tf.where(weight > 0, own, 0)
        return in_turn(lambda: allgather(own[None], name))

    def add(own: tf.Tensor) -> tf.Tensor:
        """Return the sum of what is propagated back, in the scale of this rank's loss."""
        own = tf.math.multiply_no_nan(own, weight)
        here = name and f"{name}.backward{next(passes)}"
        return tf.math.divide_no_nan(in_turn(lambda: allreduce(own, here, op=Sum)), weight)

    axes, channels = layer._reduction_axes, inputs.shape[layer.axis]
    along = [1] * len(inputs.shape)
    along[layer.axis] = channels
    valid, small = None, 0.0
    if mask is not None:
        valid = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
        small = keras.config.epsilon()  # Keras divides by the count and this

    def add_up(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values if valid is None else tf.where(valid, values, 0), axes)

    @tf.custom_gradient
    def add_once(values: tf.Tensor) -> Any:
        return add(values), lambda _: refuse(layer)

    @tf.custom_gradient
    def compute(x: tf.Tensor) -> Any:
        if valid is None:
            count = tf.fill([channels], tf.cast(tf.size(x) // channels, x.dtype))
        else:
            count = add_up(tf.ones_like(x))
        mean = tf.math.divide_no_nan(add_up(x), count)
        squares = add_up(tf.square(x - tf.reshape(mean, along)))
        rows = gather(tf.stack([count, mean, squares]))
        counts, means, squares = tf.unstack(tf.cast(rows, tf.float64), axis=1)
        total = tf.reduce_sum(counts, 0) + small
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
        squares = tf.reduce_sum(squares + counts * tf.square(means - mean), 0)
        variance = tf.cast(tf.math.divide_no_nan(squares, total), x.dtype)
        mean, total = tf.cast(mean, x.dtype), tf.cast(total, x.dtype)

        def backward(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            of_mean, of_variance = tf.unstack(add_once(tf.stack([of_mean, of_variance])))
            of_mean -= 2 * small * mean * of_variance / total
            slope = tf.reshape(of_variance, along) * 2 * (x - tf.reshape(mean, along))
            slope = (slope + tf.reshape(of_mean, along)) / tf.reshape(total, along)
            return slope if valid is None else tf.where(valid, slope, 0)

        return (mean, variance), backward

    return compute(tf.convert_to_tensor(inputs))


normalization.others.append(_ask)
normalization.synchronize_layers()
