"""Ranks in two levels: those of one node, and one leader of each node."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from dlguide.errors import require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def levels(comm: Comm, ranks_per_node: int | None = None) -> tuple[Comm, Comm]:
    """Split a communicator into nodes and leaders; collective at the first call.

    Making communicators costs far more than a sum, so they are kept with `comm` and freed
    with it.
    """
    if ranks_per_node is not None:
        require_count(ranks_per_node, "ranks_per_node")
    kept = comm.Get_attr(_key())
    if kept is None:
        kept = {}
        comm.Set_attr(_key(), kept)
    if ranks_per_node not in kept:
        kept[ranks_per_node] = _split(comm, ranks_per_node)
    return kept[ranks_per_node]


def _split(comm: Comm, ranks_per_node: int | None) -> tuple[Comm, Comm]:
    from mpi4py import MPI

    if ranks_per_node is None:
        node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    else:
        node = comm.Split(comm.rank // ranks_per_node, comm.rank)
    return node, comm.Split(node.rank, comm.rank)


@cache
def _key() -> int:
    from mpi4py import MPI

    def free(comm: Comm, key: int, kept: dict) -> None:
        for node, leaders in kept.values():
            node.Free()
            leaders.Free()

    return MPI.Comm.Create_keyval(delete_fn=free)
