"""Horovod's collectives for Keras and TensorFlow tensors, matched by name.

Horovod pairs what the ranks submit by name. Called eagerly, its own operators all have the name
of their kind, so that two tensors of one shape, submitted in another order, are added together.
Here a collective with a name runs as a `tf.function`, in which the operator has that name: ranks
that name different tensors wait (and the stall check prints the name), never mix. Without a name,
eager collectives are paired in the order of the calls.
"""

from __future__ import annotations

import functools
import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.native import (
    NAMES,
    OPERATORS,
    Adasum,
    Average,
    Compression,
    ProcessSet,
    Sum,
    global_process_set,
    members,
    native,
    require_ready,
)

# The dtypes that Horovod transmits; others are sent as one of these and converted back.
REDUCED = {tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64}
SCATTERED = REDUCED - {tf.uint8, tf.int8}
MOVED = REDUCED | {tf.uint16, tf.int16, tf.bool}


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

    A ring sends 2 (p - 1) / p times the tensor's bytes per rank.

    Args:
        value: the tensor, of the same shape and dtype on all ranks, or `tf.IndexedSlices`.
        name: the name by which ranks match the call.
        average: deprecated form of `op`: True is Average, False is Sum.
        prescale_factor: multiplies each rank's value before the sum.
        postscale_factor: multiplies the result.
        op: Average (when None), Sum, Min, Max, Product or Adasum.
        compression: `Compression.none` or `Compression.fp16`.
        device_dense: the device for tensors; empty leaves it to TensorFlow.
        device_sparse: the device for `tf.IndexedSlices`.

    Returns:
        tf.Tensor | tf.IndexedSlices: the result, with the shape and dtype of `value`; an average
        of integer `tf.IndexedSlices` has floating-point rows.

    Raises:
        ValueError: when both `average` and `op` are given.
        NotImplementedError: for a combination that Horovod does not implement.
    """
    op = native.handle_average_backwards_compatibility(op, average)
    tensor = as_tensor(value)
    if isinstance(tensor, tf.IndexedSlices):
        _require_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            return _allreduce_slices([tensor], name, op, process_set)[0]
    _require_adasum(op, process_set)
    scale = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    with tf.device(device_dense):
        sent, context = compression.compress(transmitted(tensor, REDUCED))
        collective = _operator("horovod_allreduce", name, process_set, reduce_op=op, **scale)
        return tf.cast(compression.decompress(collective(sent), context), tensor.dtype)


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
    """Combine a list of tensors of every rank together: all are sent or none.

    The lists have equal length on all ranks. Tensors of different dtypes form one group for each
    dtype. All arguments not listed here are those of `allreduce`.

    Args:
        tensors: tensors or `tf.IndexedSlices`; the same shapes and dtypes on all ranks.
        ignore_name_scope: accepted for compatibility; a name is always used as it is given.

    Returns:
        list: the results in the order of `tensors`.

    Raises:
        NotImplementedError: for a combination that Horovod does not implement.
    """
    op = native.handle_average_backwards_compatibility(op, average)
    _require_adasum(op, process_set)
    values = [as_tensor(tensor) for tensor in tensors]
    results: list[Any] = list(values)
    sparse = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
    if sparse:
        _require_sparse(op, prescale_factor, postscale_factor)
        with tf.device(device_sparse):
            reduced = _allreduce_slices([values[i] for i in sparse], name, op, process_set)
        for i, slices in zip(sparse, reduced, strict=True):
            results[i] = slices
    scale = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    with tf.device(device_dense):
        packed = {
            i: compression.compress(transmitted(value, REDUCED))
            for i, value in enumerate(values)
            if i not in sparse
        }
        for dtype, places in _by_dtype({i: sent for i, (sent, _) in packed.items()}).items():
            kind, group_name = "horovod_grouped_allreduce", name and f"{name}.{dtype}"
            collective = _operator(kind, group_name, process_set, reduce_op=op, **scale)
            totals = collective([packed[i][0] for i in places])
            for i, total in zip(places, totals, strict=True):
                total = compression.decompress(total, packed[i][1])
                results[i] = tf.cast(total, values[i].dtype)
    return results


def allgather(
    value: Any, name: str | None = None, *, process_set: ProcessSet = global_process_set
) -> tf.Tensor:
    """Concatenate the ranks' tensors in rank order, on every rank.

    Each rank sends p - 1 times its tensor's bytes.

    Args:
        value: the tensor; the first dimension may differ between ranks, the others not.
        name: the name by which ranks match the call.

    Returns:
        tf.Tensor: shape (sum of the first dimensions, ...).
    """
    tensor = as_tensor(value)
    collective = _operator("horovod_allgather", name, process_set)
    return tf.cast(collective(transmitted(tensor, MOVED)), tensor.dtype)


def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gather a list of tensors of every rank together; see `allgather`.

    Args:
        tensors: the tensors; only first dimensions may differ between ranks.
        name: the name by which ranks match the call.

    Returns:
        list[tf.Tensor]: the gathered tensors in the order of `tensors`.
    """
    values = [as_tensor(tensor) for tensor in tensors]
    sent = {i: transmitted(value, MOVED) for i, value in enumerate(values)}
    results = list(values)
    for dtype, places in _by_dtype(sent).items():
        group_name = name and f"{name}.{dtype}"
        collective = _operator("horovod_grouped_allgather", group_name, process_set)
        gathered = collective([sent[i] for i in places])
        for i, tensor in zip(places, gathered, strict=True):
            results[i] = tf.cast(tensor, values[i].dtype)
    return results


def broadcast(
    value: Any,
    root_rank: int,
    name: str | None = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the value of one rank on every rank.

    Args:
        value: a tensor of the same shape and dtype on all ranks.
        root_rank: the rank whose value is sent (global rank, also within a process set).
        name: the name by which ranks match the call.

    Raises:
        ValueError: when `root_rank` is not a rank of the set.
    """
    require_root(root_rank, process_set)
    tensor = as_tensor(value)
    collective = _operator("horovod_broadcast", name, process_set, root_rank=root_rank)
    return tf.cast(collective(transmitted(tensor, MOVED)), tensor.dtype)


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
    """Combine one tensor of every rank and give each rank its share of the rows.

    Of n rows the first n mod p ranks get one more than the others. All arguments not listed here
    are those of `allreduce`.

    Args:
        value: the tensor, of the same shape and dtype on all ranks, with at least one dimension.
        op: Average or Sum.

    Returns:
        tf.Tensor: this rank's rows of the result.

    Raises:
        ValueError: for another `op`.
    """
    _require_scatter(op)
    tensor = as_tensor(value)
    scale = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    with tf.device(device_dense):
        sent, context = compression.compress(transmitted(tensor, SCATTERED))
        collective = _operator("horovod_reducescatter", name, process_set, reduce_op=op, **scale)
        return tf.cast(compression.decompress(collective(sent), context), tensor.dtype)


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
    """Reduce and scatter a list of tensors of every rank together; see `reducescatter`.

    Returns:
        list[tf.Tensor]: this rank's rows of each result.

    Raises:
        ValueError: when `op` is not Average or Sum.
    """
    _require_scatter(op)
    values = [as_tensor(tensor) for tensor in tensors]
    results = list(values)
    scale = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    with tf.device(device_dense):
        packed = [compression.compress(transmitted(value, SCATTERED)) for value in values]
        for dtype, places in _by_dtype(dict(enumerate(sent for sent, _ in packed))).items():
            kind, group_name = "horovod_grouped_reducescatter", name and f"{name}.{dtype}"
            collective = _operator(kind, group_name, process_set, reduce_op=op, **scale)
            for i, rows in zip(places, collective([packed[i][0] for i in places]), strict=True):
                results[i] = tf.cast(compression.decompress(rows, packed[i][1]), values[i].dtype)
    return results


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each rank its slice of the rows and return the slices that were received.

    Args:
        tensor: the rows, in the order of the ranks they go to.
        splits: rows for each rank (integers, shape (ranks,)); None splits equally.
        name: the name by which ranks match the call.
        ignore_name_scope: accepted for compatibility; a name is always used as it is given.

    Returns:
        tf.Tensor, or with `splits` a pair: the rows received, and their count from each rank.

    Raises:
        ValueError: when `splits` are not integers.
    """
    rows = as_tensor(tensor)
    counts = tf.constant([], tf.int32) if splits is None else as_tensor(splits)
    require(counts.dtype.is_integer, "splits", "be integers", counts.dtype.name)
    collective = _operator("horovod_alltoall", name, process_set)
    received, sizes = collective(transmitted(rows, MOVED), tf.cast(counts, tf.int32))
    received = tf.cast(received, rows.dtype)
    return received if splits is None else (received, sizes)


def _operator(
    kind: str, name: str | None, process_set: ProcessSet, **attributes: Any
) -> Callable[..., Any]:
    """Return one of Horovod's operators, to be called with its tensors under a name."""
    require_ready(process_set)
    attributes["process_set_id"] = process_set.process_set_id
    operator = getattr(OPERATORS, kind)
    if name is None:
        return functools.partial(operator, **attributes)
    if tf.executing_eagerly():
        return _as_function(kind, node_name(name), tuple(sorted(attributes.items())))
    return functools.partial(operator, name=node_name(name), ignore_name_scope=True, **attributes)


@functools.lru_cache(maxsize=1024)  # a loop that invents a name every step must not keep all traces
def _as_function(kind: str, name: str, attributes: tuple[tuple[str, Any], ...]) -> Any:
    operator = getattr(OPERATORS, kind)

    def collective(*tensors: Any) -> Any:
        return operator(*tensors, name=name, ignore_name_scope=True, **dict(attributes))

    graph = tf.function(collective, autograph=False, reduce_retracing=True)
    graph._omit_frequent_tracing_warning = True  # one graph for each name is intended
    return graph


def node_name(name: str) -> str:
    """Return a name that TensorFlow accepts for an operator, different for different names."""
    clean = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    if clean != name or not re.match(r"[A-Za-z0-9.]", clean):
        clean = f"t{clean}_{zlib.crc32(name.encode()):08x}"
    return clean


def as_tensor(value: Any) -> Any:
    """Return a value as a TensorFlow tensor, `tf.IndexedSlices` as they are."""
    if isinstance(value, tf.IndexedSlices):
        return value
    return tf.convert_to_tensor(value.value if isinstance(value, keras.Variable) else value)


def transmitted(tensor: tf.Tensor, dtypes: set) -> tf.Tensor:
    """Return a tensor in a dtype that Horovod transmits and that holds all its values."""
    if tensor.dtype in dtypes:
        return tensor
    if tensor.dtype.is_floating:
        return tf.cast(tensor, tf.float32)  # bfloat16 and the 8-bit floats
    if not tensor.dtype.is_integer and not tensor.dtype.is_bool:
        raise TypeError(f"Horovod cannot transmit tensors of dtype {tensor.dtype.name}.")
    return tf.cast(tensor, tf.int64 if tensor.dtype in (tf.uint32, tf.uint64) else tf.int32)


def require_root(root_rank: int, process_set: ProcessSet) -> None:
    """Refuse a root that no rank has, before the ranks start to wait for it."""
    require_ready(process_set)
    ranks = members(process_set)
    require(root_rank in ranks, "root_rank", f"be one of the ranks {list(ranks)}", root_rank)


def _require_adasum(op: int, process_set: ProcessSet) -> None:
    if op == Adasum and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum works on the global process set only.")
    if op == Adasum and native.size() & (native.size() - 1):
        raise NotImplementedError(f"Adasum needs 1, 2, 4, 8, ... ranks, got {native.size()}.")


def _require_sparse(op: int, prescale_factor: float, postscale_factor: float) -> None:
    if op not in (Average, Sum) or prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("Sparse tensors can be averaged or summed, without factors.")


def _require_scatter(op: int) -> None:
    require(op in (Average, Sum), "op", "be Average or Sum", NAMES.get(op, op))


def _allreduce_slices(
    slices: Sequence[tf.IndexedSlices], name: str | None, op: int, process_set: ProcessSet
) -> list[tf.IndexedSlices]:
    """Add up sparse tensors by concatenating the ranks' rows."""
    ranks = len(members(process_set))
    rows = [part.values / ranks if op == Average else part.values for part in slices]
    rows = grouped_allgather(rows, name and f"{name}.rows", process_set=process_set)
    indices = [part.indices for part in slices]
    indices = grouped_allgather(indices, name and f"{name}.indices", process_set=process_set)
    return [
        tf.IndexedSlices(row, index, part.dense_shape)
        for row, index, part in zip(rows, indices, slices, strict=True)
    ]


def _by_dtype(tensors: dict[int, tf.Tensor]) -> dict[str, list[int]]:
    # Sorted by name, so that the order of the groups is the same on every rank.
    places: dict[str, list[int]] = {}
    for i, tensor in tensors.items():
        places.setdefault(tensor.dtype.name, []).append(i)
    return dict(sorted(places.items()))
