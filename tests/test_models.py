"""Nets compute what NumPy computes, and their seed alone decides how they start."""

import hashlib
import random

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


# --- residual nets for small images ---


def cifar_parameters(name, classes):
    """9 C F for a convolution, 2 F for its normalisation; n blocks of two in a stage."""
    blocks, channels, total = (int(name[6:]) - 2) // 6, 16, 9 * 3 * 16 + 32
    for filters in (16, 32, 64):
        total += 9 * channels * filters + 9 * (2 * blocks - 1) * filters**2 + 4 * blocks * filters
        channels = filters
    return total + (64 + 1) * classes


def test_cifar_nets_have_the_parameters_of_their_layers():
    for name in models.names("classifier"):
        assert models.parameters(name) == cifar_parameters(name, 10), name


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        *(("resnet20", 0.27), ("resnet32", 0.46), ("resnet44", 0.66), ("resnet56", 0.85)),
        ("resnet110", 1.7),
    ],
)
def test_parameters_of_cifar_nets_are_those_of_table_6(name, millions):
    """He et al. 2015, Table 6, as it is rounded there."""
    places = 1 if name == "resnet110" else 2
    assert round(models.parameters(name) / 1e6, places) == millions


def test_a_cifar_net_starts_from_its_seed_computes_in_half_and_can_be_stored(keras, tmp_path):
    model, state = models.build("resnet20", seed=5, image=8), random.getstate()
    assert digest(models.build("resnet20", seed=5, image=8)) == digest(model)
    assert digest(models.build("resnet20", seed=6, image=8)) != digest(model)
    assert random.getstate() == state
    kernels = [w.numpy() for w in model.trainable_weights if w.name == "kernel"]
    assert len({kernel.tobytes() for kernel in kernels}) == len(kernels) == 20
    assert kernels[-2].std() == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.05)
    mixed = models.build("resnet20", image=8, dtype="mixed_bfloat16")
    assert {w.dtype for w in mixed.weights} == {mixed.output.dtype} == {"float32"}
    assert mixed.get_layer("conv1").compute_dtype == "bfloat16"
    model.save(tmp_path / "resnet.keras")
    images = np.random.default_rng(1).random((5, 8, 8, 3), "float32")
    again = keras.saving.load_model(tmp_path / "resnet.keras")
    assert np.array_equal(again(images), model(images))


def test_shortcuts_of_cifar_nets_take_every_second_pixel_and_add_zeros(keras):
    model = models.build("resnet20")
    before = model.get_layer("conv2_block3_relu").output
    after = model.get_layer("conv3_block1_shortcut").output
    both = keras.Model(model.inputs, [before, after])
    x, y = (
        one.numpy() for one in both([np.random.default_rng(1).random((5, 32, 32, 3), "float32")])
    )
    assert np.array_equal(y[..., :16], x[:, ::2, ::2])
    assert y.shape[-1] == 32
    assert not y[..., 16:].any()
    convolutions = [layer for layer in model.layers if type(layer).__name__ == "Conv2D"]
    assert len(convolutions) == 19
    # where sizes are odd, the shortcut and the convolution still meet
    assert models.build("resnet20", image=9, classes=3).output_shape == (None, 3)
