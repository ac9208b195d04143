"""Batch normalization with the statistics of the whole batch, of which each rank has a part.

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
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from dlguide.horovod.native import Sum
from dlguide.horovod.ops import allgather, allreduce
from dlguide.horovod.transparent.session import Session, replaces

TWICE = "takes the gradient of a gradient through the batch normalization `{}`"


def install(session: Session) -> None:
    """Let layers of batch normalization ask all ranks within a shared step."""

    @replaces(keras.layers.BatchNormalization, "_moments")
    def moments(plain: Any, self: Any, inputs: Any, mask: Any) -> Any:
        if session.weight is None or session.ranks == 1:
            return plain(self, inputs, mask)
        _refuse_loops(session, self)
        return moments_over_ranks(session, self, inputs, mask)


def _refuse_loops(session: Session, layer: Any) -> None:
    """Refuse a layer in a loop or branch: how often ranks exchange could hang on their data."""
    graph = tf.compat.v1.get_default_graph()
    while not tf.executing_eagerly() and graph not in (session.graph, None):
        if isinstance(graph, ControlFlowFuncGraph):
            session.refuse(
                f"the batch normalization `{layer.name}` is in a loop or a branch of "
                "TensorFlow's (tf.while_loop, tf.cond, a recurrent layer)"
            )
        graph = getattr(graph, "outer_graph", None)


def moments_over_ranks(session: Session, layer: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return what `BatchNormalization._moments` returns in one process with the whole batch.

    Called by all ranks, in a shared step. Moves 3 numbers a channel to each other rank, and 2 a
    channel through an allreduce in the backward pass.
    """
    name = session.name_exchange(layer)
    backward_passes = itertools.count()
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
    def compute(x: tf.Tensor) -> Any:
        weight = tf.cast(session.weight, x.dtype)
        if valid is None:
            count = tf.fill([channels], tf.cast(tf.size(x) // channels, x.dtype))
        else:
            count = add_up(tf.ones_like(x))
        mean = tf.math.divide_no_nan(add_up(x), count)
        squares = add_up(tf.square(x - tf.reshape(mean, along)))
        own = tf.stack([count, mean, squares])
        own = tf.where(weight > 0, own, 0)  # a rank without samples has one that does not count
        rows = _in_turn(session, lambda: allgather(own[None], name))
        counts, means, squares = tf.unstack(tf.cast(rows, tf.float64), axis=1)
        total = tf.reduce_sum(counts, 0) + small
        mean = tf.math.divide_no_nan(tf.reduce_sum(counts * means, 0), total)
        squares = tf.reduce_sum(squares + counts * tf.square(means - mean), 0)
        variance = tf.cast(tf.math.divide_no_nan(squares, total), x.dtype)
        mean, total = tf.cast(mean, x.dtype), tf.cast(total, x.dtype)

        def backward(of_mean: tf.Tensor, of_variance: tf.Tensor) -> tf.Tensor:
            sent = tf.math.multiply_no_nan(tf.stack([of_mean, of_variance]), weight)
            here = f"{name}.backward{next(backward_passes)}"
            summed = _once_only(session, layer, sent, here)
            # This rank's gradients will be multiplied with its weight; these need not be.
            of_mean, of_variance = tf.unstack(tf.math.divide_no_nan(summed, weight))
            of_mean -= 2 * small * mean * of_variance / total
            slope = tf.reshape(of_variance, along) * 2 * (x - tf.reshape(mean, along))
            slope = (slope + tf.reshape(of_mean, along)) / tf.reshape(total, along)
            return slope if valid is None else tf.where(valid, slope, 0)

        return (mean, variance), backward

    return compute(tf.convert_to_tensor(inputs))


def _once_only(session: Session, layer: Any, sent: tf.Tensor, name: str) -> tf.Tensor:
    """Add values up over the ranks; their gradient is refused."""

    @tf.custom_gradient
    def compute(values: tf.Tensor) -> Any:
        def backward(_: tf.Tensor) -> None:
            session.refuse(TWICE.format(layer.name))

        return _in_turn(session, lambda: allreduce(values, name, op=Sum)), backward

    return compute(sent)


def _in_turn(session: Session, exchange: Any) -> tf.Tensor:
    """Exchange after everything before it and before everything after it.

    A `tf.function` of the script's that is called twice bears the same names twice: its calls
    must not overlap. TensorFlow keeps the order of what changes a variable.
    """
    with tf.control_dependencies([session.turn.read_value()]):
        result = exchange()
    with tf.control_dependencies([result]):
        session.turn.assign_add(1)
    return result
