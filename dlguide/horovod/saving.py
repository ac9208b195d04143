"""Open a saved model for training on ranks."""

from __future__ import annotations

from typing import Any

import keras

from dlguide.horovod.loss_scale import exchanges
from dlguide.horovod.native import Compression
from dlguide.horovod.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_optimizers: list[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Open a saved model with its optimizer made distributed, state and all.

    No communication: every rank opens the file, or rank 0 does and the others receive it with
    `hvd.callbacks.BroadcastGlobalVariablesCallback(0)`. It does not matter whether the model was
    saved by a distributed optimizer or a plain one.

    Args:
        filepath: a `.keras` or `.h5` file.
        custom_optimizers: optimizer classes of one's own that the file may name.
        custom_objects: names and classes or functions that the file may name.
        compression: `Compression.none` or `Compression.fp16`, for the optimizer.
        legacy_opts: must be False: Keras 3 has no legacy optimizers.

    Returns:
        keras.Model: the model; without an optimizer when it was saved without.

    Raises:
        ValueError: for `legacy_opts=True`.
    """
    if legacy_opts:
        raise ValueError("`legacy_opts` must be False: Keras 3 has no legacy optimizers.")
    objects = {cls.__name__: cls for cls in custom_optimizers or []}
    model = keras.models.load_model(filepath, custom_objects={**objects, **(custom_objects or {})})
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not exchanges(optimizer):
        DistributedOptimizer(optimizer, compression=compression)
    return model
