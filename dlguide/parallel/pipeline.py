"""A net cut into stages, one on each rank: activations go forward, gradients come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, clock_offset, require_equal
from dlguide.errors import require, require_count, require_known
from dlguide.parallel import schedules, stages
from dlguide.parallel.passing import Run
from dlguide.parallel.schedules import Cell

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


@dataclass(frozen=True)
class Step:
    """One training step as it was measured, the same on all ranks.

    `loss` is the mean over the batch. `cells` are those of all stages on the clock of rank 0,
    the first one from 0 on; only computing counts as work. `held` is for each stage the largest
    number of microbatches whose activations it kept, `sent_bytes` what it sent to its neighbours.
    """

    loss: float
    cells: tuple[Cell, ...]
    held: tuple[int, ...]
    sent_bytes: tuple[int, ...]

    @property
    def waiting(self) -> float:
        """Share of the step in which stages did not compute: the measured bubble."""
        return schedules.waiting(self.cells)


class Pipeline:
    """Trains a net whose stages live on the ranks of a communicator.

    Every rank builds the same net, and keeps its own stage. A step cuts the batch into
    microbatches, sends them through the stages, adds up the gradients of all, and updates once:
    the same step as that of the whole net with the whole batch. Every rank must call, with the
    same arguments.

    Not the same are nets whose samples see each other, as in batch normalisation: it sees a
    microbatch. Dropout draws other numbers than in the whole net.

    Args:
        model: a functional or sequential Keras model that gives logits, equal on all ranks.
        comm: the ranks, one for each stage.
        optimizer: makes a Keras optimizer, one for each stage.
        microbatches: parts of a batch (count).
        schedule: "1f1b" or "gpipe".
        cuts: names of the layers after which to cut; None balances the flops.
        loss: (labels, outputs) -> the loss of each sample; None for the cross-entropy of classes.
        recompute: keep only the inputs of stages and compute the rest again on the way back.
        uneven: allow microbatches of different size, when the batch does not divide.
        replicas: ranks with the same stage of other copies of this pipeline, over which the
            gradients are added; None for a single copy.

    Raises:
        ValueError: on all ranks alike, when the net cannot be cut so, an argument is unknown or
            differs between ranks, or recomputing would not give the same numbers.
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
        replicas: Comm | None = None,
    ) -> None:
        asked = {"microbatches": microbatches, "schedule": schedule, "cuts": cuts}
        require_equal(comm, **asked, recompute=recompute, uneven=uneven)
        with agree_or_raise(comm):
            require_count(microbatches, "microbatches")
            require_known(schedule, schedules.ORDERS, "schedule")
            self.cuts = stages.balance(model, comm.size) if cuts is None else tuple(cuts)
            fits = len(self.cuts) == comm.size - 1
            then = f"Name {comm.size - 1} layers."
            require(fits, "cuts", f"make one stage for each of {comm.size} ranks", cuts, then)
            self.stage = stages.cut(model, self.cuts)[comm.rank]
            self.costs = stages.costs(model, self.cuts)
            if recompute:
                _require_repeatable(self.stage)
            self.optimizer = optimizer()
            alone = not getattr(self.optimizer, "global_clipnorm", None)
            then = "Clip each variable on its own, with `clipnorm`."
            require(alone, "optimizer", "not clip by a norm over all stages", "global", then)
        self.comm, self.replicas = comm, replicas
        self.microbatches, self.schedule, self.recompute = microbatches, schedule, recompute
        self.uneven = uneven
        self.order = schedules.order(schedule, comm.rank, comm.size, microbatches)
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
        graphs: dict[int, Any] = {}

        # one graph for each size of a microbatch; there are two at most
        def compiled(inputs: Any, labels: Any) -> Any:
            size = inputs.shape[0]
            if size not in graphs:
                graphs[size] = forward.get_concrete_function(inputs, labels)
            return graphs[size](inputs, labels)

        def updated(gradients: list[Any], samples: Any) -> None:
            if 0 not in graphs:
                graphs[0] = update.get_concrete_function(gradients, samples)
            graphs[0](gradients, samples)

        self._forward, self._update = compiled, updated

    def step(self, images: np.ndarray, labels: np.ndarray, samples: int | None = None) -> Step:
        """Train on one batch; every rank must call.

        Only the first stage looks at the images and only the last one at the labels.

        Args:
            images: the batch, first dimension its samples.
            labels: one label for each sample.
            samples: samples of all replicas together, by which the gradients are divided; None
                for those of this batch.

        Returns:
            Step: the loss and what was measured, the same on all ranks.

        Raises:
            ValueError: on all ranks alike, when the batch cannot be cut into microbatches.
        """
        import tensorflow as tf

        with agree_or_raise(self.comm):
            sizes = self._sizes(len(images), len(labels))
        run = Run(self, images, labels, sizes)
        for kind, microbatch in self.order:
            run.work(kind, microbatch)
        run.finish()
        samples = len(images) if samples is None else samples
        gradients, total = run.gradients, np.array([run.loss])
        if self.replicas is not None:
            gradients = [gradient.numpy().copy() for gradient in gradients]
            for array in (*gradients, total):
                allreduce(array, self.replicas, check=False)
            gradients = [tf.constant(gradient) for gradient in gradients]
        if gradients:  # a stage may have no weights
            self._update(gradients, tf.constant(samples))
        return self._measured(run, float(total[0]) / samples)

    def weights(self) -> dict[str, np.ndarray]:
        """Collect the weights of all stages on all ranks; every rank must call.

        Returns:
            dict: each weight by its Keras path, in the order of the stages.
        """
        own = {weight.path: np.asarray(weight) for weight in self.stage.weights}
        return {path: value for stage in self.comm.allgather(own) for path, value in stage.items()}

    def predict(
        self, forward_s: float | Sequence[float] = 1.0, backward_s: float | Sequence[float] = 2.0
    ) -> tuple[Cell, ...]:
        """Predict the schedule of a step.

        Args:
            forward_s: time of a microbatch forward, one for all stages or one for each (s).
            backward_s: the same backward (s).

        Returns:
            tuple: the cells, as `schedules.predict` gives them.
        """
        return schedules.predict(
            self.schedule, self.comm.size, self.microbatches, forward_s, backward_s
        )

    def _sizes(self, images: int, labels: int) -> list[int]:
        parts = self.microbatches
        require(images == labels, "labels", f"be one for each of {images} images", labels)
        require(images >= parts, "images", f"be at least the {parts} microbatches", images)
        then = "Take another number, or `uneven=True`: cells then take different times."
        divides = images % parts == 0 or self.uneven
        require(divides, "images", f"divide into {parts} equal microbatches", images, then)
        return [(m + 1) * images // parts - m * images // parts for m in range(parts)]

    def _measured(self, run: Run, loss: float) -> Step:
        everyone = self.comm.allgather((run.cells, run.most, run.sent_bytes, loss))
        begin = min(row[0].start_s for row, *_ in everyone)
        cells = tuple(
            Cell(cell.stage, cell.microbatch, cell.kind, cell.start_s - begin, cell.end_s - begin)
            for row, *_ in everyone
            for cell in row
        )
        held, sent_bytes = (tuple(each[place] for each in everyone) for place in (1, 2))
        return Step(everyone[-1][3], cells, held, sent_bytes)


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
