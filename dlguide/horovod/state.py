"""The state of a model on ranks: variables broadcast, a saved model opened for training."""

from __future__ import annotations

import inspect
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf
from keras.src.legacy.saving import legacy_h5_format

from dlguide.errors import require
from dlguide.horovod.guard import require_alike
from dlguide.horovod.native import Compression, ProcessSet, communicates, global_process_set
from dlguide.horovod.ops import broadcast, require_root
from dlguide.horovod.optimizer import DistributedOptimizer
from dlguide.horovod.reduction import reducers_of


def broadcast_variables(
    variables: Any,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Assign every rank the values that the variables have on one rank.

    The variables have the same shapes in the same order on all ranks; their names do not matter.

    Args:
        variables: a `keras.Variable` or `tf.Variable`, or several, such as `model.weights`.
        root_rank: the rank whose values are sent (global rank, also within a process set).
        inplace: accepted for compatibility; the result is the same.

    Raises:
        TypeError: when something is not a variable.
        ValueError: when `root_rank` is not a rank of the set.
    """
    targets = [_tf_variable(variable) for variable in _listed(variables)]
    require_root(root_rank, process_set)
    if not communicates(process_set) or not targets:
        return
    described = [
        f"{keras.backend.standardize_dtype(t.dtype)} {tuple(t.shape)} as number {i + 1}"
        for i, t in enumerate(targets)
    ]
    require_alike(described, "The variables of a broadcast", process_set)

    def assign() -> None:
        for i, target in enumerate(targets):
            value = broadcast(
                target, root_rank, f"broadcast.{i + 1}of{len(targets)}", process_set=process_set
            )
            target.assign(value)

    # One graph, so that all broadcasts run together; traced each time, because it runs once.
    graph = tf.function(assign, autograph=False)
    graph._omit_frequent_tracing_warning = True
    graph()


def broadcast_global_variables(root_rank: int, model: keras.Model | None = None) -> None:
    """Assign every rank the weights and the optimizer's state that a model has on one rank.

    Keras 3 keeps no list of all variables, so that the model must be passed. Seeds of random
    layers remain different: dropout must not be the same everywhere.

    Raises:
        RuntimeError: when no model is given.
        ValueError: when `root_rank` is not a rank.
    """
    if model is None:
        raise RuntimeError(
            "Keras 3 has no list of all variables. Pass the model: "
            f"`hvd.broadcast_global_variables({root_rank}, model=model)`, or the variables: "
            f"`hvd.broadcast_variables(model.weights, root_rank={root_rank})`."
        )
    broadcast_variables(model_state(model), root_rank)


def model_state(model: keras.Model) -> list[keras.Variable]:
    """Return the weights of a model and the variables of its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    return [*model.weights, *(optimizer.variables if optimizer is not None else [])]


def _listed(variables: Any) -> list[Any]:
    if isinstance(variables, keras.Variable | tf.Variable):
        return [variables]
    must = "be a variable or a list of them"
    require(isinstance(variables, Iterable), "variables", must, variables)
    return list(variables)


def _tf_variable(variable: Any) -> Any:
    target = variable.value if isinstance(variable, keras.Variable) else variable
    if not hasattr(target, "assign"):
        raise TypeError(
            "`variables` must be `keras.Variable` or `tf.Variable`, got "
            f"{type(variable).__name__}. Pass `model.weights`, not `model.get_weights()`."
        )
    return target


def load_model(
    filepath: Any,
    custom_optimizers: list[type] | None = None,
    custom_objects: dict[str, Any] | None = None,
    compression: type = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Open a saved model with its optimizer, state included, made distributed.

    No communication: every rank opens the file, or rank 0 does and the others receive it with
    `hvd.callbacks.BroadcastGlobalVariablesCallback(0)`. The model may have been saved with a
    distributed optimizer or a plain one.

    Args:
        filepath: a `.keras` or `.h5` file.
        custom_optimizers: your own optimizer classes that the file may name.
        custom_objects: names and classes or functions that the file may name; under the name of
            the optimizer's class also a function that makes one, as in Horovod.
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
    if not reducers_of(optimizer):
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
    """Yield the names of the classes in a configuration, nested ones too."""
    if isinstance(config, dict):
        yield from (config[key] for key in ("class_name", "registered_name") if config.get(key))
        for value in config.values():
            yield from _classes(value)


def _class_of(make: Callable[..., Any]) -> type:
    """Return what Keras accepts as a class: a function it would pass on without calling it."""

    class Made:
        @staticmethod
        def from_config(config: dict[str, Any]) -> Any:
            nested = {key: value for key, value in config.items() if isinstance(value, dict)}
            made = map(keras.saving.deserialize_keras_object, nested.values())
            return make(**config | dict(zip(nested, made, strict=True)))

    return Made


def _with_state(optimizer: Any, model: keras.Model, filepath: Any) -> Any:
    """Return an optimizer with the state in an `.h5` file, which Keras 3 does not load.

    Keras builds the optimizer for the weights that the model itself owns, not for those of its
    layers: none, for most models, and an optimizer built for no weights cannot train.
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
