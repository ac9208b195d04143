"""Allreduce in six ways, on nothing but messages between two ranks.

All work in place on a contiguous array of any dtype and size, for any number of ranks p, and
leave bit by bit the same result on every rank. Every rank of the communicator must call, with an
array of the same size; `dlguide.collectives.allreduce` checks that and chooses among them.

With n bytes, a latency a for each message and b seconds for each byte (additions left out):

    tree                  2 ceil(log2 p) (a + n b)
    recursive doubling      ceil(log2 p) (a + n b)
    ring                  2 (p - 1) a + 2 (p - 1)/p n b
    halving and doubling  2 log2 p a  + 2 (p - 1)/p n b
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives.buffers import TAG, exchange, flatten, message, operation
from dlguide.collectives.groups import levels
from dlguide.collectives.pieces import (
    allgather_ring,
    broadcast_tree,
    reduce_scatter_ring,
    reduce_tree,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def allreduce_tree(array: np.ndarray, comm: Comm, op: str = "sum") -> np.ndarray:
    """Reduce along a binomial tree to rank 0, then broadcast along the same tree (Caffe).

    The root receives and sends ceil(log2 p) whole arrays, one after the other.

    Args:
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".

    Returns:
        numpy.ndarray: `array`.

    Source:
        Jia et al., Caffe, ACM Multimedia (2014): its reduction among GPUs.
    """
    reduce_tree(array, comm, 0, op)
    return broadcast_tree(array, comm, 0)


def allreduce_ring(array: np.ndarray, comm: Comm, op: str = "sum") -> np.ndarray:
    """Pass parts around a ring: p - 1 steps to sum them, p - 1 to hand the sums around.

    Each rank sends 2 (p - 1)/p n bytes whatever p is, the least possible; but 2 (p - 1) messages
    wait for each other, so it is slow for small arrays.

    Args:
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".

    Returns:
        numpy.ndarray: `array`.

    Source:
        Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), 117-124; Baidu Research (2017).
    """
    reduce_scatter_ring(array, comm, op)
    return allgather_ring(array, comm)


def allreduce_ring_segmented(
    array: np.ndarray, comm: Comm, op: str = "sum", segment_bytes: int = 1 << 18
) -> np.ndarray:
    """Pass parts around a ring in segments, adding one while the next is under way.

    Sends the same bytes as the ring, in more messages; what it wins is that adding and sending
    overlap, and that a segment is still in the cache when it is added.

    Args:
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".
        segment_bytes: size of a segment (bytes).

    Returns:
        numpy.ndarray: `array`.
    """
    reduce_scatter_ring(array, comm, op, segment_bytes)
    return allgather_ring(array, comm)


def allreduce_recursive_doubling(array: np.ndarray, comm: Comm, op: str = "sum") -> np.ndarray:
    """Exchange whole arrays with the partner at distance 1, 2, 4, ... and add.

    ceil(log2 p) messages of n bytes: the fewest messages, so the best for small arrays. Ranks
    above the largest power of two hand their array to a neighbour first and get the result last.

    Args:
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".

    Returns:
        numpy.ndarray: `array`.

    Source:
        Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), 49-66.
    """
    join, flat = operation(op), flatten(array)
    received = np.empty_like(flat)
    folded = _fold(flat, comm, join)
    if folded is not None:
        place, size = folded
        distance = 1
        while distance < size:
            partner = _unfolded(place ^ distance, comm.size)
            exchange(comm, flat, partner, received, partner)
            join(flat, received, out=flat)
            distance *= 2
    _unfold(flat, comm)
    return array


def allreduce_halving_doubling(array: np.ndarray, comm: Comm, op: str = "sum") -> np.ndarray:
    """Halve the array while doubling the distance is halved, then the way back (Rabenseifner).

    A reduce-scatter by recursive halving, then an allgather by recursive doubling: the bytes of
    the ring in the messages of a tree. Ranks above the largest power of two as in
    `allreduce_recursive_doubling`.

    Args:
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".

    Returns:
        numpy.ndarray: `array`.

    Source:
        Rabenseifner, ICCS (2004), 1-9; Thakur et al. (2005), section 4.5.
    """
    join, flat = operation(op), flatten(array)
    folded = _fold(flat, comm, join)
    if folded is not None:
        place, size = folded
        received = np.empty((flat.size + 1) // 2, flat.dtype)
        low, high, distance, ways = 0, flat.size, size // 2, []
        while distance:
            partner, middle = _unfolded(place ^ distance, comm.size), (low + high) // 2
            mine, theirs = (low, middle), (middle, high)
            if place & distance:
                mine, theirs = theirs, mine
            half = received[: mine[1] - mine[0]]
            exchange(comm, flat[slice(*theirs)], partner, half, partner)
            join(flat[slice(*mine)], half, out=flat[slice(*mine)])
            ways.append((partner, mine, theirs))
            (low, high), distance = mine, distance // 2
        for partner, mine, theirs in reversed(ways):
            exchange(comm, flat[slice(*mine)], partner, flat[slice(*theirs)], partner)
    _unfold(flat, comm)
    return array


def allreduce_hierarchical(
    array: np.ndarray, comm: Comm, op: str = "sum", ranks_per_node: int | None = None
) -> np.ndarray:
    """Reduce inside each node, allreduce by a ring among one leader a node, broadcast inside.

    Between nodes, where links are slow, only one rank of a node speaks: 2 (k - 1)/k n bytes for
    k nodes instead of one share for every rank.

    Args:
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".
        ranks_per_node: consecutive ranks that count as one node; None for the ranks that share
            memory, the real nodes.

    Returns:
        numpy.ndarray: `array`.

    Raises:
        ValueError: when `ranks_per_node` is below 1.

    Source:
        Awan et al., S-Caffe, PPoPP (2017); Cho et al., PowerAI DDL, arXiv:1708.02188.
    """
    node, leaders = levels(comm, ranks_per_node)
    reduce_tree(array, node, 0, op)
    if node.rank == 0:
        allreduce_ring(array, leaders, op)
    return broadcast_tree(array, node, 0)


def _fold(flat: np.ndarray, comm: Comm, join: np.ufunc) -> tuple[int, int] | None:
    """Leave a power of two of ranks; give this rank's place among them and their number.

    Of the first 2 e ranks, with e = p - 2**k, each even one gives its array to the next.
    """
    size = 1 << (comm.size.bit_length() - 1)
    extra = comm.size - size
    if comm.rank >= 2 * extra:
        return comm.rank - extra, size
    if comm.rank % 2 == 0:
        comm.Send(message(flat), comm.rank + 1, TAG)
        return None
    received = np.empty_like(flat)
    comm.Recv(message(received), comm.rank - 1, TAG)
    join(flat, received, out=flat)
    return comm.rank // 2, size


def _unfolded(place: int, ranks: int) -> int:
    extra = ranks - (1 << (ranks.bit_length() - 1))
    return 2 * place + 1 if place < extra else place + extra


def _unfold(flat: np.ndarray, comm: Comm) -> None:
    """Give the result to the ranks that `_fold` left out."""
    extra = comm.size - (1 << (comm.size.bit_length() - 1))
    if comm.rank >= 2 * extra:
        return
    if comm.rank % 2 == 0:
        comm.Recv(message(flat), comm.rank + 1, TAG)
    else:
        comm.Send(message(flat), comm.rank - 1, TAG)


ALGORITHMS = {
    "tree": allreduce_tree,
    "ring": allreduce_ring,
    "ring_segmented": allreduce_ring_segmented,
    "recursive_doubling": allreduce_recursive_doubling,
    "halving_doubling": allreduce_halving_doubling,
    "hierarchical": allreduce_hierarchical,
}
