"""Training with looks ends with the best weights seen, and its steps are those of Adam.

Tests dlcourse.taken_apart.
"""

import numpy as np
import pytest

from dlcourse.taken_apart import train_restore_best


def squared(wanted, came):
    import tensorflow as tf

    return tf.reduce_mean((wanted - came) ** 2)


@pytest.fixture
def net():
    import keras

    zeros = {"kernel_initializer": "zeros", "use_bias": False}
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, **zeros)])


ONE = np.ones((1, 1), "float32")


def adam(gradient, steps, rate):
    """Adam for one number from 0, as its paper has it; the numbers after each step."""
    weight, mean, square, weights = 0.0, 0.0, 0.0, [0.0]
    for step in range(1, steps + 1):
        slope = gradient(weight)
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        unbiased = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        weight -= rate * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-7)
        weights.append(weight)
    return np.array(weights)


def test_looks_are_the_losses_along_the_way_of_adam(net):
    weights = adam(lambda weight: 2 * (weight - 3), 25, 0.1)
    looks = train_restore_best(net, lambda step: (ONE, 3 * ONE), (ONE, 3 * ONE), squared, 25, 0.1)
    assert list(looks) == [0, 10, 20, 25]
    assert np.allclose(list(looks.values()), (weights[[0, 10, 20, 25]] - 3) ** 2, rtol=1e-4)
    assert np.allclose(net.get_weights()[0], weights[25], rtol=1e-4)


def test_best_weights_come_back_when_the_held_samples_want_something_else(net):
    # learns towards 3, passes the 1 that the held samples want
    weights = adam(lambda weight: 2 * (weight - 3), 40, 0.1)
    looks = train_restore_best(
        net, lambda step: (ONE, 3 * ONE), (ONE, ONE), squared, 40, 0.1, every=1
    )
    best = int(np.argmin((weights - 1) ** 2))
    assert 0 < best < 40
    assert min(looks, key=looks.get) == best
    assert np.allclose(net.get_weights()[0], weights[best], rtol=1e-4)
