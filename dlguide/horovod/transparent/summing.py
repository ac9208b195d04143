"""Metrics and other state of all ranks made one, at the end of an epoch or evaluation."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dlguide.horovod.native import Average, Sum
from dlguide.horovod.ops import allreduce, grouped_allreduce
from dlguide.horovod.state import broadcast_variables
from dlguide.horovod.transparent.session import Session
from dlguide.horovod.transparent.step import Counts, metric_state, own_state


def sum_metrics(model: keras.Model) -> None:
    """Combine the variables of a model's metrics over the ranks; all ranks must call.

    Keras says of each variable how several copies become one; most are sums over samples, so
    that the result is that of one process.
    """
    state = metric_state(model)
    how = [getattr(variable, "aggregation", "sum") for variable in state]
    _combine([v for v, each in zip(state, how, strict=True) if each == "sum"], "metrics", Sum)
    _combine([v for v, each in zip(state, how, strict=True) if each == "mean"], "means", Average)
    rest = [v for v, each in zip(state, how, strict=True) if each not in ("sum", "mean")]
    broadcast_variables(rest, 0)


def average_own_state(session: Session, model: keras.Model) -> None:
    """Average what steps change on each rank by itself; all ranks must call."""
    agreed = session.agreed()
    state = [variable for variable in own_state(model) if id(variable) not in agreed]
    floating = [variable for variable in state if tf.as_dtype(variable.dtype).is_floating]
    _combine(floating, "state", Average)


def _combine(variables: list[keras.Variable], name: str, op: int) -> None:
    """Combine variables over the ranks, all in one exchange."""
    if variables:
        name = f"transparent.{name}.{len(variables)}"
        values = grouped_allreduce([variable.value for variable in variables], op=op, name=name)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)


def average_logs(logs: dict[str, Any], combined: dict[str, Any], counts: Counts) -> dict:
    """Return a step's own results combined over the ranks; all ranks must call."""
    seen = counts.read()
    weight = seen["last_own"] / max(seen["last_total"], 1)
    result = dict(logs)
    for name in logs:
        if name in combined:
            result[name] = combined[name]
        elif np.ndim(logs[name]) == 0:
            part = float(logs[name]) * weight if weight else 0.0
            result[name] = float(allreduce(np.float64(part), "transparent.log", op=Sum).numpy())
    return result
