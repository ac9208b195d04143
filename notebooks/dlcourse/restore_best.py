"""Training that ends with the weights of the smallest held-out loss; it never stops early."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlguide.errors import require_count, require_positive

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
    """Train a net of any kind with Adam, alone, and end with its best weights.

    Before the first step, after each `every` steps and after the last one the loss of the
    held-out samples is looked at. In the end the weights of the smallest of these losses come
    back: the first of them, where several are equal. Those samples have then been used for a
    choice, so that a third set must say how good the net is.

    For classifiers on many ranks there is `dlguide.training.fit`.

    Args:
        net: a Keras model; its weights change.
        draw: gives the inputs and the wanted outputs of a step, from its number; all of equal
            shape, since each new shape is compiled anew.
        held: inputs and wanted outputs that are looked at.
        loss: a function of (wanted, came) that returns one number.
        steps: number of updates (count).
        rate: learning rate of Adam.
        every: steps between two looks (count).

    Returns:
        dict: steps before the look -> loss of the held-out samples.

    Raises:
        ValueError: when a number is out of range.

    Source:
        Prechelt, Early stopping - but when? (1998); Kingma and Ba 2015 (arXiv:1412.6980).
    """
    import keras
    import tensorflow as tf

    require_count(steps, "steps")
    require_count(every, "every")
    optimizer = keras.optimizers.Adam(require_positive(rate, "rate"))
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
