"""What one call of a layer for sequences costs: recurrent layers, attention, einsum."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from dlguide.errors import require

Shape = tuple[int, ...]

# Gates of each kind, and the other flops of one unit in one step, biases left out.
#
# SimpleRNN: one addition of the two products, one tanh. LSTM: four additions, four activations,
# f c + i g with three, tanh of it, one product. GRU: three additions, three activations, the
# product with the reset gate, z h + (1 - z) g with four.
_CELLS = {"SimpleRNN": (1, 2), "LSTM": (4, 13), "GRU": (3, 11)}


class Parts(NamedTuple):
    """Multiply-adds of a layer, by what the backward pass needs of them.

    `inward` multiply the layer's input by weights, `inner` something computed inside by weights,
    `between` two things that are both computed inside.
    """

    inward: int
    inner: int
    between: int

    def training(self, trainable: bool, trained_before: bool) -> int:
        """Count the multiply-adds of a training step.

        A product of F multiply-adds has two gradients of F each: of its one factor and of its
        other. That of weights is needed when they are trained; that of the layer's input when
        weights before it are trained; those of what is computed inside in both cases.
        """
        inside = trainable or trained_before
        return (
            self.inward * (1 + trainable + trained_before)
            + self.inner * (1 + trainable + inside)
            + self.between * (1 + 2 * inside)
        )


def recurrent_parts(layer: Any, inputs: list[Shape]) -> Parts:
    """Count the products of a recurrent layer.

    With f features, u units, g gates and L steps

        multiply_adds = L g u (f + u)
    """
    steps, features = inputs[0]
    gates = _CELLS[type(layer).__name__][0]
    each = steps * gates * layer.units
    return Parts(each * features, each * layer.units, 0)


def attention_parts(layer: Any, inputs: list[Shape]) -> Parts:
    """Count the products of multi-head attention.

    With h heads of k, L positions that ask and S that answer, of width d:

        multiply_adds = (2 L + 2 S) d h k + 2 h L S k

    A causal mask changes nothing: the products that it hides are computed, and then hidden.
    """
    flat = all(len(shape) == 2 for shape in inputs)
    then = "Count this layer by hand."
    require(flat, "model", f"have attention over one axis at layer {layer.name}", inputs, then)
    queries, values = inputs[0], inputs[1]
    keys = inputs[2] if len(inputs) > 2 else values
    heads, width, value_width = layer.num_heads, layer.key_dim, layer.value_dim or layer.key_dim
    projected = heads * (
        queries[0] * queries[1] * width
        + keys[0] * keys[1] * width
        + values[0] * values[1] * value_width
    )
    result = queries[0] * heads * value_width * (_width_of_result(layer, queries))
    between = heads * queries[0] * values[0] * (width + value_width)
    return Parts(projected, result, between)


def _width_of_result(layer: Any, queries: Shape) -> int:
    shape = getattr(layer, "_output_shape", None)
    return prod(shape) if shape else queries[-1]


def recurrent(layer: Any, inputs: list[Shape], output: Shape) -> tuple[int, int]:
    """Give the multiply-adds and the other flops of a recurrent layer."""
    gates, others = _CELLS[type(layer).__name__]
    biases = gates * (2 if getattr(layer, "reset_after", False) else 1) if layer.use_bias else 0
    each = others + biases
    return sum(recurrent_parts(layer, inputs)), inputs[0][0] * layer.units * each


def attention(layer: Any, inputs: list[Shape], output: Shape) -> tuple[int, int]:
    """Give the multiply-adds and the other flops of multi-head attention.

    The others are the biases, one division of each query or score, and softmax with 3 for each
    score.
    """
    queries, values = inputs[0], inputs[1]
    heads, width, value_width = layer.num_heads, layer.key_dim, layer.value_dim or layer.key_dim
    asked, scores = heads * width * queries[0], heads * queries[0] * values[0]
    biases = asked + heads * values[0] * (width + value_width) + prod(output)
    other = asked + 3 * scores + (biases if layer.use_bias else 0)
    return sum(attention_parts(layer, inputs)), other


def einsum(layer: Any, inputs: list[Shape], output: Shape) -> tuple[int, int]:
    """Give the multiply-adds and the other flops of an EinsumDense layer.

    One multiply-add for each combination of all its indices but that of the batch.
    """
    equation = layer.equation
    must = f"have an equation without ellipsis at layer {layer.name}"
    require("." not in equation, "model", must, equation, "Name every axis by a letter.")
    given, result = equation.replace(" ", "").split("->")
    first, kernel = given.split(",")
    lengths = dict(zip(first[1:], inputs[0], strict=True))
    lengths |= dict(zip(kernel, layer.kernel.shape, strict=True))
    lengths |= dict(zip(result[1:], output, strict=True))
    name = getattr(layer.activation, "__name__", "linear")
    activation = {"linear": 0, "softmax": 3}.get(name, 1)
    return prod(lengths.values()), prod(output) * (activation + (layer.bias is not None))


# Kinds whose backward pass is not that of one product of the input by weights.
PARTS = {**dict.fromkeys(_CELLS, recurrent_parts), "MultiHeadAttention": attention_parts}
