"""Sequences step after step: which products wait for each other, and what a gate lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlguide.errors import require

if TYPE_CHECKING:
    import keras
    from numpy.typing import ArrayLike

_PRODUCTS = {"MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
_HIDING = {"While", "StatelessWhile", "PartitionedCall", "StatefulPartitionedCall"}


def longest_chain(net: keras.Model, inputs: Any) -> int:
    """Count the products of matrices that must wait for each other in a forward pass."""
    import tensorflow as tf

    graph = tf.function(net, autograph=False).get_concrete_function(inputs).graph
    depths: dict[str, int] = {}
    # operations come in the order in which they were made, each after those that it needs
    for each in graph.get_operations():
        then = "Make recurrent layers with `unroll=True`."
        require(each.type not in _HIDING, "net", "have a graph without loops", each.type, then)
        before = max((depths[tensor.op.name] for tensor in each.inputs), default=0)
        depths[each.name] = before + (each.type in _PRODUCTS)
    return max(depths.values())


def memory_rate(
    bias: float, inputs: ArrayLike, kernel_factor: float = 1.0, units: int = 32, seed: int = 0
) -> float:
    """Measure by which factor a step of an LSTM multiplies the gradient of its memory.

    It is a mean per step, from the largest singular value of the product over all steps.

    Args:
        bias: of the forget gate.
        kernel_factor: multiplies Keras' initial recurrent kernel; with 0 the state has no effect.
    """
    import numpy as np
    import tensorflow as tf
    from keras import initializers, layers

    inputs = np.asarray(inputs, "float32")
    cell = layers.LSTMCell(
        units,
        kernel_initializer=initializers.GlorotUniform(seed),
        recurrent_initializer=initializers.Orthogonal(seed=seed),
    )
    cell.build((1, inputs.shape[1]))
    kernel, recurrent, biases = cell.get_weights()
    biases[units : 2 * units] = bias  # Keras' order: let in, forget, new, let out
    cell.set_weights([kernel, kernel_factor * recurrent, biases])
    first = memory = tf.zeros((units, units))  # one copy of the cell for each unit
    state = tf.zeros_like(first)  # its own tensor: the gradient is that of the memory alone
    with tf.GradientTape() as tape:
        tape.watch(first)
        for step in inputs:
            _, (state, memory) = cell(np.tile(step, (units, 1)), [state, memory])
        total = tf.linalg.trace(memory)  # unit n of copy n: its gradient is row n of the product
    left = float(np.linalg.norm(tape.gradient(total, first), 2))
    return left ** (1 / len(inputs))
