"""Model answers of lessons 10 to 13, 80 and 81 agree with Keras and with the library."""

import keras
import numpy as np
import pytest

from dlcourse import descent
from dlcourse.exercises import lesson_10, lesson_11, lesson_12, lesson_13, lesson_81
from dlcourse.usecases import imagenet
from dlguide import models

RANDOM = np.random.default_rng(1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_walks_begin_to_rise_at_the_largest_rate(momentum):
    hessian = np.array([[3.0, 1.0], [1.0, 2.0]])
    limit = 2 * (1 + momentum) / np.linalg.eigvalsh(hessian)[-1]
    for share, falls in ((0.98, True), (1.02, False)):
        optimizer = keras.optimizers.SGD(float(share * limit), momentum)
        end = descent.walk(lambda point: hessian @ point, [1.0, 0.3], optimizer, 600)[-1]
        assert bool(np.linalg.norm(end) < 1) == falls


def test_score_of_the_race_downhill_is_1_for_lbfgs_itself():
    from scipy.optimize import minimize

    def lbfgs(loss_and_gradient, weights, passes):
        seen = []

        def loss(flat):
            if len(seen) == passes:
                raise StopIteration
            value, gradient = loss_and_gradient(flat.reshape(50, 10))
            seen.append((value, flat.reshape(50, 10).copy()))
            return value, gradient.ravel()

        with pytest.raises(StopIteration):
            minimize(loss, weights.ravel(), jac=True, method="L-BFGS-B")
        return min(seen, key=lambda each: each[0])[1]

    assert np.isclose(lesson_10.share_of_lbfgs(lbfgs, None), 1.0, atol=0.02)
    assert lesson_10.share_of_lbfgs(lesson_10.descend, None) < 0.9


def test_adam_is_that_of_keras():
    gradient = descent.bowl((1.0, 7.0)).gradient
    walked = descent.walk(gradient, [1.0, -2.0], keras.optimizers.Adam(0.1, epsilon=1e-8), 10)
    weights, mean, square = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for step in range(1, 11):
        weights, mean, square = lesson_10.adam(weights, gradient(weights), mean, square, step, 0.1)
        assert np.allclose(weights, walked[step], atol=1e-4)


@pytest.mark.parametrize("case", [(28, 1, 32, 5, 1, 0), (24, 3, 8, 7, 2, 3), (23, 3, 4, 11, 4, 2)])
def test_costs_of_a_layer_are_those_of_keras(case):
    side, channels, filters, kernel, stride, padding = case
    layers = keras.layers.ZeroPadding2D(padding), keras.layers.Conv2D(filters, kernel, stride)
    net = keras.Sequential([keras.Input((side, side, channels)), *layers])
    cost = models.count(net)
    assert lesson_11.layer(*case) == (net.output_shape[1], cost.parameters, cost.multiply_adds)


@pytest.mark.parametrize("layers", [[(3, 1), (3, 1)], [(5, 1), (2, 2), (3, 1)], [(3, 2), (2, 1)]])
def test_field_is_where_a_pixel_makes_a_difference(layers):
    side, seen = lesson_11.field(layers) + 4, 0
    for line in np.eye(side):
        for kernel, stride in layers:
            line = np.convolve(line, np.ones(kernel), "valid")[::stride]
        seen += line[0] != 0
    assert seen == lesson_11.field(layers)


def test_backward_pass_of_a_convolution_is_that_of_keras():
    import tensorflow as tf

    images, kernels = RANDOM.normal(size=(2, 6, 7, 3)), RANDOM.normal(size=(3, 3, 3, 4))
    above = RANDOM.normal(size=(2, 4, 5, 4))
    with tf.GradientTape() as tape:
        given = tf.constant(kernels), tf.constant(images)
        tape.watch(given)
        loss = tf.reduce_sum(keras.ops.conv(given[1], given[0], padding="valid") * above)
    wanted = tape.gradient(loss, given)
    for one, other in zip(lesson_11.backward(images, kernels, above), wanted, strict=True):
        assert np.allclose(one, other)


def test_no_other_discriminator_is_better():
    p, q = RANDOM.dirichlet(np.ones(5), 2)
    best, value = lesson_12.best_discriminator(p, q)
    others = np.clip(best + RANDOM.normal(0, 0.1, (50, 5)), 0.01, 0.99)
    assert (np.log(others) @ p + np.log(1 - others) @ q < value).all()


@pytest.mark.parametrize(("kind", "name"), [("rnn", "SimpleRNN"), ("lstm", "LSTM"), ("gru", "GRU")])
def test_parameters_are_those_of_keras(kind, name):
    layer = getattr(keras.layers, name)(5)
    layer.build((None, 7, 3))
    assert lesson_13.parameters(kind, 3, 5, False) == layer.count_params()


def test_attention_is_that_of_keras():
    queries, keys, values = RANDOM.normal(size=(3, 1, 6, 4))
    layer = keras.layers.Attention()  # it does not divide by the square root of the width
    theirs = layer([queries * 0.5, values, keys], use_causal_mask=True)
    assert np.allclose(lesson_13.attention(queries[0], keys[0], values[0])[0], theirs[0], atol=1e-5)


def test_iterations_and_course_are_those_of_the_training():
    assert lesson_81.iterations(1_280_683, 896, 16, 90, 5, 85.5) == (446, 7594, 7638, 402)
    found = imagenet.SMALL.iterations()
    came = lesson_81.iterations(960, 2, 16, 12, 1, 10.2)
    assert came == (found.warmup, found.decay, found.snapshot, found.collapsed)
    road, end = imagenet.SMALL, imagenet.SMALL.part_2()
    rates, decays = end.rates.to_steps(30), end.weight_decay.to_steps(30)
    for step in (0, 10, 29, 30, 200, 305, 306, 320, 359):
        at = step, 30, 360, 306, road.rate, road.start, road.weight_decay
        wanted = rates.rate(step), decays.rate(step), step < 306
        assert lesson_81.course(*at) == pytest.approx(wanted)
