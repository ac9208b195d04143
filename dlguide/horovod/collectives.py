"""Collectives on one tensor: allreduce, allgather, broadcast, reducescatter, alltoall."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.grouped import allgather_slices
from dlguide.horovod.native import Average, Compression, ProcessSet, Sum, global_process_set, native
from dlguide.horovod.wire import (
    MOVED,
    REDUCED,
    SCATTERED,
    as_tensor,
    carried,
    check_adasum,
    check_root,
    check_scatter,
    run,
)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: int | None = None,
    compression: type = Compression.none,
    *,
    process_set: ProcessSet = global_process_set,
    device_dense: str = "",
    device_sparse: str = "",
) -> Any:
    """Combine one tensor of every rank and return the result on every rank.

    Called by all ranks of the set. A ring moves 2 (p - 1) / p times the tensor's bytes per rank.

    Args:
        value: the tensor, of the same shape and dtype on all ranks, or `tf.IndexedSlices`.
        name: what the ranks match the call by.
        average: the old form of `op`: True is Average, False is Sum.
        prescale_factor: what each rank's value is multiplied with before the sum.
        postscale_factor: what the result is multiplied with.
        op: Average (when None), Sum, Min, Max, Product or Adasum.
        compression: `Compression.none` or `Compression.fp16`.
        process_set: the ranks that take part.
        device_dense: the device for tensors; empty leaves it to TensorFlow.
        device_sparse: the device for `tf.IndexedSlices`.

    Returns:
        tf.Tensor | tf.IndexedSlices: the result, with the shape and dtype of `value`; an average
        of integer `tf.IndexedSlices` has floating-point rows.

    Raises:
        ValueError: when both `average` and `op` are given.
        NotImplementedError: for a combination that Horovod does not know.
    """
    op = native.handle_average_backwards_compatibility(op, average)
    tensor = as_tensor(value)
    if isinstance(tensor, tf.IndexedSlices):
        scaled = prescale_factor != 1.0 or postscale_factor != 1.0
        if op not in (Average, Sum) or scaled:
            raise NotImplementedError("Sparse tensors can be averaged or summed, without factors.")
        with tf.device(device_sparse):
            return allgather_slices([tensor], name, op, process_set)[0]
    check_adasum(op, process_set)
    with tf.device(device_dense):
        wire, context = compression.compress(carried(tensor, REDUCED))
        total = run(
            "horovod_allreduce",
            [wire],
            name,
            process_set,
            reduce_op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        total = compression.decompress(total, context)
        return tf.cast(total, tensor.dtype) if total.dtype != tensor.dtype else total


def allgather(
    value: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Put the ranks' tensors one after another, in rank order, on every rank.

    Called by all ranks of the set; moves p - 1 times the tensor's bytes per rank.

    Args:
        value: the tensor; the first dimension may differ between ranks, the others not.
        name: what the ranks match the call by.
        process_set: the ranks that take part.

    Returns:
        tf.Tensor: shape (sum of the first dimensions, ...).
    """
    tensor = as_tensor(value)
    gathered = run("horovod_allgather", [carried(tensor, MOVED)], name, process_set)
    return tf.cast(gathered, tensor.dtype) if gathered.dtype != tensor.dtype else gathered


def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the value of one rank on every rank.

    Called by all ranks of the set; moves the tensor's bytes once to each rank.

    Args:
        value: a tensor of the same shape and dtype on all ranks.
        root_rank: the rank whose value counts (global rank, also within a process set).
        name: what the ranks match the call by.
        process_set: the ranks that take part.

    Returns:
        tf.Tensor: the value of `root_rank`.

    Raises:
        ValueError: when `root_rank` is not a rank of the set.
    """
    check_root(root_rank, process_set)
    tensor = as_tensor(value)
    wire = carried(tensor, MOVED)
    result = run("horovod_broadcast", [wire], name, process_set, root_rank=root_rank)
    return tf.cast(result, tensor.dtype) if result.dtype != tensor.dtype else result


def reducescatter(
    value: Any,
    name: str | None = None,
    op: int = Average,
    *,
    process_set: ProcessSet = global_process_set,
    compression: type = Compression.none,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    device_dense: str = "",
) -> tf.Tensor:
    """Combine one tensor of every rank and leave each rank its share of the rows.

    Called by all ranks of the set. Of n rows the first n mod p ranks get one more than the others.

    Args:
        value: the tensor, of the same shape and dtype on all ranks, with at least one dimension.
        name: what the ranks match the call by.
        op: Average or Sum.
        process_set: the ranks that take part.
        compression: `Compression.none` or `Compression.fp16`.
        prescale_factor: what each rank's value is multiplied with before the sum.
        postscale_factor: what the result is multiplied with.
        device_dense: the device; empty leaves it to TensorFlow.

    Returns:
        tf.Tensor: this rank's rows of the result.

    Raises:
        ValueError: for another `op`.
    """
    check_scatter(op)
    tensor = as_tensor(value)
    with tf.device(device_dense):
        wire, context = compression.compress(carried(tensor, SCATTERED))
        rows = run(
            "horovod_reducescatter",
            [wire],
            name,
            process_set,
            reduce_op=op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
        )
        rows = compression.decompress(rows, context)
        return tf.cast(rows, tensor.dtype) if rows.dtype != tensor.dtype else rows


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its slice of the rows and return the slices that were received.

    Called by all ranks of the set.

    Args:
        tensor: the rows, in the order of the ranks they go to.
        splits: rows for each rank (integers, shape (ranks,)); None splits equally.
        name: what the ranks match the call by.
        ignore_name_scope: taken for Horovod's sake; a name is always used as it is given.
        process_set: the ranks that take part.

    Returns:
        tf.Tensor, or with `splits` a pair: the rows received, and how many from each rank.

    Raises:
        ValueError: when `splits` are not integers.
    """
    rows = as_tensor(tensor)
    counts = tf.constant([], tf.int32) if splits is None else as_tensor(splits)
    require(counts.dtype.is_integer, "splits", "be integers", counts.dtype.name)
    counts = tf.cast(counts, tf.int32)
    received, sizes = run("horovod_alltoall", [carried(rows, MOVED), counts], name, process_set)
    received = tf.cast(received, rows.dtype)
    return received if splits is None else (received, sizes)
