"""Count what a net costs from its layers' shapes, without running it."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from dlguide.errors import require, require_count
from dlguide.models.costs import Cost, LayerCost
from dlguide.models.formulas import FORMULAS, FREE
from dlguide.models.sequence_formulas import PARTS

if TYPE_CHECKING:
    import keras


def count(model: keras.Model, batch: int = 1) -> Cost:
    """Count multiply-adds, flops and bytes of a Keras model for one image.

    A convolution with a kernel of k x k over C channels to F filters, with H x W positions at
    its output, has

        multiply_adds = H W k k C F

    and a dense layer of C inputs and F outputs C F. A third dimension of the kernel multiplies
    the weights by k and the work by k times the positions along it. A group divides C. A
    recurrent layer of g gates, f features and u units has L g u (f + u) in L steps; attention of
    h heads of k over L positions of width d has 4 L d h k + 2 h L L k. Papers publish these
    multiply-adds, often as "FLOPs"; here flops are 2 for each, and the arithmetic of all other
    layers is added: bias 1, batch normalisation 2, ReLU 1, softmax 3 for each element, pooling 1
    for each element of its window.

    All numbers are for one image. Weights are read once for a batch, so that the bytes moved for
    each image, and they only, depend on `batch`. Padding counts as work, as every kernel library
    does it. Left out: the optimizer, data types other than those of the layers, and fusion.

    Args:
        model: a functional or sequential Keras model with fixed shapes; models inside it are
            entered.
        batch: number of images that share one reading of the weights (count).

    Returns:
        Cost: each layer and the sums; `print` it for a table.

    Raises:
        ValueError: when the model is not built, has an open shape, or a layer with weights is of
            a kind whose cost is not known.
    """
    require_count(batch, "batch")
    walk = _Walk(batch)
    walk.enter(model, "", ())
    return Cost(model.name, batch, tuple(walk.found.values()), tuple(walk.uncounted))


class _Walk:
    """Goes through the graph of a model and collects the costs of its layers."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.found: dict[str, LayerCost] = {}
        self.uncounted: list[str] = []
        # for each tensor, by its id, whether trained weights come before it
        self.trained: dict[int, bool] = {}

    def enter(self, model: Any, prefix: str, before: tuple[bool, ...]) -> bool:
        """Count every call; return whether trained weights come before any output."""
        graph = graph_of(model)
        for number, tensor in enumerate(graph.inputs):
            self.trained[id(tensor)] = bool(before and before[number % len(before)])
        for node in nodes_of(graph):
            if not node.is_input:
                self._call(node, prefix)
        return any(self.trained[id(tensor)] for tensor in graph.outputs)

    def _call(self, node: Any, prefix: str) -> None:
        layer = node.operation
        before = tuple(self.trained.get(id(tensor), False) for tensor in node.input_tensors)
        if hasattr(layer, "_nodes_by_depth") or hasattr(layer, "_functional"):
            inner = [shape_of(tensor, layer.name) for tensor in graph_of(layer).inputs]
            outer = [shape_of(tensor, layer.name) for tensor in node.input_tensors]
            must = f"call {layer.name} with the shapes it was built for, {inner}"
            require(inner == outer, "model", must, outer)
            after = self.enter(layer, f"{prefix}{layer.name}/", before)
        else:
            one = self._cost(node, f"{prefix}{layer.name}", any(before))
            after = any(before) or one.trainable > 0
            seen = self.found.get(one.name)
            self.found[one.name] = one if seen is None else _again(seen, one)
        for tensor in node.output_tensors:
            self.trained[id(tensor)] = after

    def _cost(self, node: Any, name: str, trained_before: bool) -> LayerCost:
        layer, kind = node.operation, type(node.operation).__name__
        inputs = [shape_of(tensor, name) for tensor in node.input_tensors]
        outputs = [shape_of(tensor, name) for tensor in node.output_tensors]
        weights = list(getattr(layer, "weights", ()))
        of_keras = type(layer).__module__.startswith("keras.")
        formula = FORMULAS.get(kind) if of_keras else None
        if formula is None:
            require(
                not weights,
                "model",
                "be made of layers whose cost is known",
                f"layer {name} of kind {kind} with {len(weights)} weights",
                "Count this layer by hand, and the others as a model without it.",
            )
            if name not in self.uncounted:
                self.uncounted.append(name)
        multiply_adds, other = formula(layer, inputs, outputs[0]) if formula else (0, 0)
        statistics = _statistics(layer, kind)
        trainable = sum(prod(w.shape) for w in getattr(layer, "trainable_weights", ()))
        weight_bytes = sum(prod(w.shape) * itemsize(w.dtype) for w in weights)
        written = 0 if kind in FREE else _nbytes(node.output_tensors, outputs)
        read = 0 if kind in FREE else _nbytes(node.input_tensors, inputs)
        training = multiply_adds * (1 + (trainable > 0) + trained_before)
        if formula and kind in PARTS:
            training = PARTS[kind](layer, inputs).training(trainable > 0, trained_before)
        # an embedding reads the rows it looks up, as many bytes as it writes
        shared = written * self.batch if kind == "Embedding" else weight_bytes
        return LayerCost(
            name=name,
            kind=kind,
            output_shape=outputs[0],
            parameters=sum(prod(w.shape) for w in weights) - statistics,
            statistics=statistics,
            trainable=trainable,
            multiply_adds=multiply_adds,
            other_flops=other,
            training_multiply_adds=training,
            activation_bytes=written,
            weight_bytes=weight_bytes,
            bytes_moved=read + written + shared / self.batch,
        )


def graph_of(model: Any) -> Any:
    """Return the functional graph of a model."""
    graph = getattr(model, "_functional", model)
    require(
        hasattr(graph, "_nodes_by_depth"),
        "model",
        "be a functional or sequential Keras model with known input shape",
        type(model).__name__,
        "Build it with keras.Input first; a subclassed model hides its layers.",
    )
    return graph


def nodes_of(graph: Any) -> list[Any]:
    """List the calls of a functional model, each after those it depends on."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    return [node for depth in depths for node in graph._nodes_by_depth[depth]]


def shape_of(tensor: Any, name: str) -> tuple[int, ...]:
    """Return the shape of one image of a symbolic tensor."""
    shape = tuple(tensor.shape[1:])
    then = "Give keras.Input the size of the images."
    require(None not in shape, "model", f"have fixed shapes at layer {name}", shape, then)
    return shape


def itemsize(dtype: Any) -> int:
    """Tell how many bytes a number of a dtype takes."""
    if str(dtype) in ("bfloat16", "bool"):
        return 2 if str(dtype) == "bfloat16" else 1
    import numpy as np

    return np.dtype(dtype).itemsize


def _nbytes(tensors: list[Any], shapes: list[tuple[int, ...]]) -> int:
    return sum(
        prod(shape) * itemsize(tensor.dtype) for tensor, shape in zip(tensors, shapes, strict=True)
    )


def _statistics(layer: Any, kind: str) -> int:
    if kind == "BatchNormalization":
        return prod(layer.moving_mean.shape) + prod(layer.moving_variance.shape)
    if kind == "Normalization":
        return sum(prod(w.shape) for w in layer.weights)
    return 0


def _again(seen: LayerCost, one: LayerCost) -> LayerCost:
    """Add a further call of a layer: its weights are the same, its work is done again."""
    summed = ("multiply_adds", "other_flops", "training_multiply_adds", "activation_bytes")
    more = {name: getattr(seen, name) + getattr(one, name) for name in (*summed, "bytes_moved")}
    return replace(seen, **more)
