"""Gradients are those of TensorFlow, and loss scaling saves what fp16 loses.

Tests dlcourse.mixed_precision.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dlcourse import mixed_precision
from dlguide import models
from dlguide.data import datasets


@pytest.fixture(scope="module")
def data():
    found = datasets.load().first(1000)
    return found.train_images, found.train_labels, found.test_images[:500], found.test_labels[:500]


def test_gradients_of_weights_are_those_of_tensorflow(data):
    model = models.build("mnist_cnn", dropout=0.0)
    images, labels = data[0][:20], data[1][:20]
    found = mixed_precision.gradients(model, images, labels)
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


@pytest.mark.long  # lesson 32 trains the same
def test_small_losses_need_scaling_in_fp16_and_not_in_bf16(data):
    job = {"steps": 12, "loss_weight": 1e-9}
    usual = mixed_precision.train("mlp", data, "float32", scaled=False, **job)
    lost = mixed_precision.train("mlp", data, "mixed_float16", scaled=False, **job)
    saved = mixed_precision.train("mlp", data, "mixed_float16", scaled=True, **job)
    brain = mixed_precision.train("mlp", data, "mixed_bfloat16", scaled=False, **job)
    assert usual.losses[-1] < usual.losses[0] - 0.5
    assert abs(lost.losses[-1] - usual.losses[-1]) > 0.5
    assert saved.losses[-1] == pytest.approx(usual.losses[-1], abs=0.1)
    assert brain.losses[-1] == pytest.approx(usual.losses[-1], abs=0.1)
    assert (lost.scaled, saved.scaled) == (False, True)
    assert (len(saved.losses), len(saved.timing.seconds)) == (12, 9)
