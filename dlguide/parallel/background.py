"""A thread that exchanges gradients while the main thread computes."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.autotune import table_of
from dlguide.errors import require
from dlguide.parallel.overlap_schedule import EXCHANGE, Interval

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_STOP = -1


def require_threads() -> None:
    """Check that several threads may be inside MPI at a time."""
    from mpi4py import MPI

    level = MPI.Query_thread()
    names = {
        MPI.THREAD_SINGLE: "MPI_THREAD_SINGLE",
        MPI.THREAD_FUNNELED: "MPI_THREAD_FUNNELED",
        MPI.THREAD_SERIALIZED: "MPI_THREAD_SERIALIZED",
        MPI.THREAD_MULTIPLE: "MPI_THREAD_MULTIPLE",
    }
    then = "Start MPI with it: `mpi4py.rc.thread_level = 'multiple'` before importing mpi4py.MPI."
    enough = level == MPI.THREAD_MULTIPLE
    must = "be MPI_THREAD_MULTIPLE for a thread that exchanges"
    require(enough, "MPI.Query_thread()", must, names[level], then)


class Background:
    """Sums pieces over all ranks, one after the other, in a thread of its own.

    A collective must be called in the same order on all ranks, or sums are mixed up or hang. In
    the fixed order there is nothing to agree on. In the order of urgency ranks could decide
    differently, because a piece is ready here and not yet there; so rank 0 decides: it takes the
    most urgent piece that it has ready and broadcasts its number, and the others wait until
    they have that piece. They will have it, since computing never waits for a later piece.

    The thread speaks over its own copy of the communicator, so that its messages are never
    mixed up with others. While it has nothing to do it sleeps.
    """

    def __init__(
        self,
        comm: Comm,
        pieces: Sequence[np.ndarray],
        layers: Sequence[int],
        urgent: bool,
        now: Callable[[], float] = perf_counter,
    ) -> None:
        self.comm, self.pieces, self.layers, self.urgent = comm.Dup(), pieces, layers, urgent
        self.now = now
        self.table = table_of(self.comm)
        self.intervals: list[Interval] = []
        self.error: BaseException | None = None
        self._waiting: list[tuple[int, int, int]] = []
        self._count, self._closing = 0, False
        self._open = dict.fromkeys(layers, 0)
        self._changed = threading.Condition()
        # a rank that fails ends without waiting for messages that never come
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def hand_in(self, piece: int) -> None:
        """Let a piece be summed as soon as it is its turn; returns at once."""
        with self._changed:
            layer = self.layers[piece]
            self._open[layer] += 1
            rank = layer if self.urgent else 0
            heapq.heappush(self._waiting, (rank, self._count, piece))
            self._count += 1
            self._changed.notify_all()

    def wait_for(self, layer: int) -> None:
        """Wait until no piece of a layer is on its way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open[layer] or self.error is not None)
        if self.error is not None:
            raise RuntimeError(f"The exchange of gradients failed: {self.error}") from self.error

    def close(self, wait: bool = True) -> None:
        """End the thread when all pieces have been summed; every rank must call."""
        with self._changed:
            again, self._closing = self._closing, True
            self._changed.notify_all()
        if wait and not again:
            self._thread.join()
            if self.error is None:
                self.comm.Free()

    def _run(self) -> None:
        try:
            while (piece := self._next()) != _STOP:
                start = self.now()
                allreduce(self.pieces[piece], self.comm, table=self.table, check=False)
                done = Interval(EXCHANGE, self.layers[piece], start, self.now())
                with self._changed:
                    self.intervals.append(done)
                    self._open[self.layers[piece]] -= 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                self.error = error
                self._changed.notify_all()

    def _next(self) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            chooses = not self.urgent or self.comm.rank == 0
            piece = heapq.heappop(self._waiting)[2] if self._waiting and chooses else _STOP
        if not self.urgent:
            return piece
        number = np.array([piece])
        self.comm.Bcast(number)
        chosen = int(number[0])
        if self.comm.rank and chosen != _STOP:
            with self._changed:
                self._changed.wait_for(lambda: self._place(chosen) is not None)
                del self._waiting[self._place(chosen) or 0]
                heapq.heapify(self._waiting)
        return chosen

    def _place(self, piece: int) -> int | None:
        found = [place for place, each in enumerate(self._waiting) if each[2] == piece]
        return found[0] if found else None
