"""Is a loss the mean over its batch, so that the parts of a batch give the gradient of the whole?

A loss f must hold, for a batch of n samples cut into parts of n_r:

    f(all) = sum_r (n_r / n) f(part r)

A sum does not, nor a loss in which samples meet (pairs, a statistic of the batch). A function is
not read but tried: on six random samples, whole and in parts of two and four, before the first
step is taken. Random values are drawn twice, as zeros and ones (labels) and between 0.1 and 0.9
(where logarithms and quotients are finite).
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.compile_utils import CompileLoss

from dlguide.horovod.transparent.session import Session

PARTS = (2, 4)  # samples
MEAN = "is a mean over the samples of its batch; a sum would be trained otherwise"
UNKNOWN = 5  # what stands for a length that the model leaves open


def judge(loss: Any, y_true: Any, y_pred: Any) -> bool | None:
    """Say whether a loss is the mean over its batch, as far as trying shows.

    Args:
        loss: called with labels and outputs.
        y_true: tensors of the labels' shapes and types; the first axis is the batch.
        y_pred: of the outputs'.

    Returns:
        bool | None: None where it cannot be tried: it fails on such values, is not finite, or
        gives another result each time.
    """
    answers = []
    for low in (True, False):
        drawn = np.random.default_rng(5)
        try:
            with tf.init_scope():
                given = tf.nest.map_structure(
                    lambda x, low=low, drawn=drawn: _draw(drawn, x, low), (y_true, y_pred)
                )
                answers.append(_try(loss, *given))
        except Exception:  # the script's own code, on values that are not its own
            continue
    known = [each for each in answers if each is not None]
    return all(known) if known else None


def _draw(drawn: np.random.Generator, like: Any, low: bool) -> tf.Tensor:
    """Return six samples like those of a tensor."""
    shape = [sum(PARTS), *(length or UNKNOWN for length in like.shape[1:])]
    whole = not like.dtype.is_floating or low
    values = drawn.integers(0, 2, shape) if whole else drawn.uniform(0.1, 0.9, shape)
    return tf.cast(tf.constant(values), like.dtype)


def _try(loss: Any, y_true: Any, y_pred: Any) -> bool | None:
    def value(first: int, end: int) -> float:
        given = tf.nest.map_structure(lambda x: x[first:end], (y_true, y_pred))
        return float(tf.reduce_mean(loss(*given)))

    total = sum(PARTS)
    whole, again = value(0, total), value(0, total)
    parts = [value(0, PARTS[0]), value(PARTS[0], total)]
    if not np.isfinite([whole, *parts]).all() or whole != again:
        return None
    mean = sum(rows * part for rows, part in zip(PARTS, parts, strict=True)) / total
    precision = tf.as_dtype(getattr(loss, "dtype", "float32")).as_numpy_dtype
    close = max(1e-4, float(np.finfo(precision).eps) ** 0.5)
    return bool(abs(whole - mean) <= close * (1e-3 + max(abs(part) for part in [whole, *parts])))


def _check(session: Session, name: str, loss: Any, y_true: Any, y_pred: Any) -> None:
    """Refuse a loss that is no mean over the batch; all ranks try it on the same values."""
    found = judge(loss, y_true, y_pred)
    if found is None:
        session.report.assume(f"the loss {name} {MEAN}")
    elif not found:
        session.refuse(
            f"its loss {name} is not a mean over the batch: on parts of a batch it does not give "
            "what it gives on the whole (it sums, or couples samples)"
        )


def install(session: Session) -> None:
    """Judge every loss of `compile` in the first shared step that uses it."""
    plain_call, plain_loss = CompileLoss.call, keras.losses.Loss.__call__
    plain_add = keras.Layer.add_loss
    judged: dict[int, Any] = {}
    inside = False

    @functools.wraps(plain_loss)
    def loss_call(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if inside and session.weight is not None and id(self) not in judged:
            judged[id(self)] = self
            _check(session, self.name, functools.partial(plain_loss, self), y_true, y_pred)
        return plain_loss(self, y_true, y_pred, sample_weight)

    @functools.wraps(plain_call)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        inside = True
        try:
            return plain_call(self, *args, **kwargs)
        finally:
            inside = False

    @functools.wraps(plain_add)
    def add_loss(self: Any, loss: Any) -> None:
        if not type(self).__module__.startswith("keras."):
            session.report.assume(f"what `{self.name}` adds with `add_loss` {MEAN}")
        return plain_add(self, loss)

    keras.losses.Loss.__call__ = loss_call
    CompileLoss.call = call
    keras.Layer.add_loss = add_loss
