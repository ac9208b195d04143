"""A net in ONNX gives what Keras gives, run by an engine that knows nothing of Keras.

Tests dlcourse.int8.
"""

import keras
import numpy as np
import onnxruntime
import pytest

from dlcourse import int8
from dlguide import models

LAYERS = keras.layers


def normalised(model, seed=0):
    """The model, its normalisations as if they had seen data: folding must change something."""
    random = np.random.default_rng(seed)
    for layer in model._flatten_layers():
        if isinstance(layer, LAYERS.BatchNormalization):
            shape = layer.moving_mean.shape
            layer.moving_mean.assign(random.normal(0, 0.3, shape))
            layer.moving_variance.assign(random.uniform(0.5, 1.5, shape))
            for weight, middle in ((layer.gamma, 1.0), (layer.beta, 0.0)):
                if weight is not None:
                    weight.assign(random.normal(middle, 0.2, shape))
    return model


def both(model, images):
    """Outputs of Keras and of onnxruntime for the same random images."""
    graph = int8.graph(model).SerializeToString()
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    inputs = np.random.default_rng(1).normal(size=(images, *model.input_shape[1:]))
    inputs = inputs.astype("float32")
    return np.asarray(model(inputs, training=False)), session.run(None, {"images": inputs})[0]


def assert_equal(model, images=3):
    wanted, came = both(model, images)
    assert came.shape == wanted.shape
    assert np.abs(wanted).max() > 0
    assert np.abs(came - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("name", ["mlp", "mnist_cnn", "mnist_cnn_bn"])
def test_nets_of_the_course_are_equal(name):
    assert_equal(normalised(models.build(name, seed=3)), images=5)


def test_resnet_of_keras_is_equal():
    made = keras.applications.ResNet50(
        weights=None, input_shape=(64, 64, 3), classes=7, classifier_activation=None
    )
    assert_equal(normalised(made), images=2)


SIDE = keras.Input((9, 8, 4))  # not square, odd and even: rows and columns must differ


def functional(output):
    return keras.Model(SIDE, LAYERS.Flatten()(output) if len(output.shape) > 2 else output)


CASES = {
    "same, stride 2": LAYERS.Conv2D(5, (3, 2), strides=2, padding="same")(SIDE),
    "relu, no bias": LAYERS.Conv2D(6, 3, activation="relu", use_bias=False)(SIDE),
    "flatten": LAYERS.Dense(3)(LAYERS.Flatten()(SIDE)),
    "largest, same": LAYERS.MaxPooling2D((2, 3), strides=2, padding="same")(SIDE),
    "mean": LAYERS.GlobalAveragePooling2D()(SIDE),
    "padding": LAYERS.ZeroPadding2D(((1, 2), (3, 0)))(SIDE),
    "sum": LAYERS.Add()([SIDE, LAYERS.ReLU()(SIDE)]),
    "dropout": LAYERS.Dropout(0.5)(SIDE),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_are_equal(case):
    assert_equal(normalised(functional(CASES[case])))


def test_normalisation_becomes_part_of_the_convolution():
    norm = LAYERS.BatchNormalization()(LAYERS.Conv2D(4, 3, padding="same")(SIDE))
    net = normalised(functional(norm))
    kinds = {node.op_type for node in int8.graph(net).graph.node}
    assert kinds == {"Transpose", "Conv", "Flatten", "Identity"}
    assert_equal(net)
