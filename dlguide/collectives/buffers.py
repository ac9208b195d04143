"""What every collective needs: parts of an array, messages between neighbours, agreement."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require_known

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

OPERATIONS = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
# Messages of these collectives; a message of the user's own has another tag.
TAG = 7741


def operation(op: str) -> np.ufunc:
    """Find the function that joins two arrays."""
    return OPERATIONS[require_known(op, OPERATIONS, "op")]


def parts(array: np.ndarray, ranks: int) -> list[np.ndarray]:
    """Cut an array into one part per rank, whose sizes differ by at most one element.

    Parts are views. With fewer elements than ranks some parts are empty, which every algorithm
    here allows: forgetting them is the usual mistake in a ring written by hand.

    Args:
        array: contiguous, of any shape.
        ranks: number of parts (count).

    Returns:
        list: flat views, in order.

    >>> [part.size for part in parts(np.zeros(5), 3)]
    [1, 2, 2]
    """
    flat = flatten(array)
    bounds = [rank * flat.size // ranks for rank in range(ranks + 1)]
    return [flat[start:stop] for start, stop in pairwise(bounds)]


def flatten(array: np.ndarray) -> np.ndarray:
    """Give a flat view of a contiguous array."""
    return array.reshape(-1)


def message(array: np.ndarray) -> list[Any]:
    """Describe memory to MPI as bytes, so that every dtype can travel.

    MPI knows no float16 and no bfloat16; for moving data it need not.
    """
    from mpi4py import MPI

    return [array.view(np.uint8), array.nbytes, MPI.BYTE]


def exchange(comm: Comm, send: np.ndarray, to: int, receive: np.ndarray, source: int) -> None:
    """Send one array and receive another at the same time.

    Args:
        comm: the ranks.
        send: what goes out; flat.
        to: the rank that gets it.
        receive: where to put what comes in; flat.
        source: the rank it comes from.
    """
    comm.Sendrecv(message(send), to, TAG, message(receive), source, TAG)


def agree(comm: Comm, array: Any, **more: Any) -> None:
    """Check that all ranks call with the same shape, dtype and arguments; collective.

    A collective on unequal buffers is the worst of MPI's mistakes: it hangs, or gives a wrong
    sum and says nothing. Costs one allreduce of 16 bytes. Every rank must call it.

    Args:
        comm: the ranks.
        array: this rank's buffer.
        more: further arguments that must be equal, by name; numbers and texts.

    Raises:
        ValueError: on all ranks alike, with the ranks that differ.
    """
    from mpi4py import MPI

    mine = f"{_kind(array)}" + "".join(f", {name}={value!r}" for name, value in more.items())
    digest = hash_of(mine)
    extremes = np.array([digest, -digest])
    comm.Allreduce(MPI.IN_PLACE, extremes, MPI.MAX)
    usable = mine.startswith("shape")
    if extremes[0] == -extremes[1] and usable:
        return
    kinds: dict[str, list[int]] = {}
    for rank, kind in enumerate(comm.allgather(mine)):
        kinds.setdefault(kind, []).append(rank)
    said = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {kind}"
        for kind, ranks in kinds.items()
    )
    raise ValueError(
        "`array` must be a contiguous, writable NumPy array of numbers, alike on all ranks, and so "
        f"must the other arguments, got {said}."
    )


def hash_of(text: str) -> int:
    """Give a number that is equal for equal texts in all processes.

    Python's own `hash` of a text differs from process to process.
    """
    import zlib

    return zlib.crc32(text.encode())


def _kind(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__}"
    if array.dtype.hasobject:
        return f"an array of {array.dtype}"
    if not array.flags.c_contiguous:
        return f"a non-contiguous array of shape {array.shape}"
    if not array.flags.writeable:
        return f"a read-only array of shape {array.shape}"
    return f"shape {array.shape} of {array.dtype}"
