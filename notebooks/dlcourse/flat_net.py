"""A Keras net as a function of one flat array with all its trainable weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.training.devices import require_device

if TYPE_CHECKING:
    import keras


class FlatNet:
    """Loss, gradient and accuracy of a classifier whose weights are given to each call.

    The loss is the mean softmax cross-entropy, of images or of every token of sequences. `start`
    holds the net's own weights.
    """

    def __init__(self, net: keras.Model, device: str = "cpu") -> None:
        import tensorflow as tf

        self.net, self._place = net, require_device(device)
        self.shapes = [tuple(each.shape) for each in net.trainable_variables]
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        self.start = np.concatenate([np.ravel(each) for each in net.trainable_variables])
        self._ends, kept = np.cumsum(sizes)[:-1], net.non_trainable_variables

        def logits(flat, inputs):
            pieces = zip(tf.split(flat, sizes), self.shapes, strict=True)
            weights = [tf.reshape(piece, shape) for piece, shape in pieces]
            return net.stateless_call(weights, kept, inputs)[0]

        def loss(flat, inputs, labels):
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits(flat, inputs))
            return tf.reduce_mean(losses)

        def gradient(flat, inputs, labels):
            with tf.GradientTape() as tape:
                tape.watch(flat)
                value = loss(flat, inputs, labels)
            return value, tape.gradient(value, flat)

        options = {"jit_compile": False, "autograph": False, "reduce_retracing": True}
        self._functions = [tf.function(each, **options) for each in (logits, loss, gradient)]

    def views(self, flat: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of the net as views of the flat one."""
        parts = np.split(flat, self._ends)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def loss(self, flat: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> float:
        """Return the mean loss (nats)."""
        return float(self._call(1, flat, inputs, labels))

    def loss_and_gradient(
        self, flat: np.ndarray, inputs: np.ndarray, labels: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the mean loss (nats) and its gradient."""
        loss, gradient = self._call(2, flat, inputs, labels)
        return float(loss), gradient.numpy()

    def accuracy(
        self, flat: np.ndarray, images: np.ndarray, labels: np.ndarray, batch: int = 500
    ) -> float:
        """Return the share of correct predictions."""
        parts = np.array_split(images, -(-len(images) // batch))
        logits = np.concatenate([self._call(0, flat, part) for part in parts])
        return float((logits.argmax(axis=-1) == labels).mean())

    def graph(self, inputs: np.ndarray, labels: np.ndarray) -> Any:
        """Return TensorFlow's graph of loss and gradient for arrays of these shapes."""
        return self._functions[2].get_concrete_function(self.start, inputs, labels).graph

    def _call(self, which: int, flat: np.ndarray, *arrays: np.ndarray) -> Any:
        import tensorflow as tf

        with tf.device(self._place):
            flat, inputs, *labels = map(tf.constant, (flat, *arrays))
            inputs = tf.cast(inputs, flat.dtype) if inputs.dtype.is_floating else inputs
            return self._functions[which](flat, inputs, *labels)
