"""What allreduces are made of: reduce, broadcast, and parts that go around a ring.

Every rank of the communicator must call, with an array of the same size. In place, any dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives.buffers import TAG, exchange, flatten, message, operation, parts
from dlguide.errors import require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def reduce_tree(array: np.ndarray, comm: Comm, root: int = 0, op: str = "sum") -> np.ndarray:
    """Reduce to one rank along a binomial tree.

    In step k the ranks whose distance from the root is an odd multiple of 2**k send what they
    have and are done: ceil(log2 p) steps of n bytes. On other ranks than the root the array
    holds a partial result afterwards.

    Args:
        array: any shape, contiguous; on the root it holds the result afterwards.
        comm: the ranks.
        root: the rank that gets the result.
        op: "sum", "prod", "min" or "max".

    Returns:
        numpy.ndarray: `array`.
    """
    join, flat = operation(op), flatten(array)
    place, received, distance = (comm.rank - root) % comm.size, None, 1
    while distance < comm.size:
        if place & distance:
            comm.Send(message(flat), (comm.rank - distance) % comm.size, TAG)
            break
        if place + distance < comm.size:
            received = np.empty_like(flat) if received is None else received
            comm.Recv(message(received), (comm.rank + distance) % comm.size, TAG)
            join(flat, received, out=flat)
        distance *= 2
    return array


def broadcast_tree(array: np.ndarray, comm: Comm, root: int = 0) -> np.ndarray:
    """Broadcast along a binomial tree: who has the array sends it on, ceil(log2 p) steps.

    Args:
        array: any shape, contiguous; the root's on all ranks afterwards.
        comm: the ranks.
        root: the rank whose array is sent.

    Returns:
        numpy.ndarray: `array`.
    """
    flat, place = flatten(array), (comm.rank - root) % comm.size
    # the lowest bit set in a place is the step in which it receives
    first = place & -place if place else 1 << (comm.size - 1).bit_length()
    if place:
        comm.Recv(message(flat), (comm.rank - first) % comm.size, TAG)
    distance = first >> 1
    while distance:
        if place + distance < comm.size:
            comm.Send(message(flat), (comm.rank + distance) % comm.size, TAG)
        distance >>= 1
    return array


def broadcast_chain(
    array: np.ndarray, comm: Comm, root: int = 0, segment_bytes: int = 1 << 18
) -> np.ndarray:
    """Broadcast along a chain in segments: every rank passes a segment on while the next comes.

    With s segments it takes (p - 2 + s)(a + n/s b): for large arrays n b, however many ranks.

    Args:
        array: any shape, contiguous; the root's on all ranks afterwards.
        comm: the ranks.
        root: the rank whose array is sent.
        segment_bytes: size of a segment (bytes).

    Returns:
        numpy.ndarray: `array`.
    """
    from mpi4py import MPI

    place, sent = (comm.rank - root) % comm.size, []
    for segment in segments(flatten(array), segment_bytes):
        if place:
            comm.Recv(message(segment), (comm.rank - 1) % comm.size, TAG)
        if place + 1 < comm.size:
            sent.append(comm.Isend(message(segment), (comm.rank + 1) % comm.size, TAG))
    MPI.Request.Waitall(sent)
    return array


def broadcast_scatter_allgather(array: np.ndarray, comm: Comm, root: int = 0) -> np.ndarray:
    """Broadcast by giving each rank one part, then handing the parts around a ring.

    About 2 n b for large arrays, where the tree takes log2 p n b.

    Args:
        array: any shape, contiguous; the root's on all ranks afterwards.
        comm: the ranks.
        root: the rank whose array is sent.

    Returns:
        numpy.ndarray: `array`.

    Source:
        van de Geijn's algorithm, in Thakur et al. (2005), section 4.2.
    """
    mine = parts(array, comm.size)
    if comm.rank == root:
        for rank, part in enumerate(mine):
            if rank != root:
                comm.Send(message(part), rank, TAG)
    else:
        comm.Recv(message(mine[comm.rank]), root, TAG)
    return allgather_ring(array, comm)


def reduce_scatter_ring(
    array: np.ndarray, comm: Comm, op: str = "sum", segment_bytes: int | None = None
) -> np.ndarray:
    """Sum the arrays of all ranks and leave one part of the sum on each.

    In step s rank r sends part r - 1 - s to the right and adds part r - 2 - s from the left. After
    p - 1 steps part r on rank r has passed everyone. Each rank sends (p - 1)/p n bytes. The rest
    of the array holds partial results afterwards.

    Args:
        array: any shape, contiguous.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".
        segment_bytes: send parts in segments of so many bytes and add one while the next is
            under way; None sends whole parts (bytes).

    Returns:
        numpy.ndarray: this rank's part, a flat view of `array`; `buffers.parts` gives all.
    """
    join, ranks, rank = operation(op), comm.size, comm.rank
    cut = parts(array, ranks)
    received = np.empty(max(part.size for part in cut), array.dtype)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    for step in range(ranks - 1):
        out, come = cut[(rank - 1 - step) % ranks], cut[(rank - 2 - step) % ranks]
        space = received[: come.size]
        if segment_bytes is None:
            exchange(comm, out, right, space, left)
            join(come, space, out=come)
        else:
            _add_by_segments(comm, out, right, come, space, left, join, segment_bytes)
    return cut[rank]


def allgather_ring(array: np.ndarray, comm: Comm) -> np.ndarray:
    """Hand the parts around until every rank has all: p - 1 steps, (p - 1)/p n bytes sent.

    Args:
        array: any shape, contiguous; on entry its part number `rank` is this rank's own, as
            `reduce_scatter_ring` leaves it.
        comm: the ranks.

    Returns:
        numpy.ndarray: `array`, the same on all ranks.
    """
    ranks, rank = comm.size, comm.rank
    cut = parts(array, ranks)
    left, right = (rank - 1) % ranks, (rank + 1) % ranks
    for step in range(ranks - 1):
        exchange(comm, cut[(rank - step) % ranks], right, cut[(rank - step - 1) % ranks], left)
    return array


def alltoall(array: np.ndarray, comm: Comm) -> np.ndarray:
    """Send row j of every rank's array to rank j: the transpose of a table of ranks and rows.

    Model-parallel layers and experts need it. p - 1 exchanges, (p - 1)/p n bytes sent.

    Args:
        array: first dimension of p rows, contiguous; row i comes from rank i afterwards.
        comm: the ranks.

    Returns:
        numpy.ndarray: `array`.

    Raises:
        ValueError: when the array does not have one row for each rank.
    """
    rows = len(array) if array.ndim else 0
    if rows != comm.size:
        raise ValueError(f"`array` must have one row for each of {comm.size} ranks, got {rows}.")
    flat = array.reshape(comm.size, -1)
    given = flat.copy()
    for step in range(1, comm.size):
        to, source = (comm.rank + step) % comm.size, (comm.rank - step) % comm.size
        exchange(comm, given[to], to, flat[source], source)
    return array


def segments(flat: np.ndarray, segment_bytes: int) -> list[np.ndarray]:
    """Cut a flat array into segments of at most so many bytes, at least one element each."""
    length = max(1, require_count(segment_bytes, "segment_bytes") // flat.itemsize)
    return [flat[start : start + length] for start in range(0, flat.size, length)]


def _add_by_segments(
    comm: Comm,
    out: np.ndarray,
    right: int,
    come: np.ndarray,
    space: np.ndarray,
    left: int,
    join: np.ufunc,
    segment_bytes: int,
) -> None:
    from mpi4py import MPI

    spaces = segments(space, segment_bytes)
    coming = [comm.Irecv(message(each), left, TAG) for each in spaces]
    sent = [comm.Isend(message(each), right, TAG) for each in segments(out, segment_bytes)]
    for request, each, target in zip(coming, spaces, segments(come, segment_bytes), strict=True):
        request.Wait()
        join(target, each, out=target)
    MPI.Request.Waitall(sent)
