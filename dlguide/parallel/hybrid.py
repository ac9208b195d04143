"""Two schemes at once: ranks in a grid, data parallel one way, model parallel the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.errors import require, require_count
from dlguide.parallel.pipeline import Pipeline
from dlguide.parallel.split_net import SplitNet
from dlguide.parallel.tensor import share

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


@dataclass(frozen=True)
class Grid:
    """A grid of ranks: rank = copy * model + part.

    Args:
        data: number of copies of the net (count).
        model: number of ranks that share one copy (count).
        copy: which copy this rank works on.
        part: which part of it this rank holds.
        data_comm: ranks with the same part of all copies; gradients are added over it.
        model_comm: ranks of this copy; neighbours in the numbering, so near each other.
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


def grid(comm: Comm, model: int) -> Grid:
    """Lay the ranks out in a grid; every rank must call."""
    require_equal(comm, model=model)
    with agree_or_raise(comm):
        require_count(model, "model")
        require(comm.size % model == 0, "model", f"divide the {comm.size} ranks", model)
    copy, part = divmod(comm.rank, model)
    return Grid(comm.size // model, model, copy, part, comm.Split(part, copy),
                comm.Split(copy, part))  # fmt: skip


class Hybrid:
    """Trains copies of a net that is cut itself: `pipeline` or `tensor` makes one.

    Each copy gets its part of the batch; gradients are summed over the copies and divided by the
    global batch, so a step is that of the whole net with the global batch.
    """

    def __init__(self, grid: Grid, inner: Pipeline | SplitNet) -> None:
        self.grid, self.inner = grid, inner

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Train on one global batch; every rank must call, with the whole batch."""
        mine = share(len(images), self.grid.data, self.grid.copy, "images")
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
    **more: Any,
) -> Hybrid:
    """Make a grid of data x pipeline; every rank must call.

    Args:
        model: the net, equal on all ranks.
        comm: all ranks.
        stages: stages of each copy (count); it divides the ranks.
        optimizer: makes a Keras optimizer.
        microbatches: parts of each copy's batch (count).
        more: further arguments of `Pipeline`.

    Returns:
        Hybrid: to train with.

    Raises:
        ValueError: on all ranks alike, as `grid` and `Pipeline` do.
    """
    made = grid(comm, stages)
    copy = Pipeline(
        model, made.model_comm, optimizer, microbatches, **more, replicas=made.data_comm
    )
    return Hybrid(made, copy)


def tensor(
    model: keras.Model, comm: Comm, parts: int, rate: float, momentum: float = 0.0
) -> Hybrid:
    """Make a grid of data x tensor; every rank must call."""
    made = grid(comm, parts)
    return Hybrid(made, SplitNet(model, made.model_comm, rate, momentum, made.data_comm))
