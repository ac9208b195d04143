"""A Keras net as a function of one flat array: what parameter servers and rings pass around."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlguide import models
from dlguide.training.devices import require_device

if TYPE_CHECKING:
    from dlguide.data.datasets import Dataset


class FlatNet:
    """A classifier whose weights lie outside of it, in one flat array."""

    def __init__(
        self,
        net: str,
        data: Dataset,
        seed: int = 0,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        import tensorflow as tf

        self.data, self.dtype, self._place = data, np.dtype(dtype), require_device(device)
        with tf.device(self._place):
            self.model = models.build(net, seed=seed, dtype=dtype, dropout=0.0)
        self._variables = list(self.model.trainable_weights)
        sizes = [int(np.prod(v.shape, dtype=int)) for v in self._variables]
        self._edges = np.cumsum(sizes)[:-1]

        def slopes(images, labels):
            with tf.GradientTape() as tape:
                logits = self.model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
                loss = tf.reduce_mean(losses)
            return tape.gradient(loss, self._variables)

        def logits(images):
            return self.model(images, training=False)

        self._gradient, self._logits = (tf.function(f, autograph=False) for f in (slopes, logits))

    @property
    def weights(self) -> np.ndarray:
        """The weights that the net holds now, flat; a copy."""
        return self._flat([np.asarray(v) for v in self._variables])

    def gradient(self, weights: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """Give the gradient of the mean loss (softmax cross-entropy) over training images."""
        import tensorflow as tf

        self._set(weights)
        images = self.data.train_images[indices].astype(self.dtype, copy=False)
        with tf.device(self._place):
            found = self._gradient(images, self.data.train_labels[indices])
        return self._flat([np.asarray(each) for each in found])

    def accuracy(self, weights: np.ndarray, batch: int = 500) -> float:
        """Count correct predictions on the test images."""
        self._set(weights)
        images = self.data.test_images.astype(self.dtype, copy=False)
        right = 0
        for begin in range(0, len(images), batch):
            logits = np.asarray(self._logits(images[begin : begin + batch]))
            labels = self.data.test_labels[begin : begin + batch]
            right += int((logits.argmax(axis=-1) == labels).sum())
        return right / len(images)

    def _set(self, weights: np.ndarray) -> None:
        parts = np.split(weights, self._edges)
        for variable, part in zip(self._variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))

    def _flat(self, arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([each.ravel() for each in arrays]).astype(self.dtype, copy=False)
