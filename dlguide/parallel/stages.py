"""Cut a Keras net into stages: where it can be cut, and where it should be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from dlguide.errors import require, require_count
from dlguide.models import count
from dlguide.models.graph import graph_of, itemsize, nodes_of, shape_of

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class StageCost:
    """What one stage of a net costs, in plain numbers.

    `layers` are the names of its layers. `training_flops`, `activation_bytes` (what all its
    layers write) and `input_bytes` are for one sample; `weight_bytes` once for any batch.
    """

    layers: tuple[str, ...]
    training_flops: int
    activation_bytes: int
    input_bytes: int
    weight_bytes: int

    def memory_bytes(self, held: int, samples: int, recompute: bool = False) -> int:
        """Predict what the activations take that this stage keeps for the way back.

        Without recomputation it keeps all activations of each microbatch that it holds. With it,
        the input of each, and all activations of the one that is on its way back.
        """
        if recompute:
            return samples * (held * self.input_bytes + self.activation_bytes)
        return samples * held * (self.activation_bytes + self.input_bytes)


def cut_points(model: keras.Model) -> dict[str, Any]:
    """Find the layers after which a net falls into two parts that share one tensor only.

    In a chain every layer is one; in a residual net those between two blocks.
    """
    graph = graph_of(model)
    one = len(graph.inputs) == len(graph.outputs) == 1
    require(one, "model", "have one input and one output", f"{len(graph.inputs)} and "
            f"{len(graph.outputs)}", "Cut the net by hand.")  # fmt: skip
    nodes = [node for node in nodes_of(graph) if not node.is_input]
    last_use = {id(graph.outputs[0]): len(nodes)}
    for place, node in enumerate(nodes):
        last_use.update((id(tensor), place) for tensor in node.input_tensors)
    alive = [graph.inputs[0]]
    points: dict[str, Any] = {}
    for place, node in enumerate(nodes[:-1]):
        alive = [
            tensor for tensor in (*alive, *node.output_tensors) if last_use[id(tensor)] > place
        ]
        if len(alive) == 1 and alive[0] is node.output_tensors[0]:
            points[node.operation.name] = alive[0]
    return points


def cut(model: keras.Model, cuts: Sequence[str]) -> list[keras.Model]:
    """Cut a net after the named layers.

    The stages share their layers with the net, so weights are not copied.
    """
    import keras

    points, graph = cut_points(model), graph_of(model)
    names = list(points)
    for name in cuts:
        known = f"be layers with a cut behind them ({', '.join(names)})"
        require(name in points, "cuts", known, name)
    ordered = all(names.index(one) < names.index(other) for one, other in pairwise(cuts))
    require(ordered, "cuts", "be in the order of the layers, each once", tuple(cuts))
    tensors = [graph.inputs[0], *(points[name] for name in cuts), graph.outputs[0]]
    if len(tensors) == 2:
        return [model]
    stages = [keras.Model(start, end) for start, end in pairwise(tensors)]
    owner: dict[int, int] = {}
    for number, stage in enumerate(stages):
        for weight in stage.weights:
            alone = owner.setdefault(id(weight), number) == number
            then = "Let the layers that share them be in one stage."
            require(alone, "cuts", "leave every weight in one stage", weight.path, then)
    return stages


def balance(model: keras.Model, stages: int) -> tuple[str, ...]:
    """Choose the cuts so that the slowest stage has as little work as possible.

    Work is counted in flops of a training step (`models.count`); real layers reach different
    speeds, so measured times of the stages say more.
    """
    require_count(stages, "stages")
    names = list(cut_points(model))
    then = "Use fewer stages."
    most = f"be at most {len(names) + 1}, the pieces {model.name} can be cut into"
    require(stages <= len(names) + 1, "stages", most, stages, then)
    work = [cost.training_flops for cost in costs(model, names)]
    return tuple(names[end - 1] for end in partition(work, stages)[:-1])


def partition(work: Sequence[float], parts: int) -> list[int]:
    """Cut a list into parts in a row whose largest sum is least, by dynamic programming.

    >>> partition([5, 1, 1, 1, 5], 3)
    [1, 4, 5]
    """
    sums = [0.0, *accumulate(work)]
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [])}]
    for part in range(1, parts + 1):
        row = {}
        for end in range(part, len(work) - (parts - part) + 1):
            row[end] = min(
                (max(largest, sums[end] - sums[start]), [*ends, end])
                for start, (largest, ends) in best[-1].items()
                if start < end
            )
        best.append(row)
    return best[-1][len(work)][1]


def costs(model: keras.Model, cuts: Sequence[str]) -> list[StageCost]:
    """Count what each stage of a cut net costs.

    Args:
        model: a functional or sequential Keras model with fixed shapes.
        cuts: names of layers, as `cut` takes them.

    Returns:
        list: one StageCost for each stage.

    Raises:
        ValueError: as `models.count` and `cut_points` do.
    """
    points = cut_points(model)
    nodes = [node for node in nodes_of(graph_of(model)) if not node.is_input]
    names = list(dict.fromkeys(node.operation.name for node in nodes))
    ends = [*(names.index(name) + 1 for name in cuts), len(names)]
    inputs = [graph_of(model).inputs[0], *(points[name] for name in cuts)]
    counted: dict[str, list[Any]] = {name: [] for name in names}
    for layer in count(model).layers:
        counted[layer.name.split("/")[0]].append(layer)
    found = []
    for start, end, tensor in zip([0, *ends], ends, inputs, strict=False):
        layers = [one for name in names[start:end] for one in counted[name]]
        found.append(
            StageCost(
                tuple(names[start:end]),
                sum(2 * one.training_multiply_adds + 3 * one.other_flops for one in layers),
                sum(one.activation_bytes for one in layers),
                prod(shape_of(tensor, tensor.name)) * itemsize(tensor.dtype),
                sum(one.weight_bytes for one in layers),
            )
        )
    return found
