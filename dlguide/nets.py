"""The nets of the course, built the same way on every rank."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING

from dlguide.checks import require, require_count, require_known

if TYPE_CHECKING:
    import keras

_DROPOUT = {"mlp": 0.0, "mnist_cnn": 0.25, "mnist_cnn_bn": 0.25}
_DTYPES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
_IMAGE, _CLASSES = (28, 28, 1), 10
_FILTERS, _KERNEL, _HIDDEN = (32, 64), 5, {"mlp": 64, "mnist_cnn": 128, "mnist_cnn_bn": 128}


def names() -> tuple[str, ...]:
    """List the nets there are.

    Returns:
        tuple: names that `build` takes.
    """
    return tuple(_DROPOUT)


def build(
    name: str,
    seed: int = 0,
    dropout: float | None = None,
    dtype: str = "float32",
    dropout_seed: int | None = None,
) -> keras.Model:
    """Build a net for images of 28 x 28 x 1 with 10 logits, not yet compiled.

    - "mnist_cnn": convolution 32, pooling, convolution 64, pooling, dense 128, dropout, dense 10;
      kernels of 5 x 5, ReLU after each layer but the last.
    - "mnist_cnn_bn": the same with batch normalisation after each convolution. Its statistics
      are those of one rank's batch, so p ranks do not equal one process with the global batch.
    - "mlp": dense 64, dense 10; for lessons that must be quick.

    Every random number comes from `seed`, none from a global state: the same arguments give the
    same weights, bit by bit, on every rank. Weights of different dtypes are different draws.

    Args:
        name: one of `names()`.
        seed: seed of the initial weights, at least 0.
        dropout: share of the units dropped before the last layer, 0 to below 1; None takes the
            net's own, 0.25 for the convolutional nets and 0 for "mlp".
        dtype: "float32", "float64", "mixed_float16" or "mixed_bfloat16", for this net only; the
            logits of the mixed ones are float32.
        dropout_seed: seed of the dropout, so that ranks drop different units; None takes `seed`.

    Returns:
        keras.Model: logits of shape (batch, 10) for images of shape (batch, 28, 28, 1).

    Raises:
        ValueError: when the name or dtype is unknown or a number is out of range.
    """
    require_known(name, names(), "name")
    require_known(dtype, _DTYPES, "dtype")
    require_count(seed, "seed", least=0)
    dropout_seed = require_count(
        seed if dropout_seed is None else dropout_seed, "dropout_seed", least=0
    )
    dropout = _DROPOUT[name] if dropout is None else dropout
    share = isinstance(dropout, Real) and 0 <= dropout < 1
    require(share, "dropout", "be at least 0 and below 1", dropout)

    import keras
    import numpy as np

    layers, wide = keras.layers, "float32" if dtype.startswith("mixed") else dtype
    # one seed per layer, so that layers of equal shape do not start equal
    seeds = iter(np.random.SeedSequence(seed).generate_state(8) >> 1)

    def start() -> keras.Initializer:
        return keras.initializers.GlorotUniform(seed=int(next(seeds)))

    net = [keras.Input(_IMAGE, dtype=wide, name="images")]
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
        layers.Dense(_CLASSES, kernel_initializer=start(), dtype=wide, name="logits"),
    ]
    return keras.Sequential(net, name=name)


def parameters(name: str) -> int:
    """Count the trainable parameters of a net without building it.

    A convolution has (kernel * kernel * inputs + 1) * filters, a dense layer
    (inputs + 1) * outputs, batch normalisation 2 per filter (its moving averages are not
    trained). This is what an allreduce carries in each step, times 4 bytes in float32.

    Args:
        name: one of `names()`.

    Returns:
        int: number of trainable parameters (count).

    Raises:
        ValueError: when there is no such net.

    >>> parameters("mlp") == (28 * 28 + 1) * 64 + (64 + 1) * 10
    True
    """
    require_known(name, names(), "name")
    side, channels, total = _IMAGE[0], _IMAGE[2], 0
    if name != "mlp":
        for filters in _FILTERS:
            total += (_KERNEL * _KERNEL * channels + 1) * filters
            total += 2 * filters if name == "mnist_cnn_bn" else 0
            side, channels = (side - _KERNEL + 1) // 2, filters
    return total + _dense(side * side * channels, _HIDDEN[name]) + _dense(_HIDDEN[name], _CLASSES)


def _dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs
