"""A Keras network with parts taken out, and how large values and gradients are at each layer.

plain = taken_apart.without(resnet, "Add")  # no shortcuts, the same initial weights
taken_apart.sizes_by_layer(plain, images, labels)["weights"]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import keras


def without(net: keras.Model, *kinds: str, activation: str = "relu") -> keras.Model:
    """Copy a network, with equal weights; layers of these classes only hand on their input.

    Args:
        kinds: names of classes, such as "Add" or "BatchNormalization". An "Add" hands on the
            second input, what the block has computed, and drops the shortcut.
        activation: instead of every ReLU.
    """
    import keras

    class HandOn(keras.layers.Layer):
        def call(self, inputs: Any, mask: Any = None) -> Any:
            return inputs[-1] if isinstance(inputs, list) else inputs

    def change(layer: keras.layers.Layer) -> keras.layers.Layer:
        if type(layer).__name__ in kinds:
            return HandOn(name=layer.name)
        if isinstance(layer, keras.layers.ReLU):
            return keras.layers.Activation(activation, name=layer.name)
        return type(layer).from_config(layer.get_config())

    copy = keras.models.clone_model(net, clone_function=change)
    for layer in copy.layers:
        layer.set_weights(net.get_layer(layer.name).get_weights() if layer.weights else [])
    return copy


def sizes_by_layer(
    net: keras.Model, images: np.ndarray, labels: np.ndarray
) -> dict[str, list[float]]:
    """Root mean squares at each convolution, from the image on.

    Returns:
        "values": what it gets; "gradient": of the loss with respect to what it gives; "weights":
        the gradient of its weights.
    """
    import keras
    import tensorflow as tf

    convolutions = [layer for layer in net.layers if "Conv2D" in type(layer).__name__]
    parts = [[getattr(each, end) for each in convolutions] for end in ("input", "output")]
    kernels = [each.kernel.value for each in convolutions]
    with tf.GradientTape() as tape:
        values, given, logits = keras.Model(net.inputs[0], [*parts, net.outputs[0]])(
            images, training=True
        )
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        loss = keras.ops.mean(losses)
    backward, weights = tape.gradient(loss, [given, kernels])

    def sizes(arrays: list[Any]) -> list[float]:
        return [float(np.sqrt(np.mean(np.asarray(each, "float64") ** 2))) for each in arrays]

    return {"values": sizes(values), "gradient": sizes(backward), "weights": sizes(weights)}


def half_size(images: np.ndarray) -> np.ndarray:
    """Digits of 28 x 28 as images of 16 x 16 x 3: means of 2 x 2, an edge of zeros, grey."""
    halved = images.reshape(len(images), 14, 2, 14, 2, 1).mean(axis=(2, 4))
    return np.repeat(np.pad(halved, ((0, 0), (1, 1), (1, 1), (0, 0))), 3, axis=3)
