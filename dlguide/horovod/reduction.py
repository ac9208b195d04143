"""The gradients of all ranks made one: what distributed optimizers and tapes share."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from dlguide.errors import require, require_positive
from dlguide.horovod.grouped import grouped_allreduce
from dlguide.horovod.native import (
    NAMES,
    Average,
    Compression,
    Max,
    ProcessSet,
    Sum,
    communicates,
    global_process_set,
    members,
)


@dataclass(frozen=True)
class Reduction:
    """How gradients are combined over the ranks; the fields are those of `DistributedOptimizer`."""

    name: str
    op: int = Average
    compression: Any = Compression.none
    sparse_as_dense: bool = False
    gradient_predivide_factor: float = 1.0
    groups: int | tuple[tuple[Hashable, ...], ...] | None = None
    process_set: ProcessSet = global_process_set
    scale_local_gradients: bool = True
    device_dense: str = ""
    device_sparse: str = ""
    sum_rows: bool = True  # False hands equal rows of sparse gradients on one by one, as Keras does
    key: Callable[[Any], Hashable] = field(default=lambda variable: variable_key(variable))

    def reduce(
        self, grads: Sequence[Any], variables: Sequence[Any], local: frozenset = frozenset()
    ) -> list[Any]:
        """Combine gradients over the ranks of the process set.

        The gradients of one dtype go in one group, under a name made of the kind and the shapes,
        so that it is the same on every rank whatever its layers are called.
        """
        grads = [
            tf.convert_to_tensor(grad)
            if self.sparse_as_dense and isinstance(grad, tf.IndexedSlices)
            else grad
            for grad in grads
        ]
        if not communicates(self.process_set):
            return grads
        ranks = len(members(self.process_set))
        grads = [_tensors(grad) for grad in grads]
        results = list(grads)
        shared: dict[int, Any] = {}
        largest: dict[int, Any] = {}
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if grad is None:
                continue
            if self.key(variable) in local:
                results[i] = _times(grad, 1 / ranks) if self.scale_local_gradients else grad
            elif getattr(variable, "overwrite_with_gradient", False):
                largest[i] = grad  # not a gradient but the variable's next value: see Keras' float8
            else:
                shared[i] = grad
        names = f"{self.name}.{_signature(list(shared.values()))}"
        for number, places in enumerate(self._split(shared, variables)):
            reduced = self._reduce_group(
                [shared[i] for i in places], [variables[i] for i in places], f"{names}.{number}"
            )
            results = _put(results, places, reduced)
        if largest:
            tensors = list(largest.values())
            reduced = grouped_allreduce(
                tensors, op=Max, process_set=self.process_set, name=f"{names}.max"
            )
            results = _put(results, list(largest), reduced)
        return results

    def _reduce_group(self, grads: list[Any], variables: list[Any], name: str) -> list[Any]:
        factor = self.gradient_predivide_factor
        if factor != 1.0 and self.op == Average:
            grads = [_times(grad, 1 / factor) for grad in grads]
        if hasattr(self.compression, "reduce_gradients"):  # of `dlguide.parallel.compression`
            reduced = self.compression.reduce_gradients(
                grads, variables, name, self.op, self.process_set
            )
        else:
            reduced = grouped_allreduce(
                grads,
                op=self.op,
                compression=self.compression,
                process_set=self.process_set,
                device_dense=self.device_dense,
                device_sparse=self.device_sparse,
                name=name,
            )
        if factor != 1.0 and self.op == Average:
            reduced = [_times(grad, factor) for grad in reduced]
        return [
            _summed(grad) if self.sum_rows and isinstance(grad, tf.IndexedSlices) else grad
            for grad in reduced
        ]

    def _split(self, grads: dict[int, Any], variables: Sequence[Any]) -> list[list[int]]:
        """Return the places of the gradients, one list for each group."""
        places = list(grads)
        if self.groups is None or not places:
            return [places] if places else []
        if isinstance(self.groups, int):
            size = -(-len(places) // min(self.groups, len(places)))
            return [places[i : i + size] for i in range(0, len(places), size)]
        by_key = {self.key(variables[i]): i for i in places}
        listed = [[by_key.pop(key) for key in group if key in by_key] for group in self.groups]
        return [group for group in listed if group] + [[i] for i in by_key.values()]


def variable_key(variable: Any) -> Hashable:
    """Return what tells a variable from all others, for Keras' and TensorFlow's variables."""
    variable = variable.value if isinstance(variable, keras.Variable) else variable
    return variable.ref()


def reduction(
    kind: str,
    *,
    name: str | None,
    groups: Any,
    num_groups: int,
    gradient_predivide_factor: float,
    op: int,
    key: Callable[[Any], Hashable] = variable_key,
    **settings: Any,
) -> Reduction:
    """Check the arguments that optimizer and tape have in common."""
    factor = require_positive(gradient_predivide_factor, "gradient_predivide_factor")
    must = "be 1 unless `op` is Average"
    require(factor == 1.0 or op == Average, "gradient_predivide_factor", must, factor)
    if num_groups:
        warnings.warn("`num_groups` is called `groups` now.", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    counted = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    listed = isinstance(groups, list | tuple)
    must = "be None, a count of at least 1, or a list of lists of variables"
    require(groups is None or counted or listed, "groups", must, groups)
    if listed:
        require(all(isinstance(g, list | tuple) for g in groups), "groups", must, groups)
        groups = tuple(tuple(key(variable) for variable in group) for group in groups)
    compression = settings["compression"]
    if hasattr(compression, "reduce_gradients"):
        must = "be Average or Sum with a compression of `dlguide.parallel`"
        require(op in (Average, Sum), "op", must, NAMES.get(op, op))
    else:
        must = "be one of `hvd.Compression` or of `dlguide.parallel.compression`"
        require(hasattr(compression, "decompress"), "compression", must, compression)
    return Reduction(
        name=name or kind,
        op=op,
        groups=groups,
        gradient_predivide_factor=factor,
        key=key,
        **settings,
    )


def refuse_xla() -> None:
    """Raise when the code that is being traced is to be compiled by XLA."""
    if tf.executing_eagerly():
        return
    if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise RuntimeError(
            "`jit_compile` must be False where ranks exchange gradients: Horovod has no XLA "
            "kernels, and this step is being compiled with XLA. Pass `jit_compile=False` to "
            "`model.compile` (on a GPU Keras' own default is XLA) or to `tf.function`."
        )


def _signature(grads: Sequence[Any]) -> str:
    """Return a short text that differs when number, shapes or dtypes of the gradients differ."""
    text = repr([(grad.dtype.name, str(grad.shape), type(grad).__name__[:2]) for grad in grads])
    return f"{len(grads)}gradients.{zlib.crc32(text.encode()):08x}"


def _tensors(grad: Any) -> Any:
    """Return sparse gradients made of tensors: TensorFlow takes tuples for indices and shape."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    shape = None if grad.dense_shape is None else tf.convert_to_tensor(grad.dense_shape)
    values, indices = tf.convert_to_tensor(grad.values), tf.convert_to_tensor(grad.indices)
    return tf.IndexedSlices(values, indices, shape)


def _summed(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Return sparse gradients with each row once: the square of a sum is not that of its parts."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _times(grad: Any, factor: float) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values * tf.constant(factor, grad.values.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad * tf.constant(factor, grad.dtype)  # tf.cast would round it to float32


def _put(results: list[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    for i, value in zip(places, values, strict=True):
        results[i] = value
    return results
