"""Keras optimizers that combine the gradients of all ranks before they apply them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras.src import api_export
from keras.src.saving import object_registration

from dlguide.errors import require, require_count
from dlguide.horovod.exchange import Exchange, Passes, Sums
from dlguide.horovod.guard import check_every as checked_every
from dlguide.horovod.guard import refuse_synchronized_layers
from dlguide.horovod.loss_scale import agree_on_finite, exchanges
from dlguide.horovod.native import Average, Compression, ProcessSet, Sum, global_process_set
from dlguide.horovod.reduction import reduction

agree_on_finite()
refuse_synchronized_layers()


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

    The optimizer itself becomes distributed and is returned, with all it has learnt so far; it
    stays an instance of its class and is saved as the plain optimizer it was, so that a saved
    model opens with Horovod and without. Clipping, loss scales, moving averages and Keras' own
    gradient accumulation work on the averaged gradients. All ranks must apply as often as the
    others. Leaves out Adasum, which combines updates rather than gradients, and XLA
    (`jit_compile=True`), for which Horovod has no kernels.

    Args:
        optimizer: any Keras 3 optimizer, built or not.
        name: prefix of the operators' names, as stall messages and the timeline show them.
        device_dense: device for the exchange of tensors; empty leaves it to TensorFlow.
        device_sparse: device for the exchange of `tf.IndexedSlices`.
        compression: `Compression.none`, `Compression.fp16`, or a compressor made for this training
            by `dlguide.parallel.compression`.
        sparse_as_dense: turn sparse gradients (of embeddings) into dense ones first.
        gradient_predivide_factor: divide by it before the sum, and by p / factor after.
        op: Average or Sum.
        backward_passes_per_step: exchange and apply at every so many calls; the gradients of the
            calls between are added up on each rank. `iterations` counts calls.
        average_aggregated_gradients: divide these sums by `backward_passes_per_step`.
        num_groups: the old form of `groups`.
        groups: None sends all gradients of a dtype as one group; a count splits them into so
            many; lists of variables name the groups (others go alone).
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
    _check_optimizer(optimizer)
    require(
        op in (Average, Sum),
        "op",
        "be Average or Sum",
        op,
        "Adasum, Min, Max and Product work in `hvd.allreduce`.",
    )
    passes = require_count(backward_passes_per_step, "backward_passes_per_step")
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
        "hand over gradients without a loss scale where `compression` remembers errors",
        optimizer.name,
        "The scale changes, what is remembered does not: use "
        "`LossScaleOptimizer(hvd.DistributedOptimizer(optimizer, compression=...))`.",
    )
    settings = reduction(
        f"Distributed{type(optimizer).__name__}",
        name=name,
        groups=groups,
        num_groups=num_groups,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        key=optimizer._var_key,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    exchange = Exchange(
        settings, Passes(passes, average_aggregated_gradients), checked_every(check_every)
    )
    distributed = _distributed_class(type(optimizer), exchange)
    object.__setattr__(optimizer, "__class__", distributed)
    object.__setattr__(optimizer, "_exchange", exchange)
    return optimizer


def PartialDistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: int = Average,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: keras.Layer | Sequence[keras.Layer] | None = None,
    scale_local_gradients: bool = True,
) -> keras.optimizers.Optimizer:
    """Make an optimizer average the gradients of all layers but the local ones.

    A local layer is trained by its rank's own data alone, as in model parallelism.

    Args:
        optimizer: any Keras 3 optimizer.
        name: see `DistributedOptimizer`, as for all arguments that are not named here.
        device_dense: see there.
        device_sparse: see there.
        compression: see there.
        sparse_as_dense: see there.
        gradient_predivide_factor: see there.
        op: see there.
        groups: see there.
        process_set: see there.
        local_layers: one built layer, or several, whose gradients stay on their rank.
        scale_local_gradients: divide the gradients of local variables by p.

    Returns:
        keras.optimizers.Optimizer: `optimizer`.

    Raises:
        ValueError: when `local_layers` are no layers.
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or [])
    are_layers = all(isinstance(layer, keras.Layer) for layer in layers)
    require(are_layers, "local_layers", "be Keras layers", local_layers)
    DistributedOptimizer(
        optimizer,
        name=name,
        device_dense=device_dense,
        device_sparse=device_sparse,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        gradient_predivide_factor=gradient_predivide_factor,
        op=op,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    for layer in layers:
        for variable in layer.trainable_weights:
            optimizer.register_local_var(variable)
    return optimizer


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be an optimizer of Keras 3, such as `keras.optimizers.SGD(0.1)`, "
            f"got {type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    require(
        not exchanges(optimizer),
        "optimizer",
        "be one that is not distributed yet",
        optimizer.name,
        "Wrap it once: averaging twice changes nothing but the cost.",
    )


class CallableList(list):
    """A list that returns itself when called: `optimizer.variables` and `.variables()`."""

    def __call__(self) -> CallableList:
        return self


def _distributed_class(base: type, template: Exchange) -> type:
    """Make a subclass of an optimizer's class that exchanges gradients as `template` says."""

    class Distributed(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "_exchange", template.fresh())

        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            if trainable_variables is None:
                variables = list(self._trainable_variables)
            else:
                variables = list(trainable_variables)
            if not grads or len(grads) != len(variables):
                return super().apply(grads, trainable_variables)  # it says what is wrong
            return self._exchange.step(self, super().apply, list(grads), variables)

        def register_local_var(self, var: Any) -> None:
            """Keep the gradients of a variable on their rank."""
            self._exchange.local.add(self._var_key(var))

        @property
        def variables(self) -> CallableList:
            return CallableList(super().variables)

        @property
        def process_set(self) -> ProcessSet:
            return self._exchange.reduction.process_set

        @property
        def _agg_helper(self) -> Sums | None:
            return self._exchange.sums

        def __dir__(self) -> list[str]:
            # What the plain optimizer shows: Keras compares it before and after serialization.
            own = {"_exchange", "_agg_helper", "register_local_var", "process_set"}
            return [name for name in super().__dir__() if name not in own]

    Distributed.__name__, Distributed.__qualname__ = base.__name__, base.__qualname__
    Distributed.__doc__ = base.__doc__
    # Saved under the plain optimizer's name, so that a model opens without Horovod.
    for names in (api_export.REGISTERED_OBJS_TO_NAMES, object_registration.GLOBAL_CUSTOM_NAMES):
        if base in names:
            names[Distributed] = names[base]
    return Distributed
