"""Open a saved model for training on ranks."""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import keras
import numpy as np
from keras.src.legacy.saving import legacy_h5_format

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
        custom_objects: names and classes or functions that the file may name; under the name of
            the optimizer's class also a function that makes one, as Horovod takes it.
        compression: `Compression.none` or `Compression.fp16`, for the optimizer.
        legacy_opts: must be False: Keras 3 has no legacy optimizers.

    Returns:
        keras.Model: the model; without an optimizer when it was saved without.

    Raises:
        ValueError: for `legacy_opts=True`.
    """
    if legacy_opts:
        raise ValueError("`legacy_opts` must be False: Keras 3 has no legacy optimizers.")
    objects = {cls.__name__: cls for cls in custom_optimizers or []} | (custom_objects or {})
    for name in set(_classes(_saved_optimizer(filepath))) & objects.keys():
        if inspect.isfunction(objects[name]):
            objects[name] = _class_of(objects[name])
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model
    if h5py.is_hdf5(filepath):
        optimizer = model.optimizer = _with_state(optimizer, model, filepath)
    if not exchanges(optimizer):
        DistributedOptimizer(optimizer, compression=compression)
    return model


def _saved_optimizer(filepath: Any) -> Any:
    """Return the configuration of the optimizer that a model was saved with; empty if none."""
    if zipfile.is_zipfile(filepath):
        with zipfile.ZipFile(filepath) as archive:
            config = json.loads(archive.read("config.json"))
        return (config.get("compile_config") or {}).get("optimizer") or {}
    if h5py.is_hdf5(filepath):
        with h5py.File(filepath) as file:
            return json.loads(file.attrs.get("training_config", "{}")).get("optimizer_config") or {}
    return {}


def _classes(config: Any) -> Iterator[str]:
    """Go through the names of the classes in a configuration, those inside others too."""
    if isinstance(config, dict):
        yield from (config[key] for key in ("class_name", "registered_name") if config.get(key))
        for value in config.values():
            yield from _classes(value)


def _class_of(make: Callable[..., Any]) -> type:
    """Return what Keras takes for a class: it would hand a function on without calling it."""

    class Made:
        @staticmethod
        def from_config(config: dict[str, Any]) -> Any:
            settings = {
                key: keras.saving.deserialize_keras_object(value)
                if isinstance(value, dict)
                else value
                for key, value in config.items()
            }
            return make(**settings)

    return Made


def _with_state(optimizer: Any, model: keras.Model, filepath: Any) -> Any:
    """Return an optimizer with the state in an `.h5` file, which Keras 3 leaves there.

    It builds the optimizer for the weights that the model itself owns, not for those of its
    layers: none, for most models, and an optimizer built for nothing cannot train.
    """
    with h5py.File(filepath) as file:
        if "optimizer_weights" not in file:
            return optimizer
        stored = legacy_h5_format.load_optimizer_weights_from_hdf5_group(file)
        state = [np.asarray(values) for values in stored]
    whole = type(optimizer).from_config(optimizer.get_config())
    whole.build(model.trainable_variables)
    whole.set_weights(state)
    return whole
