"""Adding up arrays of all ranks with fewer bytes: as they are, in 16 bits, or by a codec."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import collectives
from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require, require_count, require_known
from dlguide.parallel.codecs import Codec

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# Biases: compressing them saves nothing that could be measured, and costs accuracy.
SMALL = 256
DTYPES = ("float32", "float64")


class Compressor:
    """A way to add up arrays of all ranks that sends fewer bytes than the arrays have.

    Arrays with fewer numbers than `small`, and those that would not become smaller, are sent as
    they are. Make one for each training on each rank: it remembers that training's errors.
    """

    # Whether messages are summed on their way or each rank gets those of all others.
    gathers, keeps_errors = False, False

    def __init__(self, name: str, small: int = SMALL) -> None:
        self.name = name
        self.small = require_count(small, "small", least=0)
        self.errors: dict[Hashable, np.ndarray] = {}
        self._sent = 0
        self._kept: Any = None

    def __repr__(self) -> str:
        return self.name

    @property
    def sent(self) -> int:
        """Bytes that this rank has handed to others so far."""
        return self._sent + (0 if self._kept is None else self._kept.sent)

    @property
    def variables(self) -> list[Any]:
        """What is remembered under Horovod, as TensorFlow's variables: a checkpoint may hold it."""
        return [] if self._kept is None else self._kept.variables

    def compresses(self, shape: Sequence[int], dtype: Any = "float32") -> bool:
        """Say whether an array is sent compressed."""
        size, name = math.prod(shape), np.dtype(dtype).name
        if name not in DTYPES or size < max(1, self.small):
            return False
        itemsize = np.dtype(dtype).itemsize
        return self.payload(tuple(shape), itemsize) < size * itemsize

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the bytes of an array that is sent compressed."""
        return math.prod(shape) * itemsize

    def nbytes(self, shape: Sequence[int], ranks: int, dtype: Any = "float32") -> int:
        """Predict what one rank hands to the collectives in one exchange of one array."""
        if require_count(ranks, "ranks") == 1:
            return 0
        itemsize = np.dtype(dtype).itemsize
        if self.compresses(shape, dtype):
            return self.payload(tuple(shape), itemsize)
        return math.prod(shape) * itemsize

    def step_nbytes(self, arrays: Iterable[Any], ranks: int) -> int:
        """Predict what one rank hands over in one step."""
        return sum(self.nbytes(a.shape, ranks, np.dtype(str(a.dtype))) for a in arrays)

    def traffic(self, shape: Sequence[int], ranks: int, dtype: Any = "float32") -> float:
        """Predict what leaves one rank on its link when the collectives are rings.

            summed on the way: 2 (p - 1)/p n,    gathered: (p - 1) n,    n as `nbytes` says

        What is gathered grows with the ranks: a message must be more than p / 2 times smaller
        than the array to win.
        """
        n = self.nbytes(shape, ranks, dtype)
        gathered = self.gathers and self.compresses(shape, dtype)
        return float((ranks - 1) * n) if gathered else 2 * (ranks - 1) / ranks * n

    def allreduce(
        self, array: np.ndarray, comm: Comm, key: Hashable = "gradient", check: bool = True
    ) -> np.ndarray:
        """Give all ranks the mean of their arrays, as far as it came through the compression.

        Every rank must call, for the same keys in the same order. All get the same, bit by bit.
        One rank compresses too, but sends nothing.
        """
        if check:
            require_equal_buffers(
                comm, array, compression=self.name, small=self.small, key=str(key)
            )
        require_known(array.dtype.name, DTYPES, "array.dtype")
        if not self.compresses(array.shape, array.dtype):
            return _over(self._summed(array.copy(), comm), comm.size)
        error = self.errors.get(key)
        if error is not None:
            same = error.shape == array.shape and error.dtype == array.dtype
            then = "Take another `key` for another array."
            got = f"{array.shape} of {array.dtype}"
            require(same, "array", f"stay {error.shape} of {error.dtype}", got, then)
            array = np.asarray(array + error)
        total, own = self._exchange(array, comm, key)
        if self.keeps_errors:
            # What is not finite is sent, and must not stay here for ever.
            left = np.asarray(array - own)
            self.errors[key] = np.where(np.isfinite(left), left, 0)
        return _over(total, comm.size)

    def reduce_gradients(
        self, grads: list[Any], variables: list[Any], name: str, op: int, process_set: Any
    ) -> list[Any]:
        """Combine gradients by Horovod; `DistributedOptimizer` and `DistributedGradientTape`
        call.
        """
        from dlguide.parallel import horovod_gradients as horovod

        if self._kept is None:
            self._kept = horovod.Kept()
        return horovod.reduce_gradients(self, self._kept, grads, variables, name, op, process_set)

    def _summed(self, array: np.ndarray, comm: Comm) -> np.ndarray:
        """Add up over ranks, in place, and count."""
        self._sent += array.nbytes if comm.size > 1 else 0
        return collectives.allreduce(array, comm, check=False)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give the sum over ranks, and what came through of this rank's own array."""
        return self._summed(array.copy(), comm), array


class Float16(Compressor):
    """Cast to 16 bits and add up in 16 bits, as `hvd.Compression.fp16` does: 2 n bytes.

    What is above 65504 becomes infinite and what is below 6e-8 becomes 0; nothing is remembered.
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the bytes of an array that is sent compressed."""
        return 2 * math.prod(shape)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        with np.errstate(over="ignore"):  # infinite is what comes of it, and is to be seen
            return self._summed(array.astype(np.float16), comm).astype(array.dtype), array


class Gathered(Compressor):
    """Send each rank's message to all others; every rank reads all and adds up in rank order."""

    gathers = True

    def __init__(self, name: str, codec: Codec, small: int = SMALL, remember: bool = True) -> None:
        super().__init__(name, small)
        self.codec, self.keeps_errors = codec, remember

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the bytes of an array that is sent compressed."""
        return self.codec.payload(shape, itemsize)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        message = self.codec.encode(array)
        messages = np.empty((comm.size, message.size), np.uint8)
        comm.Allgather(message, messages)
        self._sent += message.nbytes if comm.size > 1 else 0
        total = np.zeros_like(array)
        for other in messages:
            total += self.codec.decode(other, array.shape, array.dtype)
        return total, self.codec.decode(message, array.shape, array.dtype)


def _over(total: np.ndarray, ranks: int) -> np.ndarray:
    return np.asarray(total / total.dtype.type(ranks))
