"""A parameter server by one-sided communication: the server's process does nothing at all.

The weights lie in a window, memory of one rank that the others may read and change by MPI itself.
A worker adds its update with `Accumulate` and reads with `Get_accumulate`. It is the asynchronous
server with fewer lines, and the programming model of PGAS languages: who writes needs no partner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def train(
    comm: Comm,
    weights: np.ndarray,
    step: Callable[[np.ndarray, int, int], np.ndarray],
    steps: int,
    server: int = 0,
) -> tuple[np.ndarray, int]:
    """Train asynchronously on weights in one rank's window; collective.

    Elements are added one by one, each of them exactly once. Reading is an accumulate too, of
    nothing (`NO_OP`): MPI makes those of one element atomic, while a plain `Get` beside another
    rank's `Accumulate` is undefined. The elements may be from before and after another worker's
    update: asynchronous SGD lives with that.

    Args:
        comm: the ranks; all but the server are workers.
        weights: the first weights, flat, the same on all ranks; not changed.
        step: a function of (weights, worker, step) that returns what to add to the weights, such
            as -rate * gradient, shaped as `weights`.
        steps: steps of each worker (count).
        server: the rank whose memory holds the weights.

    Returns:
        tuple: the final weights, the same on all ranks, and the number of updates (count).

    Raises:
        ValueError: when there is no worker or no such server, or ranks differ.
    """
    from mpi4py import MPI

    require(comm.size > 1, "comm", "have a rank beside the server", comm.size, "Start more ranks.")
    require(server in range(comm.size), "server", f"be a rank, 0 to {comm.size - 1}", server)
    require_count(steps, "steps")
    require_equal_buffers(comm, weights, steps=steps, server=server)
    here = comm.rank == server
    # the number of updates, and behind it the weights: each is aligned
    counter, behind = np.int64, 8
    window = MPI.Win.Allocate((behind + weights.nbytes) * here, 1, comm=comm)
    if here:
        window.Lock(server, MPI.LOCK_EXCLUSIVE)
        memory = np.frombuffer(window.tomemory(), np.uint8)
        memory[:behind] = 0
        memory[behind:] = weights.view(np.uint8)
        window.Unlock(server)
    comm.Barrier()
    current, one = weights.copy(), np.ones(1, counter)
    if not here:
        for number in range(steps):
            change = np.ascontiguousarray(step(current, comm.rank, number), weights.dtype)
            window.Lock(server, MPI.LOCK_SHARED)
            window.Accumulate(change, server, (behind, weights.size), MPI.SUM)
            window.Accumulate(one, server, (0, 1), MPI.SUM)
            window.Flush(server)
            window.Get_accumulate(change, current, server, (behind, weights.size), MPI.NO_OP)
            window.Unlock(server)
    comm.Barrier()
    updates = np.zeros(1, counter)
    if here:
        window.Lock(server, MPI.LOCK_EXCLUSIVE)
        updates.view(np.uint8)[:] = memory[:behind]
        current.view(np.uint8)[:] = memory[behind:]
        window.Unlock(server)
    comm.Bcast(current, server)
    comm.Bcast(updates, server)
    window.Free()
    return current, int(updates[0])
