"""Where a step of DistributedDataParallel spends its time: computing, exchange, and what is hidden.

Everything is measured in turns, so that all of it sees the same disturbances of the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.data.datasets import Dataset
from dlguide.errors import require, require_count
from dlguide.measure import Timing, timing
from dlguide.parallel import pytorch_net, pytorch_weights
from dlguide.parallel.pytorch_joining import joined_by_mpi
from dlguide.parallel.pytorch_ways import Distributed

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


@dataclass(frozen=True)
class Parts:
    """The parts of a step on the ranks at hand, each from a barrier to the slowest rank.

    exposed = together - compute
    """

    batch: int
    nbytes: int
    compute: Timing
    gloo: Timing
    own: Timing
    together: dict[int | None, Timing]

    def exposed_s(self, cap_nbytes: int | None) -> float:
        """Tell by how much the exchange makes a step longer, median of the turns."""
        # the times of one turn were measured after each other, so they share disturbances
        differences = np.subtract(self.together[cap_nbytes].seconds, self.compute.seconds)
        return float(np.median(differences))


def measure(
    weights: Sequence[np.ndarray],
    data: Dataset,
    comm: Comm,
    batch: int = 50,
    caps: Sequence[int | None] = (None,),
    repeats: int = 15,
    warmup: int = 3,
    threads: int | None = None,
    layout: str = "channels_first",
) -> Parts:
    """Measure the parts of a step; collective.

    Args:
        weights: as `pytorch_net.build` takes them.
        data: each rank takes images of its own from it.
        comm: the ranks; all must call with the same arguments.
        batch: images per rank (count).
        caps: sizes of the buckets to compare; None for PyTorch's own (bytes).
        repeats: turns that count (count).
        warmup: turns before them; at least 2, since buckets are laid out anew after the first
            step (count).
        threads: as in `pytorch_net.set_threads` (count).
        layout: as in `pytorch_net.build`.

    Returns:
        Parts: equal on all ranks.

    Raises:
        ValueError: on all ranks alike, when an argument is not what it must be.
        MissingComponentError: when PyTorch is not installed.
    """
    require_equal(comm, batch=batch, caps=list(caps), repeats=repeats, warmup=warmup, layout=layout)
    with agree_or_raise(comm):
        require_count(batch, "batch")
        require_count(repeats, "repeats")
        require_count(warmup, "warmup", least=2)
        require(bool(caps), "caps", "hold at least one size, or None", list(caps))
        enough = len(data.train_labels) >= batch * comm.size
        must = f"hold {batch} training images for each rank"
        require(enough, "data", must, len(data.train_labels))
        pytorch_weights.require_shapes(weights)
    pytorch_net.require_pytorch()
    import torch
    import torch.distributed as dist

    pytorch_net.set_threads(threads)
    mine = slice(comm.rank * batch, (comm.rank + 1) * batch)
    sample = data.train_images[mine], data.train_labels[mine], 1 / (batch * comm.size)
    flat = np.zeros(sum(each.size for each in weights), weights[0].dtype)
    shared = torch.from_numpy(flat)
    with joined_by_mpi(comm):
        workers = {
            cap: Distributed(pytorch_net.build(weights, layout), 0.01, 0.0, comm.size, cap)
            for cap in caps
        }
        first = next(iter(workers.values()))
        calls = {"compute": lambda: first.unsynchronised(*sample)}
        calls["gloo"] = lambda: dist.all_reduce(shared)
        calls["own"] = lambda: allreduce(flat, comm, check=False)
        for cap, worker in workers.items():
            calls[cap] = lambda worker=worker: worker.synchronised(*sample)
        seconds: dict[object, list[float]] = {name: [] for name in calls}
        order = list(calls)
        for _ in range(warmup + repeats):
            for name in order:
                seconds[name] += timing(calls[name], 1, 0, comm).seconds
            order.append(order.pop(0))  # nobody is always the first after the barrier's pause
    times = {
        name: Timing(tuple(each[warmup:]), tuple(each[:warmup])) for name, each in seconds.items()
    }
    return Parts(
        batch, flat.nbytes, times["compute"], times["gloo"], times["own"],
        {cap: times[cap] for cap in caps},
    )  # fmt: skip
