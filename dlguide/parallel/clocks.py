"""One clock for all ranks, so that what they measured can be drawn together."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def clock_offset(comm: Comm, exchanges: int = 20) -> float:
    """Find how far this process' clock is behind that of rank 0; every rank must call.

    Rank 0 answers with its time; it is taken to be that of the middle of the exchange, and the
    shortest exchange tells best. On one node all clocks are the same, and so a few microseconds
    remain.

    Source:
        Cristian, Distributed Computing 3 (1989), 146-158.
    """
    best = (float("inf"), 0.0)
    for rank in range(1, comm.size):
        for _ in range(exchanges):
            if comm.rank == 0:
                comm.recv(source=rank)
                comm.send(perf_counter(), rank)
            elif comm.rank == rank:
                asked = perf_counter()
                comm.send(None, 0)
                there = comm.recv(source=0)
                back = perf_counter()
                best = min(best, (back - asked, there - (asked + back) / 2))
    return 0.0 if comm.rank == 0 else best[1]
