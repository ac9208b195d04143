"""Keras optimizers that combine the gradients of all ranks before they apply them."""

from __future__ import annotations

import copy
import functools
from typing import Any

import keras
import tensorflow as tf
from keras.src import api_export
from keras.src.callbacks.callback_list import CallbackList
from keras.src.saving import object_registration
from keras.src.saving.keras_saveable import KerasSaveable

from dlguide.errors import require
from dlguide.horovod.guard import check_interval, require_equal_steps
from dlguide.horovod.native import (
    Average,
    Compression,
    Min,
    ProcessSet,
    Sum,
    communicates,
    global_process_set,
    require_ours,
)
from dlguide.horovod.ops import allreduce
from dlguide.horovod.reduction import GradientReducer, parts_of, reducers_of


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    *,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
    check_every: int | None = None,
    **others: Any,
) -> keras.optimizers.Optimizer:
    """Make an optimizer average the gradients of all ranks before it applies them.

        w <- update(w, (g_0 + ... + g_(p-1)) / p)

    The optimizer itself becomes distributed and is returned; it keeps its state, stays an instance
    of its class and is saved as the plain optimizer, so that a saved model opens with Horovod and
    without. Clipping and moving averages work on the averaged gradients; with
    `gradient_accumulation_steps` the ranks exchange once an update. All ranks must apply equally
    often. Adasum, which combines updates rather than gradients, is not supported, nor is XLA
    (`jit_compile=True`), for which Horovod has no kernels.

    With a `LossScaleOptimizer` all ranks skip a step together when the gradients of one overflow.
    In half precision those of a rank's part of a batch can overflow where those of the whole do
    not, and the other way round: now and then the ranks skip another step than one process.

    Args:
        optimizer: any Keras 3 optimizer, built or not.
        name: prefix of the operators' names, as stall messages and the timeline show them.
        compression: `Compression.none`, `Compression.fp16`, or a compressor made for this training
            by `dlguide.parallel.compression`.
        sparse_as_dense: convert sparse gradients (of embeddings) to dense ones first.
        op: Average or Sum.
        groups: None sends all gradients of a dtype as one group; a count splits them into this
            many.
        process_set: the ranks that average; others apply their own gradients.
        check_every: updates between two checks that all ranks hold equal weights, 0 for never;
            None takes the environment's DLGUIDE_HVD_CHECK_EVERY, or 100.
        others: options of Horovod that ask for nothing, such as `backward_passes_per_step=1`.

    Returns:
        keras.optimizers.Optimizer: `optimizer`.

    Raises:
        TypeError: when it is no Keras optimizer, or an option is not supported.
        ValueError: when an argument is out of range, or the optimizer is distributed already.
    """
    require_ours("DistributedOptimizer", others)
    _require_optimizer(optimizer, op, compression)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    reducer = GradientReducer(
        name or f"Distributed{type(optimizer).__name__}",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=groups,
        process_set=process_set,
        passes=inner.gradient_accumulation_steps or 1,
        check_every=check_interval(check_every),
    )
    _distribute(optimizer, reducer)
    return optimizer


def _distribute(optimizer: Any, reducer: GradientReducer) -> None:
    distributed = _distributed_class(type(optimizer), reducer)
    object.__setattr__(optimizer, "__class__", distributed)
    distributed._set_reducer(optimizer, reducer)


def _require_optimizer(optimizer: Any, op: int, compression: Any) -> None:
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


def _distributed_class(base: type, template: GradientReducer) -> type:
    """Make a subclass of an optimizer's class that exchanges gradients like `template`."""

    class _Distributed(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._set_reducer(copy.copy(template))

        def _set_reducer(self, reducer: GradientReducer) -> None:
            # Past Keras, which would take them for state of the optimizer.
            object.__setattr__(self, "_reducer", reducer)

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            given = trainable_variables
            variables = list(self._trainable_variables if given is None else given)
            if not grads or len(grads) != len(variables):
                return super().apply(grads, trainable_variables)  # raises with the reason
            grads = self._reducer.prepare(list(grads), variables)
            if _accumulates(self, variables):
                return super().apply(_reduce_accumulated(self, grads, variables), variables)
            return super().apply(self._reducer.reduce(grads, variables), variables)

        @property
        def variables(self) -> CallableList:
            return CallableList(super().variables)

        @property
        def process_set(self) -> ProcessSet:
            return self._reducer.process_set

        def __dir__(self) -> list[str]:
            # The names of the plain optimizer: Keras compares them when it (de)serializes.
            own = {"_reducer", "_set_reducer", "process_set"}
            return [name for name in super().__dir__() if name not in own]

    _Distributed.__name__, _Distributed.__qualname__ = base.__name__, base.__qualname__
    _Distributed.__doc__ = base.__doc__
    # Saved under the plain optimizer's name, so that a model opens without Horovod.
    for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
        if base in names:
            names[_Distributed] = names[base]
    return _Distributed


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
    """Make `LossScaleOptimizer` ask all ranks for overflows.

    It decides from the gradients it is given whether to apply them. Around a distributed optimizer
    these are still each rank's own: one rank would skip the step while the others wait for it.
    (Keras adds a loss scale by itself with the policy `mixed_float16`.)
    """
    plain = keras.optimizers.LossScaleOptimizer.check_finite
    if getattr(plain, "asks_all_ranks", False):
        return

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


def keep_in_copies() -> None:
    """Make copies of distributed optimizers distributed, alone and in what holds them.

    `copy`, `pickle` and cloudpickle take what Keras would save, which is plain.
    """
    plain = KerasSaveable.__reduce__
    if getattr(plain, "keeps_reducers", False):
        return

    def __reduce__(self: Any) -> tuple[Any, ...]:
        optimizer = _optimizer_of(self)
        parts = [] if optimizer is None else parts_of(optimizer)
        reducers = [vars(part).get("_reducer") for part in parts]
        make, saved = plain(self)
        return (make, saved) if not any(reducers) else (_distributed_copy, (*saved, reducers))

    __reduce__.keeps_reducers = True
    KerasSaveable.__reduce__ = __reduce__


def _optimizer_of(saved: Any) -> Any:
    """Return the optimizer that a Keras object is or holds, or None."""
    found = saved if isinstance(saved, keras.optimizers.Optimizer) else vars(saved).get("optimizer")
    return found if isinstance(found, keras.optimizers.Optimizer) else None


def _distributed_copy(saved: Any, reducers: list[GradientReducer | None]) -> Any:
    """Open what Keras has saved, and distribute the optimizers that were."""
    made = KerasSaveable._unpickle_model(saved)
    for part, reducer in zip(parts_of(_optimizer_of(made)), reducers, strict=False):
        if reducer is not None and "_reducer" not in vars(part):
            _distribute(part, copy.copy(reducer))
    return made


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
keep_in_copies()
compare_steps()
