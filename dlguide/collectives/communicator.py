"""What a program on several ranks needs of the others, and the same for one process.

Those that train on several ranks are `dlguide.distributed.world.MpiCommunicator` and
`dlguide.horovod.communicator.HorovodCommunicator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dlguide.collectives.agreement import agree_or_raise
from dlguide.errors import require

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm


class Communicator(Protocol):
    """The ranks of a program: index, count, and a few collectives that all of them call."""

    rank: int
    size: int
    exchange: str = "none"  # "mpi" or "horovod" where there are other ranks

    @property
    def members(self) -> Sequence[int]:
        """The ranks' numbers in error texts, where they are some of others."""
        return range(self.size)

    def broadcast(self, variables: Sequence[keras.Variable]) -> None:
        """Set variables on every rank to the values of rank 0."""

    def allreduce_mean(self, variables: Sequence[keras.Variable]) -> None:
        """Set variables on every rank to their mean over all ranks."""

    def allreduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sum values over ranks in double precision: exact for counts below 2**53."""

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of every rank, in rank order; lengths may differ."""

    def allgather(self, text: str) -> list[str]:
        """Return the text of every rank, in rank order."""
        return [each.decode() for each in self.allgather_bytes(text.encode())]

    def close(self) -> None:
        """Stop what was started for this communicator; there may be nothing."""

    agree_or_raise = agree_or_raise


class SingleProcess(Communicator):
    """One process by itself: every collective returns what it was given."""

    rank, size = 0, 1

    def broadcast(self, variables: Sequence[keras.Variable]) -> None:
        pass

    def allreduce_mean(self, variables: Sequence[keras.Variable]) -> None:
        pass

    def allreduce_sum(self, values: Sequence[float]) -> list[float]:
        return [float(value) for value in values]

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def distribute(self, optimizer: keras.Optimizer, compression: Any = None) -> keras.Optimizer:
        """Return the optimizer itself, since there are no gradients of others to sum."""
        return optimizer


class MpiMessages:
    """What compressors of `dlguide.parallel.compression` ask of the ranks of an MPI communicator.

    Horovod's is `dlguide.horovod.guard.RanksOfSet`.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.members = range(comm.size)

    def add(self, flat: np.ndarray) -> np.ndarray:
        """Return the sum of the ranks' flat arrays; may write to the argument."""
        from dlguide import collectives

        return collectives.allreduce(flat, self.comm, check=False)

    def gather(self, message: np.ndarray) -> np.ndarray:
        """Return the bytes of all ranks, shape (ranks, bytes); all send equally many."""
        everyone = np.empty((self.size, message.size), np.uint8)
        self.comm.Allgather(message, everyone)
        return everyone


SENDS = ("Send", "Ssend", "Bsend", "Rsend", "Isend", "Issend", "Ibsend", "Irsend", "Sendrecv")


def counting_comm(comm: Comm) -> Any:
    """Return a communicator of the same ranks that counts what this rank sends to another.

    `messages` of the result has the bytes of each message of an array from rank to rank, which is
    what the collectives of this subpackage are made of; those of MPI's own and pickled objects are
    not counted. The communicators that `Split` and `Dup` make of it share the list.

    Returns:
        mpi4py.MPI.Intracomm: with the list `messages` and their sum, `sent_bytes`.
    """
    from mpi4py import MPI

    class CountingComm(MPI.Intracomm):
        messages: list[int]

        @property
        def sent_bytes(self) -> int:
            return sum(self.messages)

        def Split(self, *arguments: Any, **named: Any) -> Any:
            return self._sharing(super().Split(*arguments, **named))

        def Dup(self, *arguments: Any, **named: Any) -> Any:
            return self._sharing(super().Dup(*arguments, **named))

        def _sharing(self, made: Any) -> Any:
            counting = CountingComm(made)
            counting.messages = self.messages
            return counting

    def counted(plain: Any) -> Any:
        def send(self: CountingComm, *arguments: Any, **named: Any) -> Any:
            buffer = named.get("sendbuf", named.get("buf")) if not arguments else arguments[0]
            to = arguments[1] if len(arguments) > 1 else named.get("dest")
            if to != MPI.PROC_NULL:
                self.messages.append(_message_bytes(buffer))
            return plain(self, *arguments, **named)

        return send

    for name in SENDS:
        setattr(CountingComm, name, counted(getattr(MPI.Intracomm, name)))
    counting = CountingComm(comm)
    counting.messages = []
    return counting


def _message_bytes(message: Any) -> int:
    """Return the bytes of an array, or of mpi4py's [array, count, datatype] with parts left out."""
    from mpi4py import MPI

    if not isinstance(message, list | tuple):
        return 0 if message is None else memoryview(message).nbytes
    array, *counts = message
    kind = counts.pop() if isinstance(counts[-1], MPI.Datatype | str) else None
    kind = MPI.Datatype.fromcode(kind) if isinstance(kind, str) else kind
    count = counts[0] if counts else None
    count = count[0] if isinstance(count, list | tuple) else count  # with a displacement
    size = kind.Get_size() if kind else memoryview(array).itemsize
    if count is None:
        count = memoryview(array).nbytes // (kind.extent if kind else size)
    return count * size


def require_threads() -> None:
    """Check that several threads may call MPI at a time."""
    from mpi4py import MPI

    levels = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    name = {getattr(MPI, f"THREAD_{level}"): f"MPI_THREAD_{level}" for level in levels}
    level = name[MPI.Query_thread()]
    must = "be MPI_THREAD_MULTIPLE for a thread that exchanges"
    then = "Start MPI with it: `mpi4py.rc.thread_level = 'multiple'` before importing mpi4py.MPI."
    require(level == "MPI_THREAD_MULTIPLE", "MPI.Query_thread()", must, level, then)
