"""Pipeline parallelism: stages of a net on the ranks, and where to cut the net.

Activations travel forward from stage to stage, gradients backward.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.parallel import pipeline_schedule
from dlcourse.parallel.mesh import copies_mesh
from dlcourse.parallel.pipeline_schedule import BACKWARD, FORWARD, WEIGHTS, PipelineCell
from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, clock_offset, require_equal
from dlguide.collectives.buffers import flatten, message
from dlguide.data.datasets import shard
from dlguide.errors import require, require_count
from dlguide.models import count
from dlguide.models.graph import graph_of, itemsize, nodes_of, shape_of

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm

_TAG = 7751


@dataclass(frozen=True)
class PipelineStep:
    """One measured training step, the same on all ranks.

    `loss` is the mean over the batch. `cells` are those of all stages on the clock of rank 0,
    starting at 0; only computing counts as work. `held` is for each stage the largest number of
    microbatches whose activations it kept (counted once for each piece of the net), `sent_bytes`
    what it sent to its neighbours.
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

    Every rank builds the same net and keeps its own stage, or with `chunks` several pieces of it.
    A step cuts the batch into microbatches, sends them through the pieces, adds up the gradients of
    all, and updates once: the same step as that of the whole net with the whole batch. With
    `copies` the ranks are a grid of data x pipeline: each copy takes its part of the batch. Every
    rank must call, with the same arguments.

    Batch normalisation sees a microbatch instead of the batch, and dropout draws other masks than
    in the whole net.

    Args:
        model: a functional or sequential Keras model that returns logits, equal on all ranks.
        comm: the ranks, one for each stage of each copy.
        optimizer: returns a new Keras optimizer; called once per stage.
        microbatches: parts of a copy's batch.
        schedule: "1f1b", "gpipe", "interleaved" or "zb-h1" (`pipeline_schedule`).
        cuts: names of the layers after which to cut; None balances the flops.
        loss: (labels, outputs) -> the loss of each sample; None for softmax cross-entropy.
        recompute: keep only the inputs of stages and recompute the rest in the backward pass.
        uneven: allow microbatches of different sizes, where the batch does not divide.
        copies: pipelines side by side (count); the ranks of a copy are neighbours.
            Several copies of several ranks make communicators, which `mesh.free()` frees.
        chunks: pieces of the net on each rank, for "interleaved".

    Raises:
        ValueError: on all ranks alike, when the net cannot be cut there, an argument is unknown
            or differs between ranks, or computing twice would give other values.
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
        chunks: int = 1,
    ) -> None:
        asked = {"microbatches": microbatches, "schedule": schedule, "cuts": cuts}
        require_equal(comm, **asked, recompute=recompute, uneven=uneven, chunks=chunks)
        self.mesh = copies_mesh(comm, copies)
        comm = self.comm = self.mesh.along("model")
        rank, ranks, split = comm.rank, comm.size, schedule == "zb-h1"
        with agree_or_raise(comm):
            self.order = pipeline_schedule.order(schedule, rank, ranks, microbatches, chunks)
            pieces, most = ranks * chunks, 1 + len(cut_points(model))
            if cuts is None and pieces > most:
                balance(model, ranks)  # refuses more stages than pieces
                usual = 'Take `schedule="1f1b"` with `chunks=1`.'
                then = f"Take {most // ranks}." if most >= 2 * ranks else usual
                must = f"be at most {most // ranks}: {model.name} can be cut into {most} pieces"
                require(False, "chunks", f"{must}, for {ranks} ranks", chunks, then)
            self.cuts = balance(model, pieces) if cuts is None else tuple(cuts)
            fits = len(self.cuts) == pieces - 1
            then = f"Name {pieces - 1} layers."
            must = f"make {'one stage' if chunks == 1 else f'{chunks} pieces'} for each of {ranks}"
            require(fits, "cuts", f"{must} ranks", cuts, then)
            own = cut(model, self.cuts)[rank::ranks]
            self.costs = stage_costs(model, self.cuts)
            then = "Its stages keep their activations until the gradients of the weights."
            require(not (split and recompute), "recompute", "be False with zb-h1", recompute, then)
            for piece in own if recompute or split else ():
                _require_repeatable(piece)
            self.optimizer = optimizer()
            alone = not getattr(self.optimizer, "global_clipnorm", None)
            then = "Clip each variable on its own, with `clipnorm`."
            require(alone, "optimizer", "not clip by a norm over all stages", "global", then)
        self.microbatches, self.schedule, self.uneven = microbatches, schedule, uneven
        kind = _SplitStage if split else _Stage
        self.stages = [
            kind(piece, chunk * ranks + rank, pieces, loss or _cross_entropy, recompute)
            for chunk, piece in enumerate(own)
        ]
        self.variables = [v for stage in self.stages for v in stage.model.trainable_variables]
        if self.variables:
            self.optimizer.build(self.variables)
        self._update = self._compiled_update()
        self.offset_s = clock_offset(comm)

    def _compiled_update(self) -> Callable[[list[Any], Any], None]:
        import tensorflow as tf

        @tf.function(autograph=False)
        def update(gradients: list[Any], samples: Any) -> None:
            means = [gradient / tf.cast(samples, gradient.dtype) for gradient in gradients]
            self.optimizer.apply(means, self.variables)

        return update

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
        gradients: list[list[Any]] = [[] for _ in self.stages]
        held: dict[tuple[int, int], Any] = {}  # what the backward passes to come need
        later: dict[tuple[int, int], Any] = {}  # and the gradients of the weights put off
        sending: list[tuple[Any, np.ndarray]] = []  # MPI reads an array until it has arrived
        cells: list[PipelineCell] = []
        loss, most = 0.0, 0
        for kind, number, chunk in self.order:
            stage, part, key = self.stages[chunk], microbatches[number], (chunk, number)
            out, found = None, None
            if kind == FORWARD:
                given = images[part] if stage.first else self._receive(kind, stage, number, part)
                start_s = perf_counter() + self.offset_s
                of_part = labels[part] if stage.last else np.zeros(0, "i4")
                out, held[key] = stage.forward(given, of_part)
                most = max(most, len(held) + len(later))
                loss += float(out) if stage.last else 0.0
                out = None if stage.last else out
            elif kind == BACKWARD:
                given = None if stage.last else self._receive(kind, stage, number, part)
                start_s = perf_counter() + self.offset_s
                out, found, kept = stage.backward(given, held.pop(key))
                if found is None:
                    later[key] = kept
            else:
                start_s = perf_counter() + self.offset_s
                found = stage.weights(later.pop(key))
            if found is not None:
                before = gradients[chunk] or [0] * len(found)
                gradients[chunk] = [a + b for a, b in zip(found, before, strict=True)]
            # reading the values waits for them
            array = None if out is None else np.ascontiguousarray(out.numpy())
            end_s = perf_counter() + self.offset_s
            cells.append(PipelineCell(self.comm.rank, number, kind, start_s, end_s, chunk))
            if array is not None:
                sending.append((self._send(kind, stage, number, array), array))
        MPI.Request.Waitall([request for request, _ in sending])
        total, summed = np.array([loss]), [each for row in gradients for each in row]
        if copies.size > 1:
            arrays = [gradient.numpy().copy() for gradient in summed]
            for array in (*arrays, total):
                allreduce(array, copies, check=False)
            summed = [tf.constant(array) for array in arrays]
        if summed:  # a stage may have no weights
            self._update(summed, tf.constant(samples))
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
        own = {w.path: np.asarray(w) for stage in self.stages for w in stage.model.weights}
        return {path: value for stage in self.comm.allgather(own) for path, value in stage.items()}

    def _cut_batch(self, images: int) -> list[slice]:
        parts = self.microbatches
        require(images >= parts, "images", f"be at least the {parts} microbatches", images)
        works = [n for n in range(1, images + 1) if images % n == 0]
        nearest = min(works, key=lambda n: abs(n - parts))
        then = f"The nearest number: {nearest}. With `uneven=True` cells take different times."
        divides = images % parts == 0 or self.uneven
        require(divides, "images", f"divide into {parts} equal microbatches", images, then)
        return [shard(images, part, parts) for part in range(parts)]

    def _send(self, kind: str, stage: _Stage, number: int, array: np.ndarray) -> Any:
        to = stage.place + (1 if kind == FORWARD else -1)
        tag = self._tag(kind, to, number)
        return self.comm.Isend(message(flatten(array)), to % self.comm.size, tag)

    def _receive(self, kind: str, stage: _Stage, number: int, part: slice) -> np.ndarray:
        tensor = (stage.model.inputs if kind == FORWARD else stage.model.outputs)[0]
        array = np.empty((part.stop - part.start, *tensor.shape[1:]), str(tensor.dtype))
        source = (stage.place + (-1 if kind == FORWARD else 1)) % self.comm.size
        tag = self._tag(kind, stage.place, number)
        self.comm.Recv(message(flatten(array)), source, tag)
        return array

    def _tag(self, kind: str, place: int, number: int) -> int:
        """Return one tag for each message of a step: stages may work in any order."""
        return _TAG + 2 * (place * self.microbatches + number) + (kind == BACKWARD)


class _Stage:
    """The passes of one piece of the net, compiled; `place` is its number from the input on."""

    def __init__(
        self,
        model: keras.Model,
        place: int,
        pieces: int,
        loss: Callable[[Any, Any], Any],
        recompute: bool = False,
    ) -> None:
        self.model, self.place, self.recompute = model, place, recompute
        self.first, self.last, self.loss = place == 0, place == pieces - 1, loss
        self._compile()

    def _compile(self) -> None:
        import tensorflow as tf

        # one graph for each size of a microbatch; there are two at most
        @tf.function(autograph=False)
        def forward(inputs: Any, labels: Any) -> Any:
            if self.first:  # else the graph backward would also compute the gradient of the images
                inputs = tf.stop_gradient(inputs)
            outputs = self.model(inputs, training=True)
            return tf.reduce_sum(self.loss(labels, outputs)) if self.last else outputs

        self._forward = forward

    def forward(self, given: np.ndarray, labels: np.ndarray) -> tuple[Any, tuple]:
        """Return the output, and what the backward pass needs: inputs, labels or output, tape."""
        import tensorflow as tf

        inputs = tf.convert_to_tensor(given, str(self.model.inputs[0].dtype))
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

    def backward(self, given: np.ndarray | None, kept: tuple) -> tuple[Any, list[Any] | None, Any]:
        """Return the gradients of the inputs (None in the first stage) and of the weights."""
        import tensorflow as tf

        inputs, out, tape = kept
        if self.recompute:
            out, tape = self._taped(inputs, out)
        own = [variable.value for variable in self.model.trainable_variables]
        wanted = own if self.first else [*own, inputs]
        slope = None if given is None else tf.convert_to_tensor(given)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(out, wanted, slope, unconnected_gradients=zero)
        gradients = [tf.convert_to_tensor(gradient) for gradient in found[: len(own)]]
        return None if self.first else found[-1], gradients, None


class _SplitStage(_Stage):
    """A stage whose backward pass leaves the gradients of the weights for later.

    The forward pass sees the weights as constants and adds a zero to the output of each layer that
    has weights, before its activation: the gradient of that zero is the gradient of the output.
    """

    def _compile(self) -> None:
        import keras
        import tensorflow as tf

        graph = graph_of(self.model)
        self._calls = [
            node
            for node in nodes_of(graph)
            if not node.is_input and getattr(node.operation, "trainable_variables", ())
        ]

        @tf.function(autograph=False)
        def forward(inputs: Any, labels: Any, zeros: list[Any]) -> tuple[Any, list[Any]]:
            given: list[Any] = []  # the inputs of each layer that has weights

            def apply(layer: Any) -> Callable[..., Any]:
                def call(*args: Any, **options: Any) -> Any:
                    given.append(args)
                    with _linear(layer) as activation:
                        out = layer(*args, **options) + zeros[len(given) - 1]
                    return activation(out)

                return call if getattr(layer, "trainable_variables", ()) else layer

            fixed = [(v, tf.stop_gradient(v.value)) for v in self.model.trainable_variables]
            with keras.StatelessScope(state_mapping=fixed):
                outputs = graph._run_through_graph([inputs], operation_fn=apply)
            outputs = outputs[0] if isinstance(outputs, list) else outputs
            out = tf.reduce_sum(self.loss(labels, outputs)) if self.last else outputs
            return out, given

        @tf.function(autograph=False)
        def weights(given: list[Any], slopes: list[Any]) -> list[Any]:
            sums: dict[int, Any] = {}
            for node, args, slope in zip(self._calls, given, slopes, strict=True):
                layer, zero = node.operation, tf.UnconnectedGradients.ZERO
                with tf.GradientTape() as tape, _linear(layer):
                    out = layer(*args, **node.arguments.kwargs)
                own = [variable.value for variable in layer.trainable_variables]
                found = tape.gradient(out, own, slope, unconnected_gradients=zero)
                for variable, each in zip(layer.trainable_variables, found, strict=True):
                    each = tf.convert_to_tensor(each)
                    sums[id(variable)] = sums.get(id(variable), 0) + each
            return [sums[id(variable)] for variable in self.model.trainable_variables]

        self._forward, self._weights = forward, weights

    def forward(self, given: np.ndarray, labels: np.ndarray) -> tuple[Any, tuple]:
        """Return the output, and what the backward pass needs."""
        import tensorflow as tf

        inputs = tf.convert_to_tensor(given, str(self.model.inputs[0].dtype))
        outputs = [node.output_tensors[0] for node in self._calls]
        zeros = [tf.zeros((len(given), *one.shape[1:]), str(one.dtype)) for one in outputs]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(zeros if self.first else [*zeros, inputs])
            out, given = self._forward(inputs, tf.convert_to_tensor(labels), zeros)
        return out, (inputs, out, tape, zeros, given)

    def backward(self, given: np.ndarray | None, kept: tuple) -> tuple[Any, list[Any] | None, Any]:
        """Return the gradients of the inputs, and what those of the weights need."""
        import tensorflow as tf

        inputs, out, tape, zeros, inside = kept
        wanted = zeros if self.first else [*zeros, inputs]
        slope = None if given is None else tf.convert_to_tensor(given)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(out, wanted, slope, unconnected_gradients=zero) if wanted else []
        return None if self.first else found[-1], None, (inside, found[: len(zeros)])

    def weights(self, kept: tuple) -> list[Any]:
        """Return the gradients of the weights that the backward pass left."""
        return list(self._weights(*kept))


@contextmanager
def _linear(layer: Any) -> Iterator[Callable[[Any], Any]]:
    """Leave out the activation that a layer ends with, and hand it over; identity without one."""
    ends = ("Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D")
    activation = getattr(layer, "activation", None) if type(layer).__name__ in ends else None
    if activation is None:
        yield lambda out: out
        return
    layer.activation = lambda out: out
    try:
        yield activation
    finally:
        layer.activation = activation


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
    """Return the median time of each stage's cells, by the kinds that the schedule has (s)."""
    require(bool(measured), "measured", "hold at least one step", list(measured))
    cells = [cell for step in measured for cell in step.cells]
    stages, kinds = range(1 + max(cell.stage for cell in cells)), {cell.kind for cell in cells}
    return {
        kind: [
            statistics.median(c.seconds for c in cells if c.stage == stage and c.kind == kind)
            for stage in stages
        ]
        for kind in (FORWARD, BACKWARD, WEIGHTS)
        if kind in kinds
    }


@dataclass(frozen=True)
class StageCost:
    """Cost of one stage of a net: work and activations of one sample, weights once."""

    layers: tuple[str, ...]
    training_flops: int
    activation_bytes: int
    input_bytes: int
    weight_bytes: int

    def memory_bytes(self, held: int, samples: int, recompute: bool = False) -> int:
        """Predict the memory of the activations that this stage keeps for the backward pass."""
        if recompute:
            return samples * (held * self.input_bytes + self.activation_bytes)
        return samples * held * (self.activation_bytes + self.input_bytes)


def cut_points(model: keras.Model) -> dict[str, Any]:
    """Return the layers after which a net can be cut: one tensor alone connects the two parts."""
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
    """Cut a list into consecutive parts whose largest sum is minimal; return where they end."""
    sums = np.array([0.0, *accumulate(work)])
    between = sums[None, :] - sums[:, None]  # of the part from one place to another
    between[np.tril_indices(len(sums))] = np.inf
    best, starts = between[0], []
    for _ in range(parts - 1):
        # the largest part so far, when the last one starts at each place
        largest = np.maximum(best[:, None], between)
        starts.append(largest.argmin(axis=0))
        best = largest.min(axis=0)
    ends = [len(work)]
    for row in reversed(starts):
        ends.append(int(row[ends[-1]]))
    return ends[::-1]


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
