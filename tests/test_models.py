"""Nets compute what NumPy computes, and their seed alone decides how they start."""

import hashlib

import numpy as np
import pytest

from dlguide import models

IMAGES = np.random.default_rng(1).random((6, 28, 28, 1))


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


@pytest.mark.parametrize("name", models.names("digits"))
def test_parameters_are_counted_as_keras_does(name, keras):
    model = models.build(name)
    assert models.parameters(name) == sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    assert model.output_shape == (None, 10)
    assert model.input_shape == (None, 28, 28, 1)


@pytest.mark.parametrize("name", models.names("digits"))
def test_the_seed_alone_decides_the_weights(name, keras):
    keras.utils.set_random_seed(1)
    first = digest(models.build(name, seed=5))
    keras.utils.set_random_seed(2)
    assert digest(models.build(name, seed=5)) == first
    assert digest(models.build(name, seed=6)) != first


def test_building_changes_nothing_global(keras):
    import random

    before = (random.getstate(), np.random.get_state()[1].tolist(), keras.backend.floatx())
    policy = keras.config.dtype_policy().name
    models.build("mnist_cnn", dtype="float64")
    models.build("mlp", dtype="mixed_bfloat16")
    after = (random.getstate(), np.random.get_state()[1].tolist(), keras.backend.floatx())
    assert after == before
    assert keras.config.dtype_policy().name == policy


def convolve(images, kernel, bias):
    windows = np.lib.stride_tricks.sliding_window_view(images, kernel.shape[:2], axis=(1, 2))
    return np.einsum("brcihw,hwio->brco", windows, kernel) + bias


def pool(images):
    count, side, _, channels = images.shape
    half = side // 2
    blocks = images[:, : 2 * half, : 2 * half].reshape(count, half, 2, half, 2, channels)
    return blocks.max(axis=(2, 4))


def forward(name, weights, images):
    """Compute the logits with NumPy: the oracle."""
    weights = list(weights)
    for _ in range(0 if name == "mlp" else 2):
        images = convolve(images, weights.pop(0), weights.pop(0))
        if name == "mnist_cnn_bn":
            gamma, beta, mean, variance = (weights.pop(0) for _ in range(4))
            images = gamma * (images - mean) / np.sqrt(variance + 1e-3) + beta
        images = pool(np.maximum(images, 0))
    hidden = np.maximum(images.reshape(len(images), -1) @ weights[0] + weights[1], 0)
    return hidden @ weights[2] + weights[3]


@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("name", models.names("digits"))
def test_logits_are_those_of_numpy(name, dtype, relative, keras):
    model = models.build(name, dtype=dtype)
    rng = np.random.default_rng(2)
    # biases and moving averages start at 0 and 1, where errors would not show
    model.set_weights([w + 0.1 * rng.random(w.shape).astype(w.dtype) for w in model.get_weights()])
    assert {w.dtype for w in model.get_weights()} == {np.dtype(dtype)}
    logits = model(IMAGES.astype(dtype), training=False).numpy()
    assert logits.dtype == dtype
    expected = forward(name, [w.astype(np.float64) for w in model.get_weights()], IMAGES)
    assert np.abs(logits - expected).max() <= relative * np.abs(expected).max()


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_mixed_nets_compute_in_half_and_keep_weights_and_logits_in_float32(half, keras):
    model = models.build("mnist_cnn", dtype=f"mixed_{half}")
    assert model.get_layer("conv1").compute_dtype == half
    assert {w.dtype for w in model.get_weights()} == {np.dtype("float32")}
    logits = model(IMAGES.astype("float32"))
    assert logits.dtype == "float32"
    exact = forward("mnist_cnn", model.get_weights(), IMAGES)
    assert np.abs(logits.numpy() - exact).max() <= 0.05 * np.abs(exact).max()


def mean_loss_gradient(model, images):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.reduce_sum(model(images, training=True) ** 2, axis=1))
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    return np.concatenate([gradient.numpy().ravel() for gradient in gradients])


@pytest.mark.parametrize("name", models.names("digits"))
def test_the_mean_over_halves_is_the_whole_except_with_batch_normalisation(name, keras):
    model = models.build(name, dropout=0, dtype="float64")
    whole = mean_loss_gradient(model, IMAGES)
    halves = (mean_loss_gradient(model, IMAGES[:3]) + mean_loss_gradient(model, IMAGES[3:])) / 2
    distance = np.abs(halves - whole).max() / np.abs(whole).max()
    assert distance > 1e-3 if name == "mnist_cnn_bn" else distance < 1e-12


def trained_logits(**arguments):
    return models.build("mnist_cnn", **arguments)(IMAGES, training=True).numpy()


def test_dropout_is_seeded_apart_from_the_weights(keras):
    first = trained_logits(dropout=0.5)
    assert np.array_equal(trained_logits(dropout=0.5), first)
    assert np.array_equal(trained_logits(dropout=0.5, dropout_seed=0), first)
    assert not np.array_equal(trained_logits(dropout=0.5, dropout_seed=1), first)
    weights = [digest(models.build("mnist_cnn", dropout_seed=seed)) for seed in (0, 1)]
    assert weights[0] == weights[1]


def test_dropout_draws_anew_in_each_step(keras):
    model = models.build("mnist_cnn", dropout=0.5)
    assert not np.array_equal(model(IMAGES, training=True), model(IMAGES, training=True))
    assert np.array_equal(model(IMAGES), model(IMAGES))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "mnist_cn"}, "`name` must be one of alexnet, autoencoder, "),
        ({"dtype": "float16"}, "`dtype` must be one of float32, float64, mixed_bfloat16, mixed_"),
        ({"seed": -1}, "`seed` must be a whole number of at least 0, got -1"),
        ({"dropout": 1}, "`dropout` must be at least 0 and below 1, got 1"),
    ],
)
def test_invalid_arguments_are_refused(arguments, text):
    with pytest.raises(ValueError, match=f"^{text}"):
        models.build(**{"name": "mnist_cnn", **arguments})
