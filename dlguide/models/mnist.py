"""The small nets of the course, for images of 28 x 28 x 1 and 10 classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

DROPOUT = {"mlp": 0.0, "mnist_cnn": 0.25, "mnist_cnn_bn": 0.25}
IMAGE, CLASSES = (28, 28, 1), 10
_FILTERS, _KERNEL, _HIDDEN = (32, 64), 5, {"mlp": 64, "mnist_cnn": 128, "mnist_cnn_bn": 128}


def assemble(name: str, seed: int, dropout: float, dtype: str, dropout_seed: int) -> keras.Model:
    """Put a net of this module together from arguments that were checked."""
    import keras
    import numpy as np

    layers, wide = keras.layers, "float32" if dtype.startswith("mixed") else dtype
    # one seed per layer, so that layers of equal shape do not start equal
    seeds = iter(np.random.SeedSequence(seed).generate_state(8) >> 1)

    def start() -> keras.Initializer:
        return keras.initializers.GlorotUniform(seed=int(next(seeds)))

    net = [keras.Input(IMAGE, dtype=wide, name="images")]
    if name != "mlp":
        for number, filters in enumerate(_FILTERS, start=1):
            net.append(
                layers.Conv2D(
                    filters, _KERNEL, kernel_initializer=start(), dtype=dtype, name=f"conv{number}"
                )
            )
            if name == "mnist_cnn_bn":
                net.append(layers.BatchNormalization(dtype=dtype, name=f"norm{number}"))
            net.append(layers.ReLU(dtype=dtype, name=f"relu{number}"))
            net.append(layers.MaxPooling2D(dtype=dtype, name=f"pool{number}"))
    net += [
        layers.Flatten(dtype=dtype, name="flatten"),
        layers.Dense(_HIDDEN[name], "relu", kernel_initializer=start(), dtype=dtype, name="hidden"),
        layers.Dropout(dropout, seed=dropout_seed, dtype=dtype, name="dropout"),
        layers.Dense(CLASSES, kernel_initializer=start(), dtype=wide, name="logits"),
    ]
    return keras.Sequential(net, name=name)


def parameters(name: str) -> int:
    """Count the trainable parameters of a net of this module from the closed form.

    A convolution has (kernel * kernel * inputs + 1) * filters, a dense layer
    (inputs + 1) * outputs, batch normalisation 2 per filter.

    Args:
        name: a key of `DROPOUT`.

    Returns:
        int: number of trainable parameters (count).
    """
    side, channels, total = IMAGE[0], IMAGE[2], 0
    if name != "mlp":
        for filters in _FILTERS:
            total += (_KERNEL * _KERNEL * channels + 1) * filters
            total += 2 * filters if name == "mnist_cnn_bn" else 0
            side, channels = (side - _KERNEL + 1) // 2, filters
    return total + _dense(side * side * channels, _HIDDEN[name]) + _dense(_HIDDEN[name], CLASSES)


def _dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs
