"""Training that ends with the weights of the smallest held-out loss; it never stops early."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlguide.errors import require_count

if TYPE_CHECKING:
    import keras


def train_restore_best(
    net: keras.Model,
    draw: Callable[[int], tuple[Any, Any]],
    held: tuple[Any, Any],
    loss: Callable[[Any, Any], Any],
    steps: int,
    rate: float,
    every: int = 10,
) -> dict[int, float]:
    """Train a net of any kind with Adam, alone, and end with its best weights."""
    import keras
    import tensorflow as tf

    require_count(steps, "steps")
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(net.trainable_variables)

    @tf.function(autograph=False)
    def learn(inputs: Any, wanted: Any) -> None:
        with tf.GradientTape() as tape:
            value = loss(wanted, net(inputs, training=True))
        gradients = tape.gradient(value, net.trainable_variables)
        optimizer.apply(gradients, net.trainable_variables)

    @tf.function(autograph=False)
    def look(inputs: Any, wanted: Any) -> Any:
        return loss(wanted, net(inputs, training=False))

    looks: dict[int, float] = {}
    best = net.get_weights()
    for step in range(steps + 1):
        if step % every == 0 or step == steps:
            value = float(look(*held))
            if value < min(looks.values(), default=float("inf")):
                best = net.get_weights()
            looks[step] = value
        if step < steps:
            learn(*draw(step))
    net.set_weights(best)
    return looks
