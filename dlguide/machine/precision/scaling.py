"""What becomes of gradients in 16 bits, and loss scaling, which saves them.

fp16 has no number between 0 and 6e-8. A gradient below half of that becomes 0, and the weight
that it should move stays. Loss scaling multiplies the loss by a large number before the way back,
so that all gradients are that much larger on the way, and divides them again in fp32:

    gradient = (scale * loss)' / scale

bf16 has the exponents of fp32 and needs nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import measure, models
from dlguide.errors import require, require_count, require_positive
from dlguide.machine.precision.formats import named, round_to

if TYPE_CHECKING:
    import keras
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Survival:
    """What a format makes of an array of numbers; shares of those that are not 0.

    Args:
        format: name of the format.
        scale: by which all were multiplied before.
        numbers: numbers that are not 0 (count).
        to_zero: share that becomes 0 (0 to 1).
        subnormal: share that lives on with fewer digits (0 to 1).
        too_large: share that becomes infinite or NaN (0 to 1).
    """

    format: str
    scale: float
    numbers: int
    to_zero: float
    subnormal: float
    too_large: float


@dataclass(frozen=True)
class Training:
    """One short training.

    Args:
        dtype: of the net.
        scaled: whether the loss was scaled.
        losses: loss of each step, in float32, as if it had not been weighted or scaled.
        step_s: time of each step; the first ones build the graph (s).
        accuracy: right answers on other images (0 to 1).
        final_scale: scale of the loss at the end; 1 when not scaled.
    """

    dtype: str
    scaled: bool
    losses: tuple[float, ...]
    step_s: tuple[float, ...]
    accuracy: float
    final_scale: float

    @property
    def timing(self) -> measure.Timing:
        """The steps without the first three."""
        return measure.Timing(self.step_s[3:], self.step_s[:3])


def survival(values: ArrayLike, format: str, scale: float = 1.0) -> Survival:
    """Count what a format would lose of an array of numbers.

    Args:
        values: numbers, of any shape; zeros are left out.
        format: one of `formats.FORMATS`, a floating-point one.
        scale: multiplied to all before they are rounded.

    Returns:
        Survival: the shares.

    Raises:
        ValueError: when the format or scale is unfit, or no number is other than 0.

    >>> survival([1e-8, 1e-6, 1.0, 1e6], "fp16").to_zero
    0.25
    """
    chosen = named(format)
    require(chosen.floating, "format", "be a floating-point format", format)
    require_positive(scale, "scale")
    numbers = np.asarray(values, "float64").ravel()
    numbers = numbers[numbers != 0] * scale
    require(len(numbers) > 0, "values", "hold a number other than 0", "none")
    rounded = np.abs(round_to(numbers, format))
    finite = np.isfinite(rounded)
    low = finite & (rounded > 0) & (rounded < chosen.smallest_normal)
    shares = (rounded == 0, low, ~finite)
    return Survival(format, float(scale), len(numbers), *(float(s.mean()) for s in shares))


def best_scale(values: ArrayLike, format: str = "fp16", margin: float = 8.0) -> float:
    """Find the largest power of two that leaves room below the largest number.

    Args:
        values: gradients, of any shape.
        format: one of `formats.FORMATS`, a floating-point one.
        margin: how much larger gradients may become before one overflows.

    Returns:
        float: the scale.

    Raises:
        ValueError: when there is no number other than 0.

    >>> best_scale([1e-3], "fp16", margin=1.0)
    33554432.0
    """
    require_positive(margin, "margin")
    largest = float(np.abs(np.asarray(values, "float64")).max(initial=0.0))
    require(0 < largest < np.inf, "values", "hold a finite number other than 0", largest)
    return float(2.0 ** np.floor(np.log2(named(format).largest / (margin * largest))))


def gradients(
    model: keras.Sequential, images: np.ndarray, labels: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Compute all gradients of one batch's mean loss: those of weights and those on the way.

    The gradient reaches the weights of a layer through the outputs of all layers behind it, and
    those are as small as one image's share of the mean. Where one of them becomes 0, nothing
    comes through to the layers before.

    Args:
        model: sequential net that ends in logits.
        images: inputs, shape (batch, rows, columns, channels).
        labels: class numbers, shape (batch,).

    Returns:
        dict: "weights" and "outputs", each name -> float32 array.

    Raises:
        ValueError: when the model is not sequential.
    """
    import keras
    import tensorflow as tf

    sequential = isinstance(model, keras.Sequential)
    require(sequential, "model", "be a keras.Sequential", type(model).__name__)
    outputs = {}
    with tf.GradientTape() as tape:
        passed = tf.convert_to_tensor(images)
        for layer in model.layers:
            passed = layer(passed, training=False)
            outputs[layer.name] = passed
            tape.watch(passed)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(passed, "float32"))
        loss = tf.reduce_mean(losses)
    variables = {v.path: v.value for v in model.trainable_variables}
    found = tape.gradient(loss, {"weights": variables, "outputs": outputs})
    return {
        part: {name: tf.cast(g, "float32").numpy() for name, g in each.items()}
        for part, each in found.items()
    }


def train(
    net: str,
    data: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    dtype: str = "mixed_float16",
    scaled: bool = True,
    steps: int = 60,
    batch: int = 100,
    learning_rate: float = 0.05,
    loss_weight: float = 1.0,
    seed: int = 0,
) -> Training:
    """Train a net for some steps, in a given precision, with loss scaling or without.

    `loss_weight` makes the loss small, as a sum of many losses, a mean over a large batch or a
    physical unit does it. The learning rate is divided by it, so that exact arithmetic would
    take the same steps whatever it is.

    Args:
        net: one of `models.names("digits")` for images of 28 x 28.
        data: training images and labels, test images and labels.
        dtype: as for `models.build`.
        scaled: whether Keras' LossScaleOptimizer goes around SGD.
        steps: training steps (count).
        batch: images of one step (count).
        learning_rate: of SGD with momentum 0.9, for a loss of weight 1.
        loss_weight: by which the loss is multiplied.
        seed: of the weights and of the order of the images.

    Returns:
        Training: losses, times and accuracy.

    Raises:
        ValueError: when a name is unknown or a number out of range.
    """
    require_count(steps, "steps")
    require_count(batch, "batch")
    weight = require_positive(loss_weight, "loss_weight")
    rate = require_positive(learning_rate, "learning_rate") / weight
    model = models.build(net, seed=seed, dropout=0.0, dtype=dtype)

    import keras
    import tensorflow as tf

    optimizer: Any = keras.optimizers.SGD(rate, momentum=0.9)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.cast(model(images, training=True), "float32")
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
            large = optimizer.scale_loss(weight * loss)
        values = [v.value for v in model.trainable_variables]
        optimizer.apply(tape.gradient(large, values), model.trainable_variables)
        return loss

    images, labels, test_images, test_labels = data
    losses, seconds = _run(step, images, labels, steps, batch, seed)
    answers = np.argmax(model.predict(test_images, batch_size=500, verbose=0), axis=1)
    scale = float(optimizer.dynamic_scale) if scaled else 1.0
    accuracy = float(np.mean(answers == test_labels))
    return Training(dtype, scaled, losses, seconds, accuracy, scale)


def _run(
    step: Callable[..., Any],
    images: np.ndarray,
    labels: np.ndarray,
    steps: int,
    batch: int,
    seed: int,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    random = np.random.default_rng(seed)
    losses, seconds = [], []
    for _ in range(steps):
        chosen: Sequence[int] = random.integers(len(images), size=batch)
        part = images[chosen], labels[chosen]
        start = perf_counter()
        losses.append(float(step(*part)))
        seconds.append(perf_counter() - start)
    return tuple(losses), tuple(seconds)
