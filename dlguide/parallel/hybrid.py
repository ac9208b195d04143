"""Two schemes at once: ranks in a grid, data-parallel one way and model-parallel the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.errors import require, require_count
from dlguide.parallel.pipeline import PipelineParallel
from dlguide.parallel.tensor import TensorParallelModel, part_of

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


@dataclass(frozen=True)
class RankGrid:
    """A grid of ranks: rank = copy * model + part.

    Args:
        data: number of copies of the net (count).
        model: number of ranks that share one copy (count).
        copy: the copy on which this rank works.
        part: the part of it that this rank holds.
        data_comm: ranks with the same part of all copies; gradients are summed over it.
        model_comm: ranks of this copy, neighbours in the numbering.
    """

    data: int
    model: int
    copy: int
    part: int
    data_comm: Any
    model_comm: Any

    def free(self) -> None:
        """Free both communicators; every rank must call."""
        self.data_comm.Free()
        self.model_comm.Free()


def grid(comm: Comm, model: int) -> RankGrid:
    """Arrange the ranks in a grid with `model` ranks per copy; every rank must call.

    Raises:
        ValueError: on all ranks alike, when `model` does not divide the ranks or differs.
    """
    require_equal(comm, model=model)
    with agree_or_raise(comm):
        require_count(model, "model")
        require(comm.size % model == 0, "model", f"divide the {comm.size} ranks", model)
    copy, part = divmod(comm.rank, model)
    comms = comm.Split(part, copy), comm.Split(copy, part)
    return RankGrid(comm.size // model, model, copy, part, *comms)


class HybridParallel:
    """Trains copies of a net that is itself cut; `pipeline` and `tensor` return one.

    Each copy gets its part of the batch; gradients are summed over the copies and divided by the
    global batch, so a step is that of the whole net with the global batch.
    """

    def __init__(self, grid: RankGrid, inner: PipelineParallel | TensorParallelModel) -> None:
        self.grid, self.inner = grid, inner

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Train on one global batch; every rank must call, with the whole batch."""
        mine = part_of(len(images), self.grid.data, self.grid.copy, "images")
        return self.inner.step(images[mine], labels[mine], samples=len(images))

    def weights(self) -> dict[str, np.ndarray]:
        """Collect the weights of this rank's copy; every rank must call."""
        return self.inner.weights()


def pipeline(
    model: keras.Model,
    comm: Comm,
    stages: int,
    optimizer: Callable[[], keras.optimizers.Optimizer],
    microbatches: int,
    **options: Any,
) -> HybridParallel:
    """Return a grid of data x pipeline; every rank must call.

    Args:
        model: the net, equal on all ranks.
        comm: an mpi4py communicator.
        stages: stages of each copy (count); it divides the ranks.
        optimizer: returns a new Keras optimizer.
        microbatches: parts of each copy's batch (count).
        options: further arguments of `PipelineParallel`.

    Raises:
        ValueError: on all ranks alike, as `grid` and `PipelineParallel` do.
    """
    ranks = grid(comm, stages)
    options["replicas"] = ranks.data_comm
    return HybridParallel(
        ranks, PipelineParallel(model, ranks.model_comm, optimizer, microbatches, **options)
    )


def tensor(
    model: keras.Model, comm: Comm, parts: int, rate: float, momentum: float = 0.0
) -> HybridParallel:
    """Return a grid of data x tensor; every rank must call, as for `pipeline`."""
    ranks = grid(comm, parts)
    inner = TensorParallelModel(model, ranks.model_comm, rate, momentum, ranks.data_comm)
    return HybridParallel(ranks, inner)
