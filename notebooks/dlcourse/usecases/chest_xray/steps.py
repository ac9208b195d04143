"""One step for many labels: each logit is a question of its own, and rare answers count more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.training.divergence import spoiled
from dlguide.training.steps import Gradients, traced

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


def weighted_loss(logits: Any, labels: Any, weights: np.ndarray) -> Any:
    """Give the weighted binary cross-entropy of each sample, the mean over its labels.

    mean over labels of w_1 y softplus(-z) + w_0 (1 - y) softplus(z)
    """
    import tensorflow as tf

    labels = tf.cast(labels, logits.dtype)
    negative, positive = (tf.constant(each, logits.dtype) for each in weights)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses * (labels * positive + (1 - labels) * negative), axis=-1)


class LabelGradients(Gradients):
    """The weighted loss of some samples and its gradients, inside a compiled function.

    As its base, a step's loss is the mean over the global batch, of which this rank computes its
    part, so that gradients have only to be summed over ranks.
    """

    def __init__(
        self, model: keras.Model, optimizer: keras.Optimizer, workers: int, weights: np.ndarray
    ) -> None:
        import tensorflow as tf

        super().__init__(model, optimizer, workers)
        self.weights = weights
        self.signature[1] = tf.TensorSpec([None, weights.shape[1]], tf.int32, name="labels")

    def __call__(self, images: Any, labels: Any, scale: Any) -> tuple[Any, list[Any]]:
        """Compute the loss and how many labels are told right, as a part of a sample."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            logits = tf.cast(self.model(images, training=True), self.dtype)
            loss = tf.reduce_sum(weighted_loss(logits, labels, self.weights)) * scale
            whole = loss
            if self.model.losses:
                whole += tf.cast(tf.add_n(self.model.losses), self.dtype) / self.workers
            scaled = self.optimizer.scale_loss(whole)
        told = tf.cast((logits > 0) == (labels > 0), self.dtype)
        right = tf.reduce_sum(tf.reduce_mean(told, axis=-1)) * tf.cast(scale > 0, self.dtype)
        variables = self.model.trainable_variables
        found = spoiled(tape.gradient(scaled, variables), variables, whole)
        return tf.stack([loss, right]), found


def label_step(
    model: keras.Model, optimizer: keras.Optimizer, ranks: int, weights: np.ndarray
) -> Callable[[Any, Any, float], Any]:
    """Compile one step of synchronous training with many labels for this rank."""
    import tensorflow as tf

    gradients = LabelGradients(model, optimizer, ranks, weights)

    @traced
    @tf.function(input_signature=gradients.signature, autograph=False)
    def step(images: Any, labels: Any, scale: Any) -> Any:
        told, found = gradients(images, labels, scale)
        optimizer.apply(found, model.trainable_variables)
        return told

    return step
