"""What is lost in 16 bits is counted as NumPy rounds, and scaling brings it back.

Tests dlguide.machine.precision.scaling.
"""

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from dlguide import models
from dlguide.data import datasets
from dlguide.machine import precision
from dlguide.machine.precision import scaling

VALUES = np.random.default_rng(0).lognormal(-14, 4, 5000)


@pytest.fixture(scope="module")
def data():
    found = datasets.load().first(1000)
    return found.train_images, found.train_labels, found.test_images[:500], found.test_labels[:500]


@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**40])
@pytest.mark.parametrize(("format", "dtype"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_survival_counts_what_the_type_makes_of_the_numbers(format, dtype, scale):
    numpy_type = np.float16 if format == "fp16" else getattr(ml_dtypes, dtype)
    with np.errstate(over="ignore"):
        held = (VALUES * scale).astype(numpy_type).astype(float)
    found = precision.survival(np.append(VALUES, 0.0), format, scale)
    tiny = float(ml_dtypes.finfo(numpy_type).smallest_normal)
    assert found.numbers == len(VALUES)
    assert found.to_zero == np.mean(held == 0)
    assert found.too_large == np.mean(np.isinf(held))
    assert found.subnormal == np.mean((held > 0) & (held < tiny))


def test_best_scale_is_the_largest_that_does_not_overflow():
    scale = precision.best_scale(VALUES, "fp16", margin=1.0)
    assert np.log2(scale) % 1 == 0
    assert precision.survival(VALUES, "fp16", scale).too_large == 0
    assert precision.survival(VALUES, "fp16", 2 * scale).too_large > 0


def test_gradients_of_weights_are_those_of_tensorflow(data):
    model = models.build("mnist_cnn", dropout=0.0)
    images, labels = data[0][:20], data[1][:20]
    found = precision.gradients(model, images, labels)
    with tf.GradientTape() as tape:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(
            labels, model(images, training=False)
        )
    wanted = tape.gradient(loss, [v.value for v in model.trainable_variables])
    for variable, gradient in zip(model.trainable_variables, wanted, strict=True):
        assert np.abs(found["weights"][variable.path] - gradient).max() <= 1e-6
    shares = tf.nn.softmax(model(images, training=False)).numpy()
    shares[np.arange(20), labels] -= 1
    assert np.abs(found["outputs"]["logits"] - shares / 20).max() <= 1e-6
    assert set(found["outputs"]) == {layer.name for layer in model.layers}


def test_small_losses_need_scaling_in_fp16_and_not_in_bf16(data):
    job = {"steps": 12, "batch": 50, "loss_weight": 1e-9}
    usual = scaling.train("mlp", data, "float32", scaled=False, **job)
    lost = scaling.train("mlp", data, "mixed_float16", scaled=False, **job)
    saved = scaling.train("mlp", data, "mixed_float16", scaled=True, **job)
    brain = scaling.train("mlp", data, "mixed_bfloat16", scaled=False, **job)
    assert usual.losses[-1] < usual.losses[0] - 0.5
    assert abs(lost.losses[-1] - usual.losses[-1]) > 0.5
    assert saved.losses[-1] == pytest.approx(usual.losses[-1], abs=0.1)
    assert brain.losses[-1] == pytest.approx(usual.losses[-1], abs=0.1)
    assert (lost.final_scale, saved.scaled) == (1.0, True)
    assert saved.final_scale > 1
    assert (len(saved.losses), len(saved.timing.seconds)) == (12, 9)


def test_weight_of_the_loss_changes_nothing_in_float32(data):
    runs = [
        scaling.train("mlp", data, "float32", False, steps=5, loss_weight=weight)
        for weight in (1.0, 2.0**-20)
    ]
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-5)


def test_wrong_arguments_are_refused(data):
    with pytest.raises(ValueError, match=r"`format` must be a floating-point format, got 'int8'"):
        precision.survival([1.0], "int8")
    with pytest.raises(ValueError, match=r"`values` must hold a number other than 0"):
        precision.survival([0.0], "fp16")
    ends = keras.Input((2,))
    functional = keras.Model(ends, ends)
    with pytest.raises(ValueError, match=r"`model` must be a keras.Sequential, got 'Functional'"):
        precision.gradients(functional, data[0], data[1])
    with pytest.raises(ValueError, match=r"`loss_weight` must be a positive number, got 0"):
        precision.train("mlp", data, loss_weight=0)
