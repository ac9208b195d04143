"""Collectives on a list of tensors in one go, dense and sparse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from dlguide.horovod.native import (
    Average,
    Compression,
    ProcessSet,
    Sum,
    global_process_set,
    members,
    native,
)
from dlguide.horovod.wire import (
    MOVED,
    REDUCED,
    SCATTERED,
    as_tensor,
    carried,
    check_adasum,
    check_scatter,
    run,
)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Combine a list of tensors of every rank in one go; all are sent or none.

    Called by all ranks of the set with lists of equal length. Tensors of different dtypes form
    one group for each dtype.

    Args:
        tensors: tensors or `tf.IndexedSlices`; the same shapes and dtypes on all ranks.
        average: the old form of `op`.
        device_dense: the device for tensors; empty leaves it to TensorFlow.
        device_sparse: the device for `tf.IndexedSlices`.
        compression: `Compression.none` or `Compression.fp16`.
        op: Average (when None), Sum, Min, Max, Product or Adasum.
        prescale_factor: what each rank's values are multiplied with before the sum.
        postscale_factor: what the results are multiplied with.
        process_set: the ranks that take part.
        ignore_name_scope: taken for Horovod's sake; a name is always used as it is given.
        name: what the ranks match the call by.

    Returns:
        list: the results in the order of `tensors`.

    Raises:
        NotImplementedError: for a combination that Horovod does not know.
    """
    op = native.handle_average_backwards_compatibility(op, average)
    check_adasum(op, process_set)
    values = [as_tensor(tensor) for tensor in tensors]
    results: list[Any] = list(values)
    sparse = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
    if sparse:
        if op not in (Average, Sum) or prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("Sparse tensors can be averaged or summed, without factors.")
        with tf.device(device_sparse):
            gathered = allgather_slices([values[i] for i in sparse], name, op, process_set)
        for i, slices in zip(sparse, gathered, strict=True):
            results[i] = slices
    with tf.device(device_dense):
        packed = {
            i: compression.compress(carried(value, REDUCED))
            for i, value in enumerate(values)
            if i not in sparse
        }
        for dtype, places in _by_dtype({i: wire for i, (wire, _) in packed.items()}).items():
            totals = run(
                "horovod_grouped_allreduce",
                [[packed[i][0] for i in places]],
                name and f"{name}.{dtype}",
                process_set,
                reduce_op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
            )
            for i, total in zip(places, totals, strict=True):
                total = compression.decompress(total, packed[i][1])
                results[i] = tf.cast(total, values[i].dtype)
    return results


def _by_dtype(tensors: dict[int, tf.Tensor]) -> dict[str, list[int]]:
    # Sorted by name, so that the order of the groups is that of every other rank.
    places: dict[str, list[int]] = {}
    for i, tensor in tensors.items():
        places.setdefault(tensor.dtype.name, []).append(i)
    return dict(sorted(places.items()))


def allgather_slices(
    slices: Sequence[tf.IndexedSlices], name: str | None, op: int, process_set: ProcessSet
) -> list[tf.IndexedSlices]:
    """Add up sparse tensors by putting the ranks' rows one after another."""
    ranks = len(members(process_set))
    rows = [part.values / ranks if op == Average else part.values for part in slices]
    rows = grouped_allgather(rows, name and f"{name}.rows", process_set=process_set)
    indices = [part.indices for part in slices]
    indices = grouped_allgather(indices, name and f"{name}.indices", process_set=process_set)
    return [
        tf.IndexedSlices(row, index, part.dense_shape)
        for row, index, part in zip(rows, indices, slices, strict=True)
    ]


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gather a list of tensors of every rank in one go; see `allgather`.

    Args:
        tensors: the tensors; only first dimensions may differ between ranks.
        name: what the ranks match the call by.
        process_set: the ranks that take part.

    Returns:
        list[tf.Tensor]: the gathered tensors in the order of `tensors`.
    """
    values = [as_tensor(tensor) for tensor in tensors]
    wires = {i: carried(value, MOVED) for i, value in enumerate(values)}
    results = list(values)
    for dtype, places in _by_dtype(wires).items():
        wire = [wires[i] for i in places]
        named = name and f"{name}.{dtype}"
        gathered = run("horovod_grouped_allgather", [wire], named, process_set)
        for i, tensor in zip(places, gathered, strict=True):
            results[i] = tf.cast(tensor, values[i].dtype)
    return results


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: type = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    name: str | None = None,
) -> list[tf.Tensor]:
    """Reduce and scatter a list of tensors of every rank in one go; see `reducescatter`.

    Args:
        tensors: the tensors, of the same shapes and dtypes on all ranks.
        device_dense: the device; empty leaves it to TensorFlow.
        compression: `Compression.none` or `Compression.fp16`.
        op: Average or Sum.
        process_set: the ranks that take part.
        prescale_factor: what each rank's values are multiplied with before the sum.
        postscale_factor: what the results are multiplied with.
        name: what the ranks match the call by.

    Returns:
        list[tf.Tensor]: this rank's rows of each result.

    Raises:
        ValueError: for another `op`.
    """
    check_scatter(op)
    values = [as_tensor(tensor) for tensor in tensors]
    results = list(values)
    with tf.device(device_dense):
        packed = [compression.compress(carried(value, SCATTERED)) for value in values]
        wires = {i: wire for i, (wire, _) in enumerate(packed)}
        for dtype, places in _by_dtype(wires).items():
            rows = run(
                "horovod_grouped_reducescatter",
                [[wires[i] for i in places]],
                name and f"{name}.{dtype}",
                process_set,
                reduce_op=op,
                prescale_factor=prescale_factor,
                postscale_factor=postscale_factor,
            )
            for i, part in zip(places, rows, strict=True):
                part = compression.decompress(part, packed[i][1])
                results[i] = tf.cast(part, values[i].dtype)
    return results
