"""Variables made equal on all ranks: what must happen once before training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.collectives import broadcast
from dlguide.horovod.guard import agree
from dlguide.horovod.native import ProcessSet, communicates, global_process_set
from dlguide.horovod.wire import check_root


def broadcast_variables(
    variables: Any,
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> None:
    """Give every rank the values that the variables have on one rank.

    Called by all ranks of the set, with variables of the same shapes in the same order; their
    names do not matter. Moves each variable's bytes once to each rank.

    Args:
        variables: a `keras.Variable` or `tf.Variable`, or several, such as `model.weights`.
        root_rank: the rank whose values count.
        process_set: the ranks that take part.
        inplace: taken for Horovod's sake; saves a copy there, means the same.

    Raises:
        TypeError: when something is not a variable.
        ValueError: when `root_rank` is not a rank of the set.
    """
    targets = [_tf_variable(variable) for variable in _listed(variables)]
    check_root(root_rank, process_set)
    if not communicates(process_set) or not targets:
        return
    agree(
        [
            f"{keras.backend.standardize_dtype(t.dtype)} {tuple(t.shape)} as number {i + 1}"
            for i, t in enumerate(targets)
        ],
        "The variables of a broadcast",
        process_set,
    )

    def assign() -> None:
        for i, target in enumerate(targets):
            value = broadcast(
                target, root_rank, f"broadcast.{i + 1}of{len(targets)}", process_set=process_set
            )
            target.assign(value)

    # One graph, so that all broadcasts are under way together; traced anew, since it is run once.
    graph = tf.function(assign, autograph=False)
    graph._omit_frequent_tracing_warning = True
    graph()


def broadcast_global_variables(root_rank: int, model: keras.Model | None = None) -> None:
    """Give every rank the weights and the optimizer's state that a model has on one rank.

    Keras 3 keeps no list of all variables, so that the model must be named. Seeds of random
    layers stay each rank's own: dropout must not be the same everywhere.

    Args:
        root_rank: the rank whose values count.
        model: the model; with an optimizer when it is compiled.

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
    require(
        isinstance(variables, Iterable), "variables", "be a variable or a list of them", variables
    )
    return list(variables)


def _tf_variable(variable: Any) -> Any:
    target = variable.value if isinstance(variable, keras.Variable) else variable
    if not hasattr(target, "assign"):
        raise TypeError(
            "`variables` must be `keras.Variable` or `tf.Variable`, got "
            f"{type(variable).__name__}. Pass `model.weights`, not `model.get_weights()`."
        )
    return target
