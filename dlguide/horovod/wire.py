"""One Horovod operator at a time, in Python or inside `tf.function`, matched by its name.

Horovod pairs what the ranks submit by name. Called eagerly, its operators all go by the name of
their kind, so that two tensors of one shape, submitted in another order, are added together.
Here a collective with a name runs as a `tf.function` of its own, in which the operator bears that
name: ranks that name different tensors wait (and the stall check tells the name), never mix.
Without a name, eager collectives are paired in the order of the calls.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import keras
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.native import (
    NAMES,
    OPERATORS,
    Adasum,
    Average,
    ProcessSet,
    Sum,
    check_ready,
    members,
    native,
)

# The dtypes that Horovod carries; others travel as one of these and come back.
REDUCED = {tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64}
SCATTERED = REDUCED - {tf.uint8, tf.int8}
MOVED = REDUCED | {tf.uint16, tf.int16, tf.bool}


def node_name(name: str) -> str:
    """Return a name that TensorFlow accepts for an operator, different for different names."""
    clean = re.sub(r"[^A-Za-z0-9_.]", "_", name)
    if clean != name or not re.match(r"[A-Za-z0-9.]", clean):
        clean = f"t{clean}_{zlib.crc32(name.encode()):08x}"
    return clean


@lru_cache(maxsize=1024)  # a loop that invents a name every step must not keep every trace
def _named(kind: str, name: str, attributes: tuple[tuple[str, Any], ...]) -> Any:
    operator = getattr(OPERATORS, kind)

    def collective(*tensors: Any) -> Any:
        return operator(*tensors, name=name, ignore_name_scope=True, **dict(attributes))

    graph = tf.function(collective, autograph=False, reduce_retracing=True)
    graph._omit_frequent_tracing_warning = True  # a graph for each name is meant
    return graph


def run(
    kind: str, tensors: Sequence[Any], name: str | None, process_set: ProcessSet, **attributes: Any
) -> Any:
    """Run one of Horovod's operators, under the name it was given.

    Args:
        kind: the operator in Horovod's library, such as `horovod_allreduce`.
        tensors: its inputs.
        name: what the ranks match it by; None pairs eager calls in their order.
        process_set: the ranks that take part.
        attributes: the operator's other attributes.

    Returns:
        what the operator returns.

    Raises:
        RuntimeError: when Horovod is not initialised or does not know the set.
    """
    check_ready(process_set)
    attributes["process_set_id"] = process_set.process_set_id
    if name is None:
        return getattr(OPERATORS, kind)(*tensors, **attributes)
    if not tf.executing_eagerly():
        operator = getattr(OPERATORS, kind)
        return operator(*tensors, name=node_name(name), ignore_name_scope=True, **attributes)
    return _named(kind, node_name(name), tuple(sorted(attributes.items())))(*tensors)


def as_tensor(value: Any) -> Any:
    """Return a value as a TensorFlow tensor, `tf.IndexedSlices` as they are."""
    if isinstance(value, tf.IndexedSlices):
        return value
    return tf.convert_to_tensor(value.value if isinstance(value, keras.Variable) else value)


def carried(tensor: tf.Tensor, dtypes: set) -> tf.Tensor:
    """Return a tensor in a dtype that Horovod carries and that holds all its values."""
    if tensor.dtype in dtypes:
        return tensor
    if tensor.dtype.is_floating:
        return tf.cast(tensor, tf.float32)  # bfloat16 and the 8-bit floats
    if not tensor.dtype.is_integer and not tensor.dtype.is_bool:
        raise TypeError(f"Horovod cannot carry tensors of dtype {tensor.dtype.name}.")
    return tf.cast(tensor, tf.int64 if tensor.dtype in (tf.uint32, tf.uint64) else tf.int32)


def check_adasum(op: int, process_set: ProcessSet) -> None:
    """Refuse Adasum where Horovod cannot form it."""
    if op != Adasum:
        return
    if process_set.process_set_id != 0:
        raise NotImplementedError("Adasum works on the global process set only.")
    if native.size() & (native.size() - 1):
        raise NotImplementedError(f"Adasum needs 1, 2, 4, 8, ... ranks, got {native.size()}.")


def check_scatter(op: int) -> None:
    """Refuse reductions whose result Horovod cannot scatter."""
    require(op in (Average, Sum), "op", "be Average or Sum", NAMES.get(op, op))


def check_root(root_rank: int, process_set: ProcessSet) -> None:
    """Refuse a root that no rank has, before the ranks start to wait for it."""
    check_ready(process_set)
    ranks = members(process_set)
    require(root_rank in ranks, "root_rank", f"be one of the ranks {list(ranks)}", root_rank)
