"""What a message of a GPU costs on its way through the host: extra copies, switched on.

A network card reads the memory of its host. What lies on a GPU must come there first:

    pageable   GPU -> memory that is pinned -> the buffer of the message -> network
    pinned     GPU -> the buffer of the message, which is pinned -> network
    direct     GPU -> network (GPUDirect RDMA), or GPU -> GPU (NVLink, peer to peer)

and the same backwards where the message arrives. Here there is no GPU: each such step is a real
copy in memory, at the memory's speed in the place of the bus'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require_count, require_known, require_positive

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# copies on each side of a message
WAYS = {"direct": 0, "pinned": 1, "pageable": 2}


class Staged:
    """A communicator whose messages are copied on their way out and in, and counted.

    Takes the place of a communicator in `collectives` and `server`: Send, Recv and Sendrecv go
    through the copies; all else goes to the communicator as it is, uncounted.

    Args:
        comm: the ranks.
        way: a key of `WAYS`.
    """

    def __init__(self, comm: Comm, way: str = "direct") -> None:
        self.comm, self.way = comm, require_known(way, WAYS, "way")
        self.sent, self.received, self.copied = 0, 0, 0
        self._space: dict[tuple[int, int], np.ndarray] = {}

    def __getattr__(self, name: str) -> Any:
        if name in ("Isend", "Irecv"):  # their copy would have to wait for the message
            raise AttributeError(f"A staged communicator has no {name}: use Send, Recv, Sendrecv.")
        return getattr(self.comm, name)

    def Send(self, buffer: Any, dest: int, tag: int = 0) -> None:
        """Copy out and send.

        Args:
            buffer: array, or mpi4py's specification of one with bytes.
            dest: rank that gets it.
            tag: of the message.
        """
        self.comm.Send(self._out(_bytes(buffer)), dest, tag)

    def Recv(self, buffer: Any, source: int = -1, tag: int = -1, status: Any = None) -> None:
        """Receive and copy in.

        Args:
            buffer: where to, contiguous.
            source: rank it comes from.
            tag: of the message.
            status: as mpi4py's.
        """
        into = _bytes(buffer)
        landing = self._landing(into)
        self.comm.Recv(landing, source, tag, status)
        self._in(into, landing)

    def Sendrecv(
        self, send: Any, dest: int, sendtag: int, receive: Any, source: int, recvtag: int
    ) -> None:
        """Copy out, send and receive at the same time, copy in.

        Args:
            send: what goes out.
            dest: rank that gets it.
            sendtag: its tag.
            receive: where to put what comes in.
            source: rank it comes from.
            recvtag: its tag.
        """
        into = _bytes(receive)
        landing = self._landing(into)
        self.comm.Sendrecv(self._out(_bytes(send)), dest, sendtag, landing, source, recvtag)
        self._in(into, landing)

    def _out(self, data: np.ndarray) -> np.ndarray:
        self.sent += data.nbytes
        for number in range(WAYS[self.way]):
            space = self._spare(number, data.nbytes)
            np.copyto(space, data)
            self.copied += data.nbytes
            data = space
        return data

    def _landing(self, into: np.ndarray) -> np.ndarray:
        return self._spare(2, into.nbytes) if WAYS[self.way] else into

    def _in(self, into: np.ndarray, landing: np.ndarray) -> None:
        self.received += into.nbytes
        for number in range(WAYS[self.way]):
            last = number == WAYS[self.way] - 1
            space = into if last else self._spare(3, into.nbytes)
            np.copyto(space, landing)
            self.copied += into.nbytes
            landing = space

    def _spare(self, number: int, nbytes: int) -> np.ndarray:
        # kept from message to message, as pinned memory is: to pin it anew costs more than a copy
        if (number, nbytes) not in self._space:
            self._space[number, nbytes] = np.empty(nbytes, np.uint8)
        return self._space[number, nbytes]


def ring_seconds(
    nbytes: float,
    ranks: int,
    direct_s: float,
    bus_bytes_per_s: float,
    way: str,
    memory_bytes_per_s: float | None = None,
) -> float:
    """Predict a ring allreduce whose messages are copied on both sides.

    A rank sends and receives 2 (p - 1)/p n bytes each. Nothing of the copying happens at the same
    time as a message. "pinned" has the copy over the bus, "pageable" another one in memory:

        pinned     t = direct_s + 2 * 2 (p - 1)/p n / bus
        pageable   t = direct_s + 2 * 2 (p - 1)/p n (1 / bus + 1 / memory)
    """
    copies = WAYS[require_known(way, WAYS, "way")]
    require_count(ranks, "ranks")
    bus = require_positive(bus_bytes_per_s, "bus_bytes_per_s")
    memory = bus if memory_bytes_per_s is None else memory_bytes_per_s
    require_positive(memory, "memory_bytes_per_s")
    moved = 2 * 2 * (ranks - 1) / ranks * nbytes
    return direct_s + moved * sum([1 / bus, 1 / memory][:copies])


def _bytes(buffer: Any) -> np.ndarray:
    array = buffer[0] if isinstance(buffer, list | tuple) else buffer
    return np.asarray(array).reshape(-1).view(np.uint8)
