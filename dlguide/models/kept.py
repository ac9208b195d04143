"""What the forward pass of a net keeps for its backward pass, array by array."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from dlguide.models import sequence_memory
from dlguide.models.counting import graph_of, itemsize, nodes_of, shape_of
from dlguide.models.formulas import FREE

_MERGES = {"Add", "Subtract", "Average"}
_FORGETFUL = {
    *("Concatenate", "Permute", "RepeatVector", "Rescaling"),
    *(f"{kind}{n}D" for kind in ("ZeroPadding", "Cropping", "UpSampling") for n in (1, 2, 3)),
    *(f"{kind}AveragePooling{n}D" for kind in ("", "Global") for n in (1, 2, 3)),
}
_BY_OUTPUT = {"ReLU", "Relu", "ELU", "Softmax"}
_BY_INPUT = {"LeakyReLU", "PReLU", "GroupNormalization", *sequence_memory.INSIDE}
_LINEAR = ("Conv", "DepthwiseConv", "Dense", "EinsumDense")
# Activation functions whose gradient needs the output; the others need the input.
_FUNCTIONS_BY_OUTPUT = {"relu", "relu6", "sigmoid", "tanh", "softmax", "elu", "selu"}
_TEMPORARIES_OF_NORMALISATION = 2


@dataclass(frozen=True)
class Array:
    """An array of the forward pass, for one image: its number, elements and dtype."""

    number: int
    elements: int
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes for one image."""
        return self.elements * itemsize(self.dtype)


# An array in the dtype in which it is kept, and its bytes for one image.
Kept = dict[tuple[int, str], int]


@dataclass(frozen=True)
class Call:
    """One call of a layer: its arrays, which inputs need a gradient, what it keeps."""

    kind: str
    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    before: tuple[bool, ...]
    keeps: Kept = field(default_factory=dict)


def record(model: Any) -> list[Call]:
    """List the calls of a net's layers that take part in the backward pass, in order."""
    recorder = _Recorder()
    recorder.enter(model, None)
    return recorder.calls


def kept(calls: list[Call]) -> Kept:
    """Collect what all calls keep; an array that several need is there once."""
    arrays: Kept = {}
    for call in calls:
        arrays.update(call.keeps)
    return arrays


def backward_peak(calls: list[Call]) -> int:
    """Follow the gradients backward and find the fullest moment."""
    needed_until: dict[tuple[int, str], int] = {}
    for number, call in enumerate(calls):
        for key in call.keeps:
            needed_until.setdefault(key, number)
    sizes, alive, peak = kept(calls), {}, 0
    for number in range(len(calls) - 1, -1, -1):
        call = calls[number]
        held = sum(sizes[key] for key, until in needed_until.items() if until <= number)
        incoming = {array.number: array.nbytes for array in call.outputs}
        given = {
            array.number: array.nbytes
            for array, needs in zip(call.inputs, call.before, strict=True)
            if needs
        }
        others = sum(nbytes for key, nbytes in alive.items() if key not in incoming)
        temporary = 0
        if call.kind == "BatchNormalization":
            temporary = _TEMPORARIES_OF_NORMALISATION * call.inputs[0].elements * 4
        # an addition hands the same gradient to all its inputs
        fresh = 0 if call.kind in _MERGES else sum(given.values())
        peak = max(peak, held + others + sum(incoming.values()) + fresh + temporary)
        for array in call.outputs:
            alive.pop(array.number, None)
        alive.update(given)
    return peak


class _Recorder:
    """Numbers the arrays of a graph and notes the calls that a gradient passes through."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.arrays: dict[int, Array] = {}
        self.trained: dict[int, bool] = {}
        self.count = 0

    def enter(self, model: Any, given: list[Any] | None) -> list[Any]:
        graph = graph_of(model)
        for number, tensor in enumerate(graph.inputs):
            outer = given[number] if given else None
            self.arrays[id(tensor)] = self._array(tensor) if outer is None else self._of(outer)
            self.trained[id(tensor)] = outer is not None and self.trained[id(outer)]
        for node in nodes_of(graph):
            if not node.is_input:
                self._call(node)
        return list(graph.outputs)

    def _array(self, tensor: Any) -> Array:
        self.count += 1
        elements = prod(shape_of(tensor, tensor.name))
        return Array(self.count, elements, str(tensor.dtype))

    def _of(self, tensor: Any) -> Array:
        return self.arrays[id(tensor)]

    def _call(self, node: Any) -> None:
        layer, kind = node.operation, type(node.operation).__name__
        before = tuple(self.trained[id(tensor)] for tensor in node.input_tensors)
        trained = bool(getattr(layer, "trainable_weights", ()))
        if hasattr(layer, "_nodes_by_depth") or hasattr(layer, "_functional"):
            results = self.enter(layer, list(node.input_tensors))
            for inner, outer in zip(results, node.output_tensors, strict=True):
                self.arrays[id(outer)] = self._of(inner)
                self.trained[id(outer)] = self.trained[id(inner)]
            return
        inputs = tuple(self._of(tensor) for tensor in node.input_tensors)
        passes = kind in FREE and not getattr(layer, "rate", 0)
        for tensor in node.output_tensors:
            self.arrays[id(tensor)] = inputs[0] if passes else self._array(tensor)
            self.trained[id(tensor)] = trained or any(before)
        if not passes and (trained or any(before)):
            outputs = tuple(self._of(tensor) for tensor in node.output_tensors)
            keeps = _keeps(layer, kind, inputs, outputs, trained)
            if kind in sequence_memory.INSIDE:
                inside = sequence_memory.INSIDE[kind](node, str(layer.compute_dtype))
                keeps = {**keeps, (-outputs[0].number, "inside"): inside}
            self.calls.append(Call(kind, inputs, outputs, before, keeps))


def _keeps(
    layer: Any, kind: str, inputs: tuple[Array, ...], outputs: tuple[Array, ...], trained: bool
) -> Kept:
    """Tell what the gradient of a layer needs of its forward pass."""
    dtype = str(getattr(layer, "compute_dtype", inputs[0].dtype))
    before = {(a.number, dtype): a.elements * itemsize(dtype) for a in inputs}
    after = {(a.number, a.dtype): a.nbytes for a in outputs}
    name = getattr(getattr(layer, "activation", None), "__name__", "linear")
    if kind == "LayerNormalization":
        return _kept_by_rows(layer, inputs[0], outputs[0], dtype)
    if kind == "Embedding":
        return {(a.number, a.dtype): a.nbytes for a in inputs}
    if kind == "BatchNormalization":
        wide = "float32" if itemsize(dtype) == 2 else dtype
        return {(inputs[0].number, wide): inputs[0].elements * itemsize(wide)}
    if kind.startswith("SeparableConv"):
        # between its two convolutions
        positions = outputs[0].elements // layer.filters
        middle = positions * prod(layer.depthwise_kernel.shape[-2:]) * itemsize(dtype)
        return {**before, (-outputs[0].number, dtype): middle}
    if kind.startswith(_LINEAR):
        # the input is for the gradient of the weights, the output for that of the activation
        needed = before if trained else {}
        if name in _FUNCTIONS_BY_OUTPUT:
            needed = {**needed, **after}
        elif name != "linear":
            unactivated = {(-array.number, array.dtype): array.nbytes for array in outputs}
            needed = {**needed, **unactivated}
        return needed
    if kind == "Activation":
        return after if name in _FUNCTIONS_BY_OUTPUT else before if name != "linear" else {}
    if "Dropout" in kind:
        # the mask, one byte for each element
        return {(-outputs[0].number, "bool"): outputs[0].elements}
    if kind in _MERGES or kind in _FORGETFUL:
        return {}
    if kind in _BY_OUTPUT:
        return after
    if kind in _BY_INPUT:
        return before
    # maximum pooling, products and whatever else: all that could be needed
    return {**before, **after}


def _kept_by_rows(layer: Any, given: Array, output: Array, dtype: str) -> Kept:
    """Tell what normalisation of each row keeps: its input, the scales, three numbers a row."""
    wide = "float32" if itemsize(dtype) == 2 else dtype
    rows = given.elements // prod(layer.weights[0].shape) if layer.weights else 0
    nbytes = given.elements * itemsize(wide)
    scales = nbytes + 3 * rows * itemsize(wide)
    return {(given.number, wide): nbytes, (-output.number, wide): scales}
