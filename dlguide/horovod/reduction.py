"""The gradients of all ranks combined: what distributed optimizers and tapes share."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from dlguide.errors import require, require_count, require_positive
from dlguide.horovod.guard import WeightConsistencyCheck, require_alike
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
from dlguide.horovod.ops import grouped_allreduce


def variable_key(variable: Any) -> Hashable:
    """Return what identifies a variable of Keras or TensorFlow."""
    variable = variable.value if isinstance(variable, keras.Variable) else variable
    return variable.ref()


class GradientReducer:
    """Combines gradients over the ranks for one optimizer or tape; see `DistributedOptimizer`."""

    def __init__(
        self,
        name: str,
        *,
        op: int = Average,
        compression: Any = Compression.none,
        sparse_as_dense: bool = False,
        gradient_predivide_factor: float = 1.0,
        groups: Any = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True,
        device_dense: str = "",
        device_sparse: str = "",
        backward_passes_per_step: int = 1,
        check_every: int = 0,
        key: Callable[[Any], Hashable] = variable_key,
    ) -> None:
        self.name = name
        self.op = op
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.devices = {"device_dense": device_dense, "device_sparse": device_sparse}
        self.key = key
        self.check_every = check_every
        self.passes = require_count(backward_passes_per_step, "backward_passes_per_step")
        self.predivide = require_positive(gradient_predivide_factor, "gradient_predivide_factor")
        must = "be 1 unless `op` is Average"
        allowed = self.predivide == 1.0 or op == Average
        require(allowed, "gradient_predivide_factor", must, self.predivide)
        # `dlguide.parallel.compression` reduces the gradients itself.
        self.compresses = hasattr(compression, "reduce_gradients")
        if self.compresses:
            must = "be Average or Sum with a compression of `dlguide.parallel`"
            require(op in (Average, Sum), "op", must, NAMES.get(op, op))
        else:
            must = "be one of `hvd.Compression` or of `dlguide.parallel.compression`"
            require(hasattr(compression, "decompress"), "compression", must, compression)
        if num_groups:
            warnings.warn("`num_groups` is called `groups` now.", DeprecationWarning, stacklevel=3)
            groups = num_groups if groups is None else groups
        self.groups = _checked_groups(groups, key)
        self.sum_rows = True  # False leaves equal rows of sparse gradients apart, as Keras does
        # Applied to this rank's gradients first; `transparent` weights them by samples.
        self.weigh: Callable[[list[Any]], list[Any]] | None = None
        self._start()

    def _start(self) -> None:
        self.local: set = set()  # keys of the variables whose gradients stay on their rank
        self._scaled_in: Any = None  # the graph of a loss of `part_of_mean` that is not yet reduced
        self._agreed = False
        self._check = WeightConsistencyCheck(
            self.check_every, self.process_set, self.passes, self.name
        )

    def copy(self) -> GradientReducer:
        """Return a reducer with these settings for another optimizer."""
        other = copy.copy(self)
        other._start()
        return other

    def is_local(self, variable: Any) -> bool:
        """Return whether the gradient of a variable stays on its rank."""
        return self.key(variable) in self.local

    def part_of_mean(self, loss: Any) -> Any:
        """Return this rank's part of the mean loss of all ranks, whose gradients are then added.

        Scaled for half precision, the mean of a rank alone would overflow p times earlier.
        """
        if self.op != Average or not communicates(self.process_set):
            return loss
        self._scaled_in = tf.compat.v1.get_default_graph()
        return loss / len(members(self.process_set))

    def _takes_parts(self) -> bool:
        """Return whether the loss was that of `part_of_mean`, which holds for one reduction.

        Only a function that was traced before and scales the loss apart from the reduction does
        not come by here again, so that what it did once holds on.
        """
        scaled_in, graph = self._scaled_in, tf.compat.v1.get_default_graph()
        while graph is not scaled_in and getattr(graph, "outer_graph", None) is not None:
            graph = graph.outer_graph
        if graph is scaled_in and (tf.executing_eagerly() or hasattr(graph, "outer_graph")):
            self._scaled_in = None
        return scaled_in is not None

    def prepare(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """Check on all ranks together that gradients and weights fit; return the gradients."""
        if self.weigh is not None:
            grads = self.weigh(grads)
        if not communicates(self.process_set):
            return grads
        refuse_xla()
        if not self._agreed:
            with tf.init_scope():
                lines = self._description(grads, variables)
                require_alike(lines, "What `DistributedOptimizer` exchanges", self.process_set)
            self._agreed = True
        shared = [variable for variable in variables if not self.is_local(variable)]
        return self._check.before_update(grads, shared)

    def reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Combine gradients over the ranks of the process set.

        The gradients of one dtype form one group, under a name made of the kind and the shapes,
        so that it is the same on every rank whatever its layers are called.
        """
        if self.sparse_as_dense:
            grads = [_dense(grad) for grad in grads]
        if not communicates(self.process_set):
            return list(grads)
        ranks = len(members(self.process_set))
        results = [_with_tensors(grad) for grad in grads]
        own_factor = 1 / ranks if self.scale_local_gradients else 1.0
        op, before, after = self.op, 1.0, 1.0
        if self._takes_parts():
            op, own_factor = Sum, own_factor * ranks
        elif op == Average:
            before, after = 1 / self.predivide, self.predivide
        averaged, overwritten = [], []
        for i, variable in enumerate(variables):
            if results[i] is None:
                continue
            if self.is_local(variable):
                results[i] = _times(results[i], own_factor)
            elif getattr(variable, "overwrite_with_gradient", False):
                overwritten.append(i)  # the variable's next value: see Keras' float8
            else:
                averaged.append(i)
        name = f"{self.name}.{_signature([results[i] for i in averaged])}"
        for number, places in enumerate(self._split(averaged, variables)):
            own = [_times(results[i], before) for i in places]
            group = f"{name}.{number}"
            if self.compresses:
                of = [variables[i] for i in places]
                reduced = self.compression.reduce_gradients(own, of, group, op, self.process_set)
            else:
                reduced = grouped_allreduce(
                    own,
                    op=op,
                    compression=self.compression,
                    process_set=self.process_set,
                    name=group,
                    **self.devices,
                )
            for i, grad in zip(places, reduced, strict=True):
                grad = _times(grad, after)
                results[i] = _sum_rows(grad) if self.sum_rows else grad
        if overwritten:
            own = [results[i] for i in overwritten]
            largest = grouped_allreduce(
                own, op=Max, process_set=self.process_set, name=f"{name}.max"
            )
            for i, value in zip(overwritten, largest, strict=True):
                results[i] = value
        return results

    def _split(self, places: list[int], variables: Sequence[Any]) -> list[list[int]]:
        """Divide the places of gradients into groups."""
        if self.groups is None or not places:
            return [places] if places else []
        if isinstance(self.groups, int):
            size = -(-len(places) // min(self.groups, len(places)))
            return [places[i : i + size] for i in range(0, len(places), size)]
        by_key = {self.key(variables[i]): i for i in places}
        listed = [[by_key.pop(key) for key in group if key in by_key] for group in self.groups]
        return [group for group in listed if group] + [[i] for i in by_key.values()]

    def _description(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[str]:
        """Describe in lines what this rank is going to exchange."""
        compression = getattr(self.compression, "__name__", self.compression)
        lines = [
            f"op={NAMES.get(self.op, self.op)}, compression={compression}, "
            f"backward_passes_per_step={self.passes}, "
            f"gradient_predivide_factor={self.predivide}, "
            f"groups={self.groups if isinstance(self.groups, int) else bool(self.groups)}"
        ]
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            sparse = isinstance(grad, tf.IndexedSlices) and not self.sparse_as_dense
            kind = f"a {'sparse' if sparse else 'dense'} gradient"
            kind = "no gradient" if grad is None else kind
            kind = "a local variable" if self.is_local(variable) else kind
            dtype = keras.backend.standardize_dtype(variable.dtype)
            lines.append(f"{kind} as number {i + 1} ({dtype} {tuple(variable.shape)})")
        return lines


def reducers_of(optimizer: Any) -> list[GradientReducer]:
    """Return the reducers of an optimizer and of those it passes its gradients to."""
    own = vars(optimizer).get("_reducer")
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", [])]
    below = [reducer for each in inner if each is not None for reducer in reducers_of(each)]
    return [own, *below] if own is not None else below


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


def _checked_groups(groups: Any, key: Callable[[Any], Hashable]) -> Any:
    """Return None, a count, or a tuple of tuples of the variables' keys."""
    counted = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    listed = isinstance(groups, list | tuple) and all(isinstance(g, list | tuple) for g in groups)
    must = "be None, a count of at least 1, or a list of lists of variables"
    require(groups is None or counted or listed, "groups", must, groups)
    return tuple(tuple(map(key, group)) for group in groups) if listed else groups


def _signature(grads: Sequence[Any]) -> str:
    """Return a short text that differs when number, shapes or dtypes of the gradients differ."""
    text = repr([(grad.dtype.name, str(grad.shape), type(grad).__name__[:2]) for grad in grads])
    return f"{len(grads)}gradients.{zlib.crc32(text.encode()):08x}"


def _dense(grad: Any) -> Any:
    return tf.convert_to_tensor(grad) if isinstance(grad, tf.IndexedSlices) else grad


def _with_tensors(grad: Any) -> Any:
    """Return sparse gradients made of tensors: TensorFlow takes tuples for indices and shape."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    shape = None if grad.dense_shape is None else tf.convert_to_tensor(grad.dense_shape)
    values, indices = tf.convert_to_tensor(grad.values), tf.convert_to_tensor(grad.indices)
    return tf.IndexedSlices(values, indices, shape)


def _sum_rows(grad: Any) -> Any:
    """Return sparse gradients with each row once: the square of a sum is not that of its parts."""
    if not isinstance(grad, tf.IndexedSlices):
        return grad
    indices, places = tf.unique(grad.indices)
    values = tf.math.unsorted_segment_sum(grad.values, places, tf.size(indices))
    return tf.IndexedSlices(values, indices, grad.dense_shape)


def _times(grad: Any, factor: float) -> Any:
    if factor == 1:
        return grad
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values * tf.constant(factor, grad.values.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad * tf.constant(factor, grad.dtype)  # tf.cast would round it to float32
