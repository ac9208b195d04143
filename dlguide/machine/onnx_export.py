"""Export of a Keras net to ONNX for inference with onnxruntime and other engines.

Dropout is left out, and a batch normalisation after a convolution becomes part of it. Inside the
graph, images are (batch, channels, rows, columns), as onnxruntime's kernels need them; Keras has
the channels last. So operations that depend on the order, above all Flatten, transpose first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require

if TYPE_CHECKING:
    import keras
    import onnx

__all__ = ["export", "graph"]

_OPSET, _IR = 17, 8  # of 2022: older engines read it too
_ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh"}

_Names = Sequence[str]
_Shapes = Sequence[tuple[int | None, ...]]


def graph(model: keras.Model, fold: bool = True) -> onnx.ModelProto:
    """Return a functional or sequential Keras net as an ONNX graph.

    Inputs and outputs keep Keras' order (batch, rows, columns, channels) and any batch size;
    weights become float32. Leaves out training, several inputs or outputs, and subclassed models.

    Args:
        fold: whether to fold batch normalisations into convolutions.

    Raises:
        ValueError: if a layer or the shape of the net is not supported; the text names it.
    """
    import onnx
    from onnx import TensorProto, helper

    inputs, outputs = _ends(model)
    writer = _Graph(fold)
    shape, result = tuple(inputs[0].shape), tuple(outputs[0].shape)
    name = "images"
    if len(shape) == 4:
        name = writer.node("Transpose", [name], perm=[0, 3, 1, 2])
    name = writer.walk(model, [name])
    if len(result) == 4:
        name = writer.node("Transpose", [name], perm=[0, 2, 3, 1])
    writer.node("Identity", [name], output="outputs")
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, ["batch", *dims[1:]])
        for end, dims in (("images", shape), ("outputs", result))
    ]
    made = helper.make_graph(writer.nodes, model.name, ends[:1], ends[1:], writer.constants)
    opset = [helper.make_opsetid("", _OPSET)]
    whole = helper.make_model(made, producer_name="dlguide", opset_imports=opset, ir_version=_IR)
    onnx.checker.check_model(whole, full_check=True)
    return whole


def export(model: keras.Model, path: str | os.PathLike, fold: bool = True) -> Path:
    """Write a Keras net to an ONNX file; arguments and errors as for `graph`.

    Returns:
        Path: the file.
    """
    path = Path(path)
    path.write_bytes(graph(model, fold).SerializeToString())
    return path


class _Graph:
    """Nodes and constants of the graph, written while walking a Keras net."""

    def __init__(self, fold: bool) -> None:
        self.fold = fold
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: _Names, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        name = f"{kind}_{len(self.nodes)}"
        output = output or f"{name}_out"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name, **attributes))
        return output

    def constant(self, values: Any) -> str:
        from onnx import numpy_helper

        array = np.asarray(values)
        array = array if array.dtype.kind == "i" else array.astype("float32")
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def walk(self, model: keras.Model, names: _Names) -> str:
        """Write a net whose inputs have these names; return the name of its output."""
        inputs, outputs = _ends(model)
        known = {id(tensor): name for tensor, name in zip(inputs, names, strict=True)}
        steps = _steps(inputs, outputs[0])
        readers = Counter(id(tensor) for _, given, _ in steps for tensor in given)
        readers[id(outputs[0])] += 1
        first_reader = {id(tensor): layer for layer, given, _ in steps for tensor in given}
        folded = set()
        for layer, given, made in steps:
            sources = [known[id(tensor)] for tensor in given]
            shapes = [tuple(tensor.shape) for tensor in given]
            reader = first_reader.get(id(made))
            if id(given[0]) in folded:
                name = sources[0]
            elif self.fold and readers[id(made)] == 1 and _folds(layer, reader):
                folded.add(id(made))
                name = _conv(self, layer, sources, shapes, reader)
            else:
                name = self._write(layer, sources, shapes)
            known[id(made)] = name
        return known[id(outputs[0])]

    def _write(self, layer: Any, names: _Names, shapes: _Shapes) -> str:
        import keras

        if isinstance(layer, keras.Model):
            return self.walk(layer, names)
        kind = type(layer).__name__
        what = f"{kind} ({layer.name!r})"
        then = "Use another layer, or add it to dlguide.machine.onnx_export."
        require(kind in _WRITE, "model", f"have layers among {', '.join(_WRITE)}", what, then)
        last = getattr(layer, "data_format", "channels_last") == "channels_last"
        require(last, "model", "have its channels last", what)
        return _WRITE[kind](self, layer, names, shapes)


def _ends(model: keras.Model) -> tuple[list[Any], list[Any]]:
    try:
        inputs, outputs = list(model.inputs or []), list(model.outputs or [])
    except (AttributeError, ValueError):
        inputs = outputs = []
    one = len(inputs) == 1 and len(outputs) == 1
    require(
        one, "model", "be a functional or sequential net with one input and one output",
        f"{type(model).__name__} {model.name!r}", "Begin it with keras.Input.",
    )  # fmt: skip
    return inputs, outputs


def _folds(layer: Any, reader: Any) -> bool:
    """Whether this layer is a convolution and its reader a normalisation that it can take in."""
    return (
        type(layer).__name__ in ("Conv2D", "DepthwiseConv2D")
        and layer.activation.__name__ == "linear"
        and type(reader).__name__ == "BatchNormalization"
        and reader.axis in (-1, 3)
    )


def _steps(inputs: Sequence[Any], output: Any) -> list[tuple[Any, list[Any], Any]]:
    """Return (layer, input tensors, output tensor) in an order in which they can run."""
    steps: list[tuple[Any, list[Any], Any]] = []
    done = {id(tensor) for tensor in inputs}
    # a list of open tensors and no recursion: nets are deep
    open_tensors = [output]
    while open_tensors:
        tensor = open_tensors[-1]
        if id(tensor) in done:
            open_tensors.pop()
            continue
        layer, call, _ = tensor._keras_history
        given = list(layer._inbound_nodes[call].input_tensors)
        missing = [each for each in given if id(each) not in done]
        if missing:
            open_tensors += missing
            continue
        steps.append((layer, given, tensor))
        done.add(id(tensor))
        open_tensors.pop()
    return steps


def _conv(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes, norm: Any = None) -> str:
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
    inputs = [names[0], graph.constant(kernel), graph.constant(bias)]
    window = _window(layer, shapes[0], kernel.shape[2:], layer.dilation_rate)
    output = graph.node("Conv", inputs, dilations=layer.dilation_rate, group=groups, **window)
    return _function(graph, layer, layer.activation, output)


def _scale_and_shift(norm: keras.layers.BatchNormalization) -> tuple[np.ndarray, np.ndarray]:
    mean, variance = (np.asarray(v, "float64") for v in (norm.moving_mean, norm.moving_variance))
    gamma = np.asarray(norm.gamma, "float64") if norm.scale else np.ones_like(mean)
    beta = np.asarray(norm.beta, "float64") if norm.center else np.zeros_like(mean)
    scale = gamma / np.sqrt(variance + norm.epsilon)
    return scale, beta - mean * scale


def _window(
    layer: Any, shape: Sequence[int | None], size: Sequence[int], dilation: Sequence[int] = (1, 1)
) -> dict[str, list[int]]:
    """Attributes of a window; "same" of TensorFlow: one output per stride, the odd row last."""
    before, after = [0, 0], [0, 0]
    if layer.padding == "same":
        for axis, (length, k) in enumerate(zip(shape[1:3], size, strict=True)):
            stride, reach = layer.strides[axis], (k - 1) * dilation[axis] + 1
            whole = max((-(-length // stride) - 1) * stride + reach - length, 0)
            before[axis], after[axis] = whole // 2, whole - whole // 2
    return {"kernel_shape": list(size), "strides": list(layer.strides), "pads": before + after}


def _function(graph: _Graph, layer: Any, function: Callable[..., Any], name: str) -> str:
    """Write an activation function."""
    kind = getattr(function, "__name__", type(function).__name__)
    if kind == "linear":
        return name
    if kind == "relu6":
        return graph.node("Clip", [name, graph.constant(0.0), graph.constant(6.0)])
    if kind == "softmax":
        return graph.node("Softmax", [name], axis=1)  # classes or channels, both come second
    known = ", ".join(sorted([*_ACTIVATIONS, "linear", "relu6", "softmax"]))
    require(kind in _ACTIVATIONS, "model", f"use the activations {known}", f"{kind}: {layer.name}")
    return graph.node(_ACTIVATIONS[kind], [name])


def _activation(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    return _function(graph, layer, layer.activation, names[0])


def _dense(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    require(
        len(shapes[0]) == 2, "model", "flatten before a Dense", f"{layer.name}: {shapes[0]}",
        "Put a Flatten or a global pooling before it.",
    )  # fmt: skip
    bias = layer.bias if layer.use_bias else np.zeros(layer.units)
    inputs = [names[0], graph.constant(layer.kernel), graph.constant(bias)]
    return _function(graph, layer, layer.activation, graph.node("Gemm", inputs))


def _norm(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    last = layer.axis in (-1, len(shapes[0]) - 1)
    require(last, "model", "normalise over the last axis", f"{layer.name}: axis {layer.axis}")
    scale, shift = _scale_and_shift(layer)
    ones = np.ones_like(scale)
    constants = [graph.constant(each) for each in (scale, shift, 0 * ones, ones)]
    return graph.node("BatchNormalization", [names[0], *constants], epsilon=0.0)


def _relu(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    plain = not layer.negative_slope and not layer.threshold
    require(plain, "model", "have ReLU without slope and threshold", layer.name)
    if layer.max_value is None:
        return graph.node("Relu", names)
    return graph.node("Clip", [*names, graph.constant(0.0), graph.constant(layer.max_value)])


def _softmax(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    last = layer.axis in (-1, len(shapes[0]) - 1)
    require(last, "model", "have Softmax over the last axis", f"{layer.name}: axis {layer.axis}")
    return graph.node("Softmax", names, axis=1)  # (batch, classes) or (batch, channels, ...)


def _max_pool(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    return graph.node("MaxPool", names, **_window(layer, shapes[0], layer.pool_size))


def _average_pool(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    window = _window(layer, shapes[0], layer.pool_size)
    return graph.node("AveragePool", names, count_include_pad=0, **window)


def _global_pool(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    kind = "GlobalMaxPool" if "Max" in type(layer).__name__ else "GlobalAveragePool"
    pooled = graph.node(kind, names)
    return pooled if layer.keepdims else graph.node("Flatten", [pooled])


def _padding(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    (top, bottom), (left, right) = layer.padding
    pads = np.array([0, 0, top, left, 0, 0, bottom, right], "int64")
    return graph.node("Pad", [names[0], graph.constant(pads)])


def _add(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    require(len(set(shapes)) == 1, "model", "add equal shapes", f"{layer.name}: {shapes}")
    return reduce(lambda total, name: graph.node("Add", [total, name]), names)


def _concat(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    axis = layer.axis % len(shapes[0])
    return graph.node("Concat", names, axis=(0, 2, 3, 1)[axis] if len(shapes[0]) == 4 else axis)


def _flatten(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    # Keras flattens (rows, columns, channels); one pixel has no order to restore
    several = len(shapes[0]) == 4 and shapes[0][1:3] != (1, 1)
    name = graph.node("Transpose", names, perm=[0, 2, 3, 1]) if several else names[0]
    return graph.node("Flatten", [name])


def _same(graph: _Graph, layer: Any, names: _Names, shapes: _Shapes) -> str:
    return names[0]


_WRITE: dict[str, Callable[..., str]] = {
    "Conv2D": _conv,
    "DepthwiseConv2D": _conv,
    "Dense": _dense,
    "BatchNormalization": _norm,
    "ReLU": _relu,
    "Activation": _activation,
    "Softmax": _softmax,
    "MaxPooling2D": _max_pool,
    "AveragePooling2D": _average_pool,
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "ZeroPadding2D": _padding,
    "Add": _add,
    "Concatenate": _concat,
    "Flatten": _flatten,
    "Dropout": _same,
}
