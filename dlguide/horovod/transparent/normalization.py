"""Batch normalization with the statistics of the whole batch, of which each rank has a part."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

from dlguide.horovod.native import Sum
from dlguide.horovod.normalization import in_turn, moments_over_ranks
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
        return _moments_of_batch(session, self, inputs, mask)


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


def _moments_of_batch(session: Session, layer: Any, inputs: Any, mask: Any) -> tuple[Any, Any]:
    """Return the moments of the whole batch; a rank without samples has one that does not count."""
    name = session.name_exchange(layer)
    backward_passes = itertools.count()
    weight = tf.cast(session.weight, inputs.dtype)

    def gather(own: tf.Tensor) -> tf.Tensor:
        own = tf.where(weight > 0, own, 0)
        return in_turn(lambda: allgather(own[None], name))

    def add(own: tf.Tensor) -> tf.Tensor:
        sent = tf.math.multiply_no_nan(own, weight)
        here = f"{name}.backward{next(backward_passes)}"
        # This rank's gradients will be multiplied with its weight; these need not be.
        return tf.math.divide_no_nan(in_turn(lambda: allreduce(sent, here, op=Sum)), weight)

    def refuse() -> None:
        session.refuse(TWICE.format(layer.name))

    return moments_over_ranks(layer, inputs, mask, gather, add, refuse)
