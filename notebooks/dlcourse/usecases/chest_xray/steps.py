"""One step for many labels: each logit is a question of its own, and rare answers count more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.training import train_step

if TYPE_CHECKING:
    import keras


def balance(labels: np.ndarray) -> np.ndarray:
    """Weigh positives and negatives of each label so that both count equally in all.

    With P positives and N negatives of a label, a positive has the weight N / (P + N) and a
    negative P / (P + N), times one number for all labels that makes the mean weight 1: then the
    learning rate means what it means without weights. A label that nobody has, or everybody,
    teaches nothing and gets 0.

    Source:
        Rajpurkar et al., arXiv:1711.05225, section 2.1 (the two weights).

    >>> balance(np.array([[1], [0], [0], [0]])).ravel().tolist()
    [0.6666666666666666, 2.0]
    """
    often = np.asarray(labels, float).mean(axis=0)
    mean = float(np.mean(2 * often * (1 - often)))
    return np.stack([often, 1 - often]) / (mean or 1.0)


def weighted_loss(labels: Any, logits: Any, weights: np.ndarray) -> Any:
    """Give the weighted binary cross-entropy of each sample, the mean over its labels.

    mean over labels of w_1 y softplus(-z) + w_0 (1 - y) softplus(z)
    """
    import tensorflow as tf

    labels = tf.cast(labels, logits.dtype)
    negative, positive = (tf.constant(each, logits.dtype) for each in weights)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses * (labels * positive + (1 - labels) * negative), axis=-1)


def labels_right(labels: Any, logits: Any) -> Any:
    """Give the share of labels that are predicted correctly, for each sample."""
    import tensorflow as tf

    return tf.reduce_mean(tf.cast((logits > 0) == (labels > 0), logits.dtype), axis=-1)


def not_binary(labels: np.ndarray) -> np.ndarray:
    """Find the samples with a label that is neither 0 nor 1."""
    return ((np.asarray(labels) >> 1) != 0).any(axis=1)


def label_step(
    model: keras.Model, optimizer: keras.Optimizer, ranks: int, weights: np.ndarray
) -> Callable[[Any, Any, float], Any]:
    """Compile one step of synchronous training with many labels for this rank."""
    import tensorflow as tf

    labels = tf.TensorSpec([None, weights.shape[1]], tf.int32, name="labels")
    loss = partial(weighted_loss, weights=weights)
    return train_step(model, optimizer, ranks, loss, {"accuracy": labels_right}, labels)
