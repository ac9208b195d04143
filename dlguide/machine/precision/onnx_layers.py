"""How each kind of Keras layer is written in ONNX: one function per kind.

Images are kept as (batch, channels, rows, columns) on the way, as onnxruntime's kernels want them;
Keras has the channels last. So whatever counts in Keras' order, flattening above all, is turned
back first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dlguide.errors import require

if TYPE_CHECKING:
    import keras

Shape = tuple[int | None, ...]
_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}


class Writer(Protocol):
    """What a layer needs in order to write itself."""

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; gives the name of its output.

        Args:
            kind: the ONNX operator.
            inputs: names of the inputs.
            attributes: of the operator.
        """

    def constant(self, values: Any) -> str:
        """Add a constant array; gives its name.

        Args:
            values: the array; floats become float32.
        """


def conv(
    writer: Writer,
    layer: keras.layers.Layer,
    names: Sequence[str],
    shapes: Sequence[Shape],
    norm: keras.layers.BatchNormalization | None = None,
) -> str:
    """Write a convolution, ordinary or depthwise, with a normalisation folded into it.

    Batch normalisation at inference is y = g (x - m) / sqrt(v + e) + b with constants for each
    channel, so it is the same convolution with kernels times g / sqrt(v + e) and another bias.
    """
    kernel = np.asarray(layer.kernel, "float64")  # (rows, columns, inputs, filters)
    if type(layer).__name__ == "DepthwiseConv2D":
        rows, columns, groups, multiplier = kernel.shape
        kernel = kernel.reshape(rows, columns, 1, groups * multiplier)
    else:
        groups = layer.groups
    kernel = kernel.transpose(3, 2, 0, 1)
    bias = np.asarray(layer.bias, "float64") if layer.use_bias else np.zeros(len(kernel))
    if norm is not None:
        scale, shift = _scale_and_shift(norm)
        kernel, bias = kernel * scale[:, None, None, None], bias * scale + shift
    size = [kernel.shape[2], kernel.shape[3]]
    output = writer.node(
        "Conv",
        [names[0], writer.constant(kernel), writer.constant(bias)],
        kernel_shape=size,
        strides=list(layer.strides),
        dilations=list(layer.dilation_rate),
        group=groups,
        pads=_pads(layer, shapes[0], size, layer.dilation_rate),
    )
    return activation(writer, layer, layer.activation, output)


def _scale_and_shift(norm: keras.layers.BatchNormalization) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = (np.asarray(v, "float64") for v in (norm.moving_mean, norm.moving_variance))
    gamma = np.asarray(norm.gamma, "float64") if norm.scale else np.ones_like(mean)
    beta = np.asarray(norm.beta, "float64") if norm.center else np.zeros_like(mean)
    scale = gamma / np.sqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


def _pads(
    layer: keras.layers.Layer, shape: Shape, size: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> list[int]:
    """TensorFlow's "same": as many outputs as strides begin, the odd row of padding at the end."""
    if layer.padding == "valid":
        return [0, 0, 0, 0]
    before, after = [], []
    for length, k, stride, gap in zip(shape[1:3], size, layer.strides, dilation, strict=True):
        whole = max((-(-length // stride) - 1) * stride + (k - 1) * gap + 1 - length, 0)
        before.append(whole // 2)
        after.append(whole - whole // 2)
    return before + after


def activation(
    writer: Writer, layer: keras.layers.Layer, function: Callable[..., Any], name: str
) -> str:
    """Write an activation function."""
    kind = getattr(function, "__name__", type(function).__name__)
    if kind == "linear":
        return name
    if kind == "relu6":
        return writer.node("Clip", [name, writer.constant(0.0), writer.constant(6.0)])
    if kind == "softmax":
        return writer.node("Softmax", [name], axis=1)  # classes or channels, both come second
    known = ", ".join(sorted([*_ACTIVATIONS, "linear", "relu6", "softmax"]))
    require(kind in _ACTIVATIONS, "model", f"use the activations {known}", f"{kind}: {layer.name}")
    return writer.node(_ACTIVATIONS[kind], [name])


def _dense(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    require(
        len(shapes[0]) == 2, "model", "flatten before a Dense", f"{layer.name}: {shapes[0]}",
        "Put a Flatten or a global pooling before it.",
    )  # fmt: skip
    bias = layer.bias if layer.use_bias else np.zeros(layer.units)
    inputs = [names[0], writer.constant(layer.kernel), writer.constant(bias)]
    return activation(writer, layer, layer.activation, writer.node("Gemm", inputs))


def _norm(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    last = layer.axis in (-1, len(shapes[0]) - 1)
    require(last, "model", "normalise over the last axis", f"{layer.name}: axis {layer.axis}")
    scale, shift = _scale_and_shift(layer)
    ones = np.ones_like(scale)
    constants = [writer.constant(each) for each in (scale, shift, 0 * ones, ones)]
    return writer.node("BatchNormalization", [names[0], *constants], epsilon=0.0)


def _relu(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    plain = not layer.negative_slope and not layer.threshold
    require(plain, "model", "have ReLU without slope and threshold", layer.name)
    if layer.max_value is None:
        return writer.node("Relu", names)
    return writer.node("Clip", [*names, writer.constant(0.0), writer.constant(layer.max_value)])


def _activation(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    return activation(writer, layer, layer.activation, names[0])


def _softmax(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    last = layer.axis in (-1, len(shapes[0]) - 1)
    require(last, "model", "have Softmax over the last axis", f"{layer.name}: axis {layer.axis}")
    return writer.node("Softmax", names, axis=1)  # (batch, classes) or (batch, channels, ...)


def _pool(kind: str, **attributes: Any) -> Callable[..., str]:
    def write(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
        size = list(layer.pool_size)
        return writer.node(
            kind,
            names,
            kernel_shape=size,
            strides=list(layer.strides),
            pads=_pads(layer, shapes[0], size),
            **attributes,
        )

    return write


def _global(kind: str) -> Callable[..., str]:
    def write(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
        pooled = writer.node(kind, names)
        return pooled if layer.keepdims else writer.node("Flatten", [pooled])

    return write


def _padding(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    (top, bottom), (left, right) = layer.padding
    pads = np.array([0, 0, top, left, 0, 0, bottom, right], "int64")
    return writer.node("Pad", [names[0], writer.constant(pads)])


def _add(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    require(len(set(shapes)) == 1, "model", "add equal shapes", f"{layer.name}: {shapes}")
    total = names[0]
    for name in names[1:]:
        total = writer.node("Add", [total, name])
    return total


def _concat(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    rank = len(shapes[0])
    axis = layer.axis % rank
    if rank == 4:
        axis = {0: 0, 1: 2, 2: 3, 3: 1}[axis]
    return writer.node("Concat", names, axis=axis)


def _flatten(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    # Keras flattens (rows, columns, channels); one pixel has no order to restore
    several = len(shapes[0]) == 4 and shapes[0][1:3] != (1, 1)
    name = writer.node("Transpose", names, perm=[0, 2, 3, 1]) if several else names[0]
    return writer.node("Flatten", [name])


def _same(writer: Writer, layer: Any, names: Sequence[str], shapes: Sequence[Shape]) -> str:
    return names[0]


WRITE: dict[str, Callable[..., str]] = {
    "Conv2D": conv,
    "DepthwiseConv2D": conv,
    "Dense": _dense,
    "BatchNormalization": _norm,
    "ReLU": _relu,
    "Activation": _activation,
    "Softmax": _softmax,
    "MaxPooling2D": _pool("MaxPool"),
    "AveragePooling2D": _pool("AveragePool", count_include_pad=0),
    "GlobalAveragePooling2D": _global("GlobalAveragePool"),
    "GlobalMaxPooling2D": _global("GlobalMaxPool"),
    "ZeroPadding2D": _padding,
    "Add": _add,
    "Concatenate": _concat,
    "Flatten": _flatten,
    "Dropout": _same,
}
