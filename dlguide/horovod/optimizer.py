"""Keras optimizers that combine the gradients of all ranks before they apply them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src import api_export
from keras.src.callbacks.callback_list import CallbackList
from keras.src.saving import object_registration

from dlguide.errors import require, require_count
from dlguide.horovod.guard import check_interval, require_equal_steps
from dlguide.horovod.native import (
    Average,
    Compression,
    Min,
    ProcessSet,
    Sum,
    communicates,
    global_process_set,
)
from dlguide.horovod.ops import allreduce
from dlguide.horovod.reduction import GradientReducer, reducers_of


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    check_every: int | None = None,
) -> keras.optimizers.Optimizer:
    """Make an optimizer average the gradients of all ranks before it applies them.

        w <- update(w, (g_0 + ... + g_(p-1)) / p)

    The optimizer itself becomes distributed and is returned; it keeps its state, stays an instance
    of its class and is saved as the plain optimizer, so that a saved model opens with Horovod and
    without. Clipping, moving averages and Keras' own gradient accumulation work on the averaged
    gradients. All ranks must apply equally often. Adasum, which combines updates rather than
    gradients, is not supported, nor is XLA (`jit_compile=True`), for which Horovod has no kernels.

    With a `LossScaleOptimizer` a rank's gradients are its part of the mean over all ranks, and all
    ranks skip a step together when those of one overflow. In half precision parts can overflow
    whose sum does not, and the other way round: now and then the ranks skip another step than one
    process with the whole batch.

    Args:
        optimizer: any Keras 3 optimizer, built or not.
        name: prefix of the operators' names, as stall messages and the timeline show them.
        device_dense: device for the exchange of tensors; empty leaves it to TensorFlow.
        device_sparse: device for the exchange of `tf.IndexedSlices`.
        compression: `Compression.none`, `Compression.fp16`, or a compressor made for this training
            by `dlguide.parallel.compression`.
        sparse_as_dense: convert sparse gradients (of embeddings) to dense ones first.
        gradient_predivide_factor: divide by it before the sum, and by p / factor after.
        op: Average or Sum.
        backward_passes_per_step: exchange and apply once in this many calls; each rank adds up
            the gradients of the calls between. `iterations` counts calls.
        average_aggregated_gradients: divide these sums by `backward_passes_per_step`.
        num_groups: deprecated form of `groups`.
        groups: None sends all gradients of a dtype as one group; a count splits them into this
            many; lists of variables name the groups (each other variable is a group).
        process_set: the ranks that average; others apply their own gradients.
        scale_local_gradients: divide the gradients of local variables by p.
        check_every: updates between two checks that all ranks hold equal weights, 0 for never;
            None takes the environment's DLGUIDE_HVD_CHECK_EVERY, or 100.

    Returns:
        keras.optimizers.Optimizer: `optimizer`.

    Raises:
        TypeError: when it is no Keras optimizer.
        ValueError: when an argument is out of range, or the optimizer is distributed already.
    """
    passes = require_count(backward_passes_per_step, "backward_passes_per_step")
    _require_optimizer(optimizer, op, passes, compression)
    reducer = GradientReducer(
        name or f"Distributed{type(optimizer).__name__}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        num_groups=num_groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
        backward_passes_per_step=passes,
        check_every=check_interval(check_every),
        key=optimizer._var_key,
    )
    distributed = _distributed_class(type(optimizer), reducer, average_aggregated_gradients)
    object.__setattr__(optimizer, "__class__", distributed)
    distributed._set_reducer(optimizer, reducer)
    return optimizer


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    *args: Any,
    local_layers: keras.Layer | Sequence[keras.Layer] | None = None,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Make an optimizer average the gradients of all layers but the local ones.

    A local layer is trained on its rank's own data alone, as in model parallelism.

    Args:
        local_layers: one built layer, or several, whose gradients stay on their rank.
        options: those of `DistributedOptimizer`.

    Returns:
        keras.optimizers.Optimizer: `optimizer`.

    Raises:
        ValueError: when `local_layers` are no layers.
    """
    variables = trainable_of(local_layers)
    DistributedOptimizer(optimizer, *args, **options)
    for variable in variables:
        optimizer.register_local_var(variable)
    return optimizer


def trainable_of(layers: keras.Layer | Sequence[keras.Layer] | None) -> list[Any]:
    """Return the trainable weights of local layers."""
    listed = [layers] if isinstance(layers, keras.Layer) else list(layers or [])
    are_layers = all(isinstance(layer, keras.Layer) for layer in listed)
    require(are_layers, "local_layers", "be Keras layers", layers)
    return [variable for layer in listed for variable in layer.trainable_weights]


def _require_optimizer(optimizer: Any, op: int, passes: int, compression: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be an optimizer of Keras 3, such as `keras.optimizers.SGD(0.1)`, "
            f"got {type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    require(
        not reducers_of(optimizer),
        "optimizer",
        "be one that is not distributed yet",
        optimizer.name,
        "Wrap it once: averaging twice changes nothing but the cost.",
    )
    then = "Adasum, Min, Max and Product work in `hvd.allreduce`."
    require(op in (Average, Sum), "op", "be Average or Sum", op, then)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    require(
        passes == 1 or not inner.gradient_accumulation_steps,
        "backward_passes_per_step",
        "be 1 for an optimizer with `gradient_accumulation_steps`",
        passes,
    )
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    require(
        not (scaled and getattr(compression, "keeps_errors", False)),
        "optimizer",
        "pass on gradients without a loss scale where `compression` remembers errors",
        optimizer.name,
        "The scale changes, what is remembered does not: use "
        "`LossScaleOptimizer(hvd.DistributedOptimizer(optimizer, compression=...))`.",
    )


class CallableList(list):
    """A list that returns itself when called: `optimizer.variables` and `.variables()`."""

    def __call__(self) -> CallableList:
        return self


def _distributed_class(base: type, template: GradientReducer, average_passes: bool) -> type:
    """Make a subclass of an optimizer's class that exchanges gradients like `template`."""

    class _Distributed(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._set_reducer(template.copy())

        def _set_reducer(self, reducer: GradientReducer) -> None:
            # Past Keras, which would take them for state of the optimizer.
            object.__setattr__(self, "_reducer", reducer)
            sums = _PassSums(reducer.passes, average_passes) if reducer.passes > 1 else None
            object.__setattr__(self, "_agg_helper", sums)  # Horovod's name for it

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            given = trainable_variables
            variables = list(self._trainable_variables if given is None else given)
            if not grads or len(grads) != len(variables):
                return super().apply(grads, trainable_variables)  # raises with the reason
            grads = self._reducer.prepare(list(grads), variables)
            if self._agg_helper is not None:
                return self._agg_helper.apply(self, super().apply, grads, variables)
            if _accumulates(self, variables):
                return super().apply(_reduce_accumulated(self, grads, variables), variables)
            return super().apply(self._reducer.reduce(grads, variables), variables)

        def register_local_var(self, var: Any) -> None:
            """Keep the gradients of a variable on their rank."""
            self._reducer.local.add(self._var_key(var))

        @property
        def variables(self) -> CallableList:
            return CallableList(super().variables)

        @property
        def process_set(self) -> ProcessSet:
            return self._reducer.process_set

        def __dir__(self) -> list[str]:
            # The names of the plain optimizer: Keras compares them when it (de)serializes.
            own = {"_reducer", "_set_reducer", "_agg_helper", "register_local_var", "process_set"}
            return [name for name in super().__dir__() if name not in own]

    _Distributed.__name__, _Distributed.__qualname__ = base.__name__, base.__qualname__
    _Distributed.__doc__ = base.__doc__
    # Saved under the plain optimizer's name, so that a model opens without Horovod.
    for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
        if base in names:
            names[_Distributed] = names[base]
    return _Distributed


class _PassSums:
    """Gradients of `counter` backward passes, added up on this rank alone."""

    def __init__(self, passes: int, average: bool) -> None:
        self.passes, self.average = passes, average
        self.counter: tf.Variable | None = None
        self.buffers: list[tf.Variable | None] = []

    def apply(
        self, optimizer: Any, apply: Callable[..., Any], grads: list[Any], variables: list[Any]
    ) -> None:
        """Add the gradients of one pass; exchange and apply the sums after the last pass."""
        reducer = optimizer._reducer
        require(
            reducer.sparse_as_dense or not any(isinstance(g, tf.IndexedSlices) for g in grads),
            "sparse_as_dense",
            "be True when gradients are sparse and `backward_passes_per_step` is above 1",
            reducer.sparse_as_dense,
        )
        self._add([None if grad is None else tf.convert_to_tensor(grad) for grad in grads])

        def update() -> tf.Tensor:
            sums = reducer.reduce(self._take(), variables)
            if self.average:
                sums = [None if s is None else s / tf.cast(self.passes, s.dtype) for s in sums]
            apply(sums, variables)
            return tf.constant(True)

        def wait() -> tf.Tensor:
            optimizer.iterations.assign_add(1)
            return tf.constant(False)

        _build(optimizer, variables)
        tf.cond(self.counter == self.passes, update, wait)

    def _add(self, grads: Sequence[Any]) -> None:
        if self.counter is None:
            with tf.init_scope():
                self.counter = tf.Variable(0, trainable=False)
                self.buffers = [
                    None if g is None else tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False)
                    for g in grads
                ]
        for buffer, grad in zip(self.buffers, grads, strict=True):
            if buffer is not None:
                buffer.assign_add(grad)
        self.counter.assign_add(1)

    def _take(self) -> list[Any]:
        """Return the sums and start again from zero."""
        sums = [None if buffer is None else buffer.read_value() for buffer in self.buffers]
        for buffer in self.buffers:
            if buffer is not None:
                buffer.assign(tf.zeros_like(buffer))
        self.counter.assign(0)
        return sums


def _accumulates(optimizer: Any, variables: list[Any]) -> bool:
    """Return whether Keras accumulates gradients in an optimizer that exchanges them."""
    replaced = any(getattr(v, "overwrite_with_gradient", False) for v in variables)
    steps = optimizer.gradient_accumulation_steps
    return bool(steps) and not replaced and communicates(optimizer._reducer.process_set)


def _reduce_accumulated(optimizer: Any, grads: list[Any], variables: list[Any]) -> list[Any]:
    """Exchange with Keras' own gradient accumulation: once an update, not once a pass.

    In the pass that updates, Keras applies (accumulated + gradient) / steps. That sum is formed
    and exchanged here, and the accumulators are set to zero, so that Keras finds it whole.
    """
    _build(optimizer, variables)
    places = [i for i, grad in enumerate(grads) if grad is not None]
    own = [tf.convert_to_tensor(grads[i]) for i in places]
    kept = [
        optimizer._accumulated_gradients[optimizer._get_variable_index(variables[i])].value
        for i in places
    ]
    scale = optimizer.loss_scale_factor or 1.0  # accumulators hold unscaled gradients

    def exchange() -> list[Any]:
        sums = [
            g + tf.constant(scale, g.dtype) * tf.cast(k, g.dtype)
            for g, k in zip(own, kept, strict=True)
        ]
        for variable in kept:
            variable.assign(tf.zeros_like(variable))
        return optimizer._reducer.reduce(sums, [variables[i] for i in places])

    passes = optimizer._iterations.value + 1
    updates = tf.equal(passes % optimizer.gradient_accumulation_steps, 0)
    reduced = tf.cond(updates, exchange, lambda: list(own))
    result = list(grads)
    for i, grad in zip(places, reduced, strict=True):
        result[i] = grad
    return result


def _build(optimizer: Any, variables: list[Any]) -> None:
    """Build an optimizer for its variables, as its own `apply` would."""
    if not optimizer.built:
        with keras.name_scope(optimizer.name):
            optimizer.build(variables)
        optimizer.built = True


def agree_on_overflow() -> None:
    """Make `LossScaleOptimizer` scale a rank's part of the loss, and ask all ranks for overflows.

    It decides from the gradients it is given whether to apply them. Around a distributed optimizer
    these are still each rank's own: one rank would skip the step while the others wait for it.
    (Keras adds a loss scale by itself with the policy `mixed_float16`.)
    """
    plain = keras.optimizers.LossScaleOptimizer.check_finite
    plain_scale = keras.optimizers.LossScaleOptimizer.scale_loss
    if getattr(plain, "asks_all_ranks", False):
        return

    def scale_loss(self: Any, loss: Any) -> Any:
        for reducer in reducers_of(self):
            loss = reducer.part_of_mean(loss)
        return plain_scale(self, loss)

    def check_finite(self: Any, grads: list[Any]) -> Any:
        finite = plain(self, grads)
        for reducer in reducers_of(self.inner_optimizer):
            if communicates(reducer.process_set):
                everywhere = allreduce(
                    tf.cast(finite, tf.int32),
                    "loss_scale.finite",
                    op=Min,
                    process_set=reducer.process_set,
                )
                finite = tf.cast(everywhere, tf.bool)
        return finite

    check_finite.asks_all_ranks = True
    keras.optimizers.LossScaleOptimizer.check_finite = check_finite
    keras.optimizers.LossScaleOptimizer.scale_loss = scale_loss


def compare_steps() -> None:
    """Make `fit` compare the ranks' numbers of batches before it trains a distributed optimizer."""
    plain = CallbackList.on_train_begin
    if getattr(plain, "compares_steps", False):
        return

    @functools.wraps(plain)
    def on_train_begin(self: Any, logs: dict | None = None) -> Any:
        optimizer = getattr(self.model, "optimizer", None)
        for reducer in [] if optimizer is None else reducers_of(optimizer)[:1]:
            require_equal_steps((self.params or {}).get("steps"), reducer.process_set)
        return plain(self, logs)

    on_train_begin.compares_steps = True
    CallbackList.on_train_begin = on_train_begin


agree_on_overflow()
compare_steps()
