"""What one call of a layer costs, by the kind of the layer, from its shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from dlguide.models import sequence_formulas

Shape = tuple[int, ...]
Work = tuple[int, int]
# A formula takes a layer and the shapes of one image at its inputs and output, and gives
# (multiply-adds, other flops) for that image.
Formula = Callable[[Any, list[Shape], Shape], Work]

# Kinds that hand on what they get, or that do nothing when a net infers: no bytes move.
FREE = {
    *("InputLayer", "Flatten", "Reshape", "Identity", "ActivityRegularization"),
    *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
    *("AlphaDropout", "GaussianDropout", "GaussianNoise"),
}


def _activation(layer: Any, output: Shape) -> int:
    name = getattr(getattr(layer, "activation", None), "__name__", "linear")
    # softmax: one exponential, one addition and one division for each element
    return {"linear": 0, "softmax": 3}.get(name, 1) * prod(output)


def _biased(layer: Any, output: Shape) -> int:
    return prod(output) * bool(layer.use_bias) + _activation(layer, output)


def _convolution(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    positions = prod(output) // layer.filters
    return positions * prod(layer.kernel.shape), _biased(layer, output)


def _transposed(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    channels = layer.kernel.shape[-1]
    return prod(inputs[0]) // channels * prod(layer.kernel.shape), _biased(layer, output)


def _depthwise(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    positions = prod(output) // prod(layer.kernel.shape[-2:])
    return positions * prod(layer.kernel.shape), _biased(layer, output)


def _separable(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    kernels = prod(layer.depthwise_kernel.shape) + prod(layer.pointwise_kernel.shape)
    return prod(output) // layer.filters * kernels, _biased(layer, output)


def _dense(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    return prod(output) // layer.units * prod(layer.kernel.shape), _biased(layer, output)


def _pooling(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    # one comparison or addition for each element under the window
    return 0, prod(output) * prod(layer.pool_size)


def _over_inputs(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    return 0, prod(inputs[0])


def _merge(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    return 0, max(1, len(inputs) - 1) * prod(output)


def _function(layer: Any, inputs: list[Shape], output: Shape) -> Work:
    return 0, _activation(layer, output)


def _each(flops: int) -> Formula:
    def formula(layer: Any, inputs: list[Shape], output: Shape) -> Work:
        return 0, flops * prod(output)

    return formula


def _numbered(text: str, formula: Formula, most: int = 3) -> dict[str, Formula]:
    return {text.format(f"{dimensions}D"): formula for dimensions in range(1, most + 1)}


FORMULAS: dict[str, Formula] = {
    **_numbered("Conv{}", _convolution),
    **_numbered("Conv{}Transpose", _transposed),
    **_numbered("DepthwiseConv{}", _depthwise, most=2),
    **_numbered("SeparableConv{}", _separable, most=2),
    "Dense": _dense,
    "EinsumDense": sequence_formulas.einsum,
    **dict.fromkeys(("SimpleRNN", "LSTM", "GRU"), sequence_formulas.recurrent),
    "MultiHeadAttention": sequence_formulas.attention,
    **_numbered("MaxPooling{}", _pooling),
    **_numbered("AveragePooling{}", _pooling),
    **_numbered("GlobalMaxPooling{}", _over_inputs),
    **_numbered("GlobalAveragePooling{}", _over_inputs),
    # when a net infers, its statistics are constants: one scale, one shift
    "BatchNormalization": _each(2),
    # mean, centre, square, sum, divide, scale, shift
    "LayerNormalization": _each(7),
    "GroupNormalization": _each(7),
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Maximum", "Minimum", "Average"), _merge),
    **dict.fromkeys(("ReLU", "Relu", "LeakyReLU", "ELU"), _each(1)),
    "Activation": _function,
    "PReLU": _each(2),
    "Softmax": _each(3),
    **dict.fromkeys(("Rescaling", "Normalization"), _each(2)),
    **dict.fromkeys(("Concatenate", "Permute", "RepeatVector", "Embedding"), _each(0)),
    **_numbered("ZeroPadding{}", _each(0)),
    **_numbered("Cropping{}", _each(0)),
    **_numbered("UpSampling{}", _each(0)),
    **dict.fromkeys(FREE, _each(0)),
}
