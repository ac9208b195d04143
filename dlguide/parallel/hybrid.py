"""Two schemes at once: ranks in a grid, data-parallel one way and model-parallel the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.errors import require, require_count
from dlguide.parallel.mesh import RankMesh
from dlguide.parallel.pipeline import PipelineParallel
from dlguide.parallel.tensor import TensorParallelModel, part_of

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


def grid(comm: Comm, model: int) -> RankMesh:
    """Arrange the ranks in a grid "data", "model" with `model` ranks per copy of the net.

    Rank = copy * model + part: the ranks of a copy are neighbours. Every rank must call.

    Raises:
        ValueError: on all ranks alike, when `model` does not divide the ranks or differs.
    """
    require_equal(comm, model=model)
    with agree_or_raise(comm):
        require_count(model, "model")
        require(comm.size % model == 0, "model", f"divide the {comm.size} ranks", model)
    return RankMesh(comm, {"data": comm.size // model, "model": model})


class HybridParallel:
    """Trains copies of a net that is itself cut; `pipeline` and `tensor` return one.

    Each copy gets its part of the batch; gradients are summed over the copies and divided by the
    global batch, so a step is that of the whole net with the global batch.
    """

    def __init__(self, grid: RankMesh, inner: PipelineParallel | TensorParallelModel) -> None:
        self.grid, self.inner = grid, inner

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Train on one global batch; every rank must call, with the whole batch."""
        copies, copy = self.grid.mesh["data"], self.grid.coordinates["data"]
        mine = part_of(len(images), copies, copy, "images")
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
    options["replicas"] = ranks.along("data")
    stages_comm = ranks.along("model")
    return HybridParallel(
        ranks, PipelineParallel(model, stages_comm, optimizer, microbatches, **options)
    )


def tensor(
    model: keras.Model, comm: Comm, parts: int, rate: float, momentum: float = 0.0
) -> HybridParallel:
    """Return a grid of data x tensor; every rank must call, as for `pipeline`."""
    ranks = grid(comm, parts)
    copies, parts_comm = ranks.along("data"), ranks.along("model")
    inner = TensorParallelModel(model, parts_comm, rate, momentum, copies)
    return HybridParallel(ranks, inner)
