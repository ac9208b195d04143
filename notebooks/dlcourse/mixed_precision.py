"""Short trainings in 16 bits, with and without loss scaling, and the gradients of one batch.

fp16 has no number between 0 and 6e-8. A gradient below half of that becomes 0, and its weight is
not updated. Loss scaling multiplies the loss by a large number before the backward pass, so that
all gradients are that much larger, and divides them again in fp32:

    gradient = (scale * loss)' / scale

bf16 has the exponent range of fp32 and does not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import measure, models
from dlguide.errors import require, require_count, require_positive

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class PrecisionTraining:
    """One short training.

    Args:
        losses: loss of each step in float32, neither weighted nor scaled.
        step_s: time of each step; the first ones build the graph (s).
        final_scale: loss scale at the end; 1 without scaling.
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


def gradients(
    model: keras.Sequential, images: np.ndarray, labels: np.ndarray
) -> dict[str, dict[str, np.ndarray]]:
    """Compute the gradients of one batch's mean loss: of the weights and of all layers' outputs.

    The gradient reaches the weights of a layer through the outputs of all later layers. If one of
    them is rounded to 0, nothing reaches the earlier layers.

    Args:
        model: sequential net that ends in logits.
        images: shape (batch, rows, columns, channels).
        labels: class numbers, shape (batch,).

    Returns:
        dict: "weights" and "outputs", each name -> float32 array.
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
) -> PrecisionTraining:
    """Train a net for some steps in a given precision, with or without loss scaling.

    `loss_weight` makes the loss small, as a mean over a large batch or a physical unit would. The
    learning rate is divided by it, so that exact arithmetic would take the same steps.

    Args:
        net: one of `models.names("digits")` for images of 28 x 28.
        data: training images and labels, test images and labels.
        dtype: as for `models.build`.
        scaled: whether to use Keras' LossScaleOptimizer around SGD.
        batch: images of one step (count).
        learning_rate: of SGD with momentum 0.9, for a loss of weight 1.
        loss_weight: factor of the loss.
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
    random = np.random.default_rng(seed)
    losses, seconds = [], []
    for _ in range(steps):
        chosen = random.integers(len(images), size=batch)
        part = images[chosen], labels[chosen]
        start = perf_counter()
        losses.append(float(step(*part)))
        seconds.append(perf_counter() - start)
    answers = np.argmax(model.predict(test_images, batch_size=500, verbose=0), axis=1)
    scale = float(optimizer.dynamic_scale) if scaled else 1.0
    accuracy = float(np.mean(answers == test_labels))
    return PrecisionTraining(dtype, scaled, tuple(losses), tuple(seconds), accuracy, scale)
