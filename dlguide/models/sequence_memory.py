"""What layers for sequences keep of what they compute inside, for their backward pass."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from dlguide.models.counting import itemsize

# Numbers that each kind keeps of a unit in a step. SimpleRNN: its state. LSTM: four activations,
# tanh of the memory, and memory and state of the step before. GRU: three activations, 1 - z,
# the product that the reset gate multiplies, and the state of the step before.
_OF_A_UNIT = {"SimpleRNN": 1, "LSTM": 7, "GRU": 6}


def recurrent(node: Any, dtype: str) -> int:
    """Count what a recurrent layer keeps of its steps, beside its input.

    This is what the graph keeps in which every step is written out; a loop keeps the same in
    lists.
    """
    layer, kind = node.operation, type(node.operation).__name__
    steps = node.input_tensors[0].shape[1]
    units = steps * _OF_A_UNIT[kind] * layer.units
    if kind == "SimpleRNN" and layer.return_sequences:
        # states are kept one by one, and once more in the row that the next layer takes
        units += layer.units
    return units * itemsize(dtype)


def attention(node: Any, dtype: str) -> int:
    """Count what attention keeps: queries, keys, values, weights, their mean, a causal mask.

    The weights after softmax are one number for each head and pair of positions: they grow with
    the square of the length, and all else with the length.
    """
    layer = node.operation
    shapes = [tensor.shape for tensor in node.input_tensors]
    asked, answered = prod(shapes[0][1:-1]), prod(shapes[1][1:-1])
    heads, width, value_width = layer.num_heads, layer.key_dim, layer.value_dim or layer.key_dim
    projected = heads * (asked * width + answered * (width + value_width))
    weights = heads * asked * answered
    numbers = projected + weights + heads * asked * value_width
    # softmax computes in 32 bits, and its result is kept so and in 16
    wide = 4 * weights if itemsize(dtype) == 2 else 0
    masked = node.arguments.kwargs.get("use_causal_mask", False)
    return numbers * itemsize(dtype) + wide + (weights if masked else 0)


INSIDE: dict[str, Callable[[Any, str], int]] = {
    **dict.fromkeys(_OF_A_UNIT, recurrent),
    "MultiHeadAttention": attention,
}
