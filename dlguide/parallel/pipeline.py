"""Pipeline parallelism: stages of a net on the ranks, and where to cut the net.

Activations travel forward from stage to stage, gradients backward.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, clock_offset, require_equal
from dlguide.collectives.buffers import flatten, message
from dlguide.data.datasets import shard
from dlguide.errors import require, require_count, require_known
from dlguide.models import count
from dlguide.models.graph import graph_of, itemsize, nodes_of, shape_of
from dlguide.parallel import pipeline_schedule
from dlguide.parallel.mesh import copies_mesh
from dlguide.parallel.pipeline_schedule import BACKWARD, FORWARD, PipelineCell

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm

_TAGS = {FORWARD: 7751, BACKWARD: 7752}


@dataclass(frozen=True)
class PipelineStep:
    """One measured training step, the same on all ranks.

    `loss` is the mean over the batch. `cells` are those of all stages on the clock of rank 0,
    starting at 0; only computing counts as work. `held` is for each stage the largest number of
    microbatches whose activations it kept, `sent_bytes` what it sent to its neighbours.
    """

    loss: float
    cells: tuple[PipelineCell, ...]
    held: tuple[int, ...]
    sent_bytes: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """Share of the step in which stages did not compute."""
        return pipeline_schedule.idle_share(self.cells)


class PipelineParallel:
    """Trains a net whose stages are on the ranks of a communicator.

    Every rank builds the same net and keeps its own stage. A step cuts the batch into
    microbatches, sends them through the stages, adds up the gradients of all, and updates once:
    the same step as that of the whole net with the whole batch. With `copies` the ranks are a grid
    of data x pipeline: each copy takes its part of the batch. Every rank must call, with the same
    arguments.

    Batch normalisation sees a microbatch instead of the batch, and dropout draws other masks than
    in the whole net.

    Args:
        model: a functional or sequential Keras model that returns logits, equal on all ranks.
        comm: the ranks, one for each stage of each copy.
        optimizer: returns a new Keras optimizer; called once per stage.
        microbatches: parts of a copy's batch.
        schedule: "1f1b" or "gpipe".
        cuts: names of the layers after which to cut; None balances the flops.
        loss: (labels, outputs) -> the loss of each sample; None for softmax cross-entropy.
        recompute: keep only the inputs of stages and recompute the rest in the backward pass.
        uneven: allow microbatches of different sizes, where the batch does not divide.
        copies: pipelines side by side (count); the ranks of a copy are neighbours.
            Several copies of several ranks make communicators, which `mesh.free()` frees.

    Raises:
        ValueError: on all ranks alike, when the net cannot be cut there, an argument is unknown
            or differs between ranks, or recomputing would give other values.
    """

    def __init__(
        self,
        model: keras.Model,
        comm: Comm,
        optimizer: Callable[[], keras.optimizers.Optimizer],
        microbatches: int,
        schedule: str = "1f1b",
        cuts: Sequence[str] | None = None,
        loss: Callable[[Any, Any], Any] | None = None,
        recompute: bool = False,
        uneven: bool = False,
        copies: int = 1,
    ) -> None:
        asked = {"microbatches": microbatches, "schedule": schedule, "cuts": cuts}
        require_equal(comm, **asked, recompute=recompute, uneven=uneven)
        self.mesh = copies_mesh(comm, copies)
        comm = self.comm = self.mesh.along("model")
        with agree_or_raise(comm):
            require_count(microbatches, "microbatches")
            require_known(schedule, pipeline_schedule.ORDERS, "schedule")
            self.cuts = balance(model, comm.size) if cuts is None else tuple(cuts)
            fits = len(self.cuts) == comm.size - 1
            then = f"Name {comm.size - 1} layers."
            require(fits, "cuts", f"make one stage for each of {comm.size} ranks", cuts, then)
            self.stage = cut(model, self.cuts)[comm.rank]
            self.costs = stage_costs(model, self.cuts)
            if recompute:
                _require_repeatable(self.stage)
            self.optimizer = optimizer()
            alone = not getattr(self.optimizer, "global_clipnorm", None)
            then = "Clip each variable on its own, with `clipnorm`."
            require(alone, "optimizer", "not clip by a norm over all stages", "global", then)
        self.microbatches, self.schedule, self.recompute = microbatches, schedule, recompute
        self.uneven = uneven
        self.order = pipeline_schedule.order(schedule, comm.rank, comm.size, microbatches)
        self.first, self.last = comm.rank == 0, comm.rank == comm.size - 1
        self.offset_s = clock_offset(comm)
        self._compile(loss or _cross_entropy)

    def _compile(self, loss: Callable[[Any, Any], Any]) -> None:
        import tensorflow as tf

        stage, first, last = self.stage, self.first, self.last

        @tf.function(autograph=False)
        def forward(inputs: Any, labels: Any) -> Any:
            if first:  # else the graph backward would also compute the gradient of the images
                inputs = tf.stop_gradient(inputs)
            outputs = stage(inputs, training=True)
            return tf.reduce_sum(loss(labels, outputs)) if last else outputs

        @tf.function(autograph=False)
        def update(gradients: list[Any], samples: Any) -> None:
            means = [gradient / tf.cast(samples, gradient.dtype) for gradient in gradients]
            self.optimizer.apply(means, stage.trainable_variables)

        if stage.trainable_variables:
            self.optimizer.build(stage.trainable_variables)
        # one graph for each size of a microbatch; there are two at most
        self._forward, self._update = forward, update

    def step(self, images: np.ndarray, labels: np.ndarray) -> PipelineStep:
        """Train on one batch; every rank must call.

        Only the first stage reads the images and only the last one the labels.

        Args:
            images: the whole batch, first dimension its samples.
            labels: one label for each sample.

        Returns:
            PipelineStep: the loss, and what was measured of this rank's copy.

        Raises:
            ValueError: on all ranks alike, when the batch cannot be cut into microbatches.
        """
        import tensorflow as tf
        from mpi4py import MPI

        copies, samples = self.mesh.along("data"), len(images)
        with agree_or_raise(self.mesh.comm):
            must = f"be one for each of {samples} images"
            require(len(labels) == samples, "labels", must, len(labels))
            part = shard(samples, copies.rank, copies.size)
            images, labels = images[part], labels[part]
            microbatches = self._cut_batch(len(images))
        gradients: list[Any] = []
        held: dict[int, tuple[Any, Any, Any]] = {}  # what the backward passes to come need
        sending: list[tuple[Any, np.ndarray]] = []  # MPI reads an array until it has arrived
        cells: list[PipelineCell] = []
        loss, most = 0.0, 0
        for kind, number in self.order:
            part = microbatches[number]
            forward = kind == FORWARD
            given = images[part] if forward and self.first else None
            if not (self.first if forward else self.last):
                given = self._receive(kind, part.stop - part.start)
            start_s = perf_counter() + self.offset_s
            if forward:
                of_part = labels[part] if self.last else np.zeros(0, "i4")
                out, held[number] = self._forward_pass(given, of_part)
                most = max(most, len(held))
                loss += float(out) if self.last else 0.0
            else:
                out, found = self._backward_pass(given, *held.pop(number))
                before = gradients or [0] * len(found)
                gradients = [a + b for a, b in zip(found, before, strict=True)]
            ends = self.last if forward else self.first
            array = None if ends else np.ascontiguousarray(out.numpy())
            end_s = perf_counter() + self.offset_s
            cells.append(PipelineCell(self.comm.rank, number, kind, start_s, end_s))
            if array is not None:
                to = self.comm.rank + (1 if forward else -1)
                sending.append((self.comm.Isend(message(flatten(array)), to, _TAGS[kind]), array))
        MPI.Request.Waitall([request for request, _ in sending])
        total = np.array([loss])
        if copies.size > 1:
            arrays = [gradient.numpy().copy() for gradient in gradients]
            for array in (*arrays, total):
                allreduce(array, copies, check=False)
            gradients = [tf.constant(array) for array in arrays]
        if gradients:  # a stage may have no weights
            self._update(gradients, tf.constant(samples))
        sent_bytes = sum(array.nbytes for _, array in sending)
        mine = cells, most, sent_bytes, float(total[0]) / samples
        rows, counts, sent, losses = zip(*self.comm.allgather(mine), strict=True)
        begin_s = min(row[0].start_s for row in rows)
        everyone = [
            replace(cell, start_s=cell.start_s - begin_s, end_s=cell.end_s - begin_s)
            for row in rows
            for cell in row
        ]
        return PipelineStep(losses[-1], tuple(everyone), counts, sent)

    def weights(self) -> dict[str, np.ndarray]:
        """Return the weights of all stages by their Keras paths; every rank must call."""
        own = {weight.path: np.asarray(weight) for weight in self.stage.weights}
        return {path: value for stage in self.comm.allgather(own) for path, value in stage.items()}

    def _cut_batch(self, images: int) -> list[slice]:
        parts = self.microbatches
        require(images >= parts, "images", f"be at least the {parts} microbatches", images)
        then = "Take another number, or `uneven=True`: cells then take different times."
        divides = images % parts == 0 or self.uneven
        require(divides, "images", f"divide into {parts} equal microbatches", images, then)
        return [shard(images, part, parts) for part in range(parts)]

    def _receive(self, kind: str, samples: int) -> np.ndarray:
        tensor = (self.stage.inputs if kind == FORWARD else self.stage.outputs)[0]
        array = np.empty((samples, *tensor.shape[1:]), str(tensor.dtype))
        source = self.comm.rank + (-1 if kind == FORWARD else 1)
        self.comm.Recv(message(flatten(array)), source, _TAGS[kind])
        return array

    def _forward_pass(self, given: np.ndarray, labels: np.ndarray) -> tuple[Any, tuple]:
        """Return the output, and what the backward pass needs: inputs, labels or output, tape."""
        import tensorflow as tf

        inputs = tf.convert_to_tensor(given, str(self.stage.inputs[0].dtype))
        labels = tf.convert_to_tensor(labels)
        if self.recompute:
            return self._forward(inputs, labels), (inputs, labels, None)
        out, tape = self._taped(inputs, labels)
        return out, (inputs, out, tape)

    def _taped(self, inputs: Any, labels: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            if not self.first:
                tape.watch(inputs)
            return self._forward(inputs, labels), tape

    def _backward_pass(
        self, given: np.ndarray | None, inputs: Any, out: Any, tape: Any
    ) -> tuple[Any, list[Any]]:
        """Return the gradients of the inputs (None in the first stage) and of the weights."""
        import tensorflow as tf

        if self.recompute:
            out, tape = self._taped(inputs, out)
        own = [variable.value for variable in self.stage.trainable_variables]
        wanted = own if self.first else [*own, inputs]
        slope = None if given is None else tf.convert_to_tensor(given)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(out, wanted, slope, unconnected_gradients=zero)
        gradients = [tf.convert_to_tensor(gradient) for gradient in found[: len(own)]]
        return None if self.first else found[-1], gradients


def _cross_entropy(labels: Any, logits: Any) -> Any:
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)


def _require_repeatable(stage: keras.Model) -> None:
    for layer in stage._flatten_layers():
        moving = layer.trainable and layer.non_trainable_weights and not layer._layers
        random = getattr(layer, "seed_generator", None) is not None
        then = "Build it without (`dropout=0`), or keep the activations (`recompute=False`)."
        must = "do the same when it is computed again"
        require(not moving and not random, "model", must, f"layer {layer.name}", then)


def measure_steps(
    pipelines: Sequence[PipelineParallel],
    images: np.ndarray,
    labels: np.ndarray,
    repeats: int = 7,
    warmup: int = 3,
) -> list[list[PipelineStep]]:
    """Train pipelines on the same batch repeatedly and return their steps; every rank must call.

    They take turns, step by step, so that all see the same disturbances of the machine.
    """
    require_count(repeats, "repeats")
    require_count(warmup, "warmup", least=0)
    found: list[list[PipelineStep]] = [[] for _ in pipelines]
    for _ in range(warmup + repeats):
        for pipeline, row in zip(pipelines, found, strict=True):
            pipeline.comm.Barrier()
            row.append(pipeline.step(images, labels))
    return [row[warmup:] for row in found]


def median_step(measured: Sequence[PipelineStep]) -> PipelineStep:
    """Return the step with the median bubble."""
    require(bool(measured), "measured", "hold at least one step", list(measured))
    return sorted(measured, key=lambda step: step.bubble)[len(measured) // 2]


def cell_seconds(measured: Sequence[PipelineStep]) -> dict[str, list[float]]:
    """Return the median time of each stage's cells, forward and backward (s)."""
    require(bool(measured), "measured", "hold at least one step", list(measured))
    cells = [cell for step in measured for cell in step.cells]
    stages = range(1 + max(cell.stage for cell in cells))
    return {
        kind: [
            statistics.median(c.seconds for c in cells if c.stage == stage and c.kind == kind)
            for stage in stages
        ]
        for kind in (FORWARD, BACKWARD)
    }


@dataclass(frozen=True)
class StageCost:
    """Cost of one stage of a net.

    `layers` are the names of its layers. `training_flops`, `activation_bytes` (what all its
    layers write) and `input_bytes` are for one sample; `weight_bytes` once for any batch.
    """

    layers: tuple[str, ...]
    training_flops: int
    activation_bytes: int
    input_bytes: int
    weight_bytes: int

    def memory_bytes(self, held: int, samples: int, recompute: bool = False) -> int:
        """Predict the memory of the activations that this stage keeps for the backward pass.

        Without recomputation it keeps all activations of each microbatch that it holds; with it,
        the input of each, and all activations of the one in its backward pass.
        """
        if recompute:
            return samples * (held * self.input_bytes + self.activation_bytes)
        return samples * held * (self.activation_bytes + self.input_bytes)


def cut_points(model: keras.Model) -> dict[str, Any]:
    """Return the layers after which a net can be cut: one tensor alone connects the two parts.

    In a chain these are all layers; in a residual net those between two blocks.
    """
    graph = graph_of(model)
    ends = f"{len(graph.inputs)} and {len(graph.outputs)}"
    must, then = "have one input and one output", "Cut the net by hand."
    require(ends == "1 and 1", "model", must, ends, then)
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
    parts = [keras.Model(start, end) for start, end in pairwise(tensors)]
    owner: dict[int, int] = {}
    for number, stage in enumerate(parts):
        for weight in stage.weights:
            alone = owner.setdefault(id(weight), number) == number
            then = "Let the layers that share them be in one stage."
            require(alone, "cuts", "leave every weight in one stage", weight.path, then)
    return parts


def balance(model: keras.Model, stages: int) -> tuple[str, ...]:
    """Return the cuts with which the slowest stage has the least work.

    Work is the flops of a training step (`models.count`); layers reach different speeds, so
    measured times of the stages are better.
    """
    require_count(stages, "stages")
    names = list(cut_points(model))
    then = "Use fewer stages."
    most = f"be at most {len(names) + 1}, the pieces {model.name} can be cut into"
    require(stages <= len(names) + 1, "stages", most, stages, then)
    work = [cost.training_flops for cost in stage_costs(model, names)]
    return tuple(names[end - 1] for end in partition(work, stages)[:-1])


def partition(work: Sequence[float], parts: int) -> list[int]:
    """Cut a list into consecutive parts whose largest sum is minimal; return where they end.

    Dynamic programming over the parts.

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


def stage_costs(model: keras.Model, cuts: Sequence[str]) -> list[StageCost]:
    """Count the cost of each stage of a net with fixed shapes; `cuts` as for `cut`.

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
