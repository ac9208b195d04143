"""Predicted memory is what TensorFlow's graph keeps, and what the guide prints."""

import numpy as np
import pytest
from lanes import long
from test_counting_sequences import kept_by_tensorflow

from dlguide import models
from dlguide.models.memory import backward_peak, record, saved_activations

SMALL = [
    *((name, {}) for name in models.names("digits")),
    ("vgg16", {"image": 32}),
    ("resnet50", {"image": 32}),
    ("mobilenet_v2", {"image": 32}),
]
MIXED = ("mnist_cnn_bn", "vgg16")


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


@pytest.mark.parametrize(
    ("name", "options", "precision"),
    [
        *((*each, "float32") for each in SMALL),
        *((*each, "mixed_bfloat16") for each in SMALL if each[0] in MIXED),
        *long(*(("densenet121", {"image": 32}, each) for each in ("float32", "mixed_bfloat16"))),
    ],
)
def test_activations_are_the_arrays_that_tensorflow_keeps(name, options, precision, keras):
    model = models.build(name, dtype=precision, **options)
    # no number of channels is a multiple of this batch, by which the arrays are recognised
    assert models.memory(model, batch=10).activations / 10 == kept_by_tensorflow(model, batch=37)


def test_activations_of_the_mnist_cnn_follow_from_its_shapes(keras):
    # images, ReLU 1, pooling 1, ReLU 2, pooling 2, ReLU of the dense layer; mask and dropped units
    numbers = 28 * 28 + 24 * 24 * 32 + 12 * 12 * 32 + 8 * 8 * 64 + 4 * 4 * 64 + 128
    one = models.memory("mnist_cnn", batch=1)
    assert one.activations == 4 * (numbers + 128) + 128
    trained = models.parameters("mnist_cnn")
    assert (one.weights, one.gradients, one.optimizer) == (4 * trained, 4 * trained, 8 * trained)
    assert one.total == 16 * trained + one.activations + one.working


def test_the_guides_131_million_parameters_are_2_gb():
    """Table 2 prints 131M (~2.1 GB) and 81M (~1.3 GB): 16 bytes for each with Adam."""
    assert round(models.memory(131_000_000, 1).total / 1e9, 1) == 2.1
    assert round(models.memory(81_000_000, 1).total / 1e9, 1) == 1.3
    assert models.memory(131_000_000, 1).weights == 524_000_000


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rmsprop", "adam", "adamw"])
def test_the_state_of_an_optimizer_is_what_keras_makes(optimizer, keras):
    model = models.build("mlp")
    theirs = keras.optimizers.get(optimizer)
    theirs.build(model.trainable_variables)
    state = sum(int(np.prod(v.shape)) * 4 for v in theirs.variables if len(v.shape) > 0)
    assert models.memory(model, 1, optimizer).optimizer == state


def test_mixed_precision_halves_activations_but_not_the_inputs_of_normalisation(keras):
    half = {
        name: models.memory(name, 1, precision="mixed_bfloat16").activations
        / models.memory(name, 1).activations
        for name in ("mnist_cnn", "mnist_cnn_bn")
    }
    assert 0.49 < half["mnist_cnn"] < 0.52
    assert 0.65 < half["mnist_cnn_bn"] < 0.75
    wide, mixed = models.memory("mlp", 1), models.memory("mlp", 1, precision="mixed_bfloat16")
    assert mixed.gradients == wide.gradients
    # the last layer computes in float32, but its kernel is counted with the others
    assert mixed.weights - wide.weights == 2 * (28 * 28 * 64 + 64 * 10)


def test_only_activations_and_working_grow_with_the_batch(keras):
    model = models.build("mnist_cnn")
    one, many = models.memory(model, 1), models.memory(model, 50)
    assert many.fixed == one.fixed
    assert (many.activations, many.working) == (50 * one.activations, 50 * one.working)


def test_frozen_layers_keep_nothing_before_the_first_trained_one(keras):
    model = models.build("mnist_cnn", dropout=0.0)
    for layer in model.layers[:-1]:
        layer.trainable = False
    memory = models.memory(model, 1)
    assert memory.activations == 4 * 128
    assert memory.gradients == 4 * (128 + 1) * 10


def test_what_two_layers_need_is_kept_once_and_freed_going_backward(keras):
    model = keras.Sequential(
        [
            keras.Input((100,)),
            keras.layers.Dense(100, "relu", use_bias=False),
            keras.layers.Dense(100, use_bias=False),
        ]
    )
    calls = record(model)
    assert sum(saved_activations(calls).values()) == 800
    # second layer: images, ReLU's output, gradients of its output and input
    assert backward_peak(calls) == 1600
    # of these, the working memory is what comes on top of the activations
    memory = models.memory(model, 3)
    assert (memory.activations, memory.working) == (3 * 800, 3 * 800)
    dense, norm = keras.layers.Dense, keras.layers.BatchNormalization
    layers = [dense(1000, use_bias=False), norm(), dense(10, use_bias=False)]
    calls = record(keras.Sequential([keras.Input((10,)), *layers]))
    # at the normalisation: images, its input, two gradients, two temporaries; its output is free
    assert backward_peak(calls) == 40 + 5 * 4000
