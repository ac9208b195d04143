"""A Keras net as an ONNX graph, the form in which onnxruntime and most other engines take nets.

Only what inference needs: Dropout vanishes, and a batch normalisation that follows a convolution
becomes part of it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.machine.precision.onnx_layers import WRITE, Shape, conv

if TYPE_CHECKING:
    import keras
    import onnx

_OPSET, _IR = 17, 8  # of 2022: older engines read it too


def graph(model: keras.Model, fold: bool = True) -> onnx.ModelProto:
    """Write a functional or sequential Keras net as an ONNX graph.

    Inputs and outputs keep Keras' order (batch, rows, columns, channels) and any batch size;
    between them images are (batch, channels, rows, columns). Weights become float32. Leaves out
    training, several inputs or outputs, and subclassed models.
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
    """Write a Keras net into an ONNX file.

    Args:
        model: as for `graph`.
        path: the file to write.
        fold: as for `graph`.

    Returns:
        Path: the file.

    Raises:
        ValueError: as `graph`.
    """
    path = Path(path)
    path.write_bytes(graph(model, fold).SerializeToString())
    return path


class _Graph:
    """Nodes and constants as they come, and how a Keras net is walked."""

    def __init__(self, fold: bool) -> None:
        self.fold = fold
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
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

    def walk(self, model: keras.Model, names: Sequence[str]) -> str:
        """Write a net whose inputs have these names; gives the name of its output."""
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
                name = conv(self, layer, sources, shapes, reader)
            else:
                name = self._write(layer, sources, shapes)
            known[id(made)] = name
        return known[id(outputs[0])]

    def _write(self, layer: Any, names: list[str], shapes: list[Shape]) -> str:
        import keras

        if isinstance(layer, keras.Model):
            return self.walk(layer, names)
        kind = type(layer).__name__
        what = f"{kind} ({layer.name!r})"
        then = "Use another layer, or teach it to dlguide.machine.precision.onnx_layers."
        require(kind in WRITE, "model", f"have layers among {', '.join(WRITE)}", what, then)
        last = getattr(layer, "data_format", "channels_last") == "channels_last"
        require(last, "model", "have its channels last", what)
        return WRITE[kind](self, layer, names, shapes)


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
    """List (layer, its input tensors, its output tensor) in an order in which they can run."""
    steps: list[tuple[Any, list[Any], Any]] = []
    done = {id(tensor) for tensor in inputs}
    # deep nets: a list of what is still open, not a function that calls itself
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
