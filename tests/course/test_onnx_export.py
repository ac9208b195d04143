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


@pytest.mark.parametrize(
    ("name", "side"),
    [("ResNet50", 64), ("MobileNetV2", 64)],
)
def test_nets_of_keras_are_equal(name, side):
    build = getattr(keras.applications, name)
    made = build(weights=None, input_shape=(side, side, 3), classes=7, classifier_activation=None)
    assert_equal(normalised(made), images=2)


SIDE = keras.Input((9, 8, 4))  # not square, odd and even: rows and columns must differ


def functional(output):
    return keras.Model(SIDE, output)


CASES = {
    "same, stride 2": LAYERS.Conv2D(5, (3, 2), strides=2, padding="same")(SIDE),
    "valid, dilated": LAYERS.Conv2D(5, 3, dilation_rate=2, use_bias=False)(SIDE),
    "groups and relu": LAYERS.Conv2D(6, 3, groups=2, activation="relu")(SIDE),
    "depthwise": LAYERS.DepthwiseConv2D(3, depth_multiplier=2, padding="same")(SIDE),
    "flatten": LAYERS.Dense(3, use_bias=False)(LAYERS.Flatten()(SIDE)),
    "flatten one pixel": LAYERS.Flatten()(LAYERS.GlobalAveragePooling2D(keepdims=True)(SIDE)),
    "average, same": LAYERS.AveragePooling2D(3, strides=2, padding="same")(SIDE),
    "largest, same": LAYERS.MaxPooling2D((2, 3), strides=2, padding="same")(SIDE),
    "global largest": LAYERS.GlobalMaxPooling2D()(SIDE),
    "padding": LAYERS.ZeroPadding2D(((1, 2), (3, 0)))(SIDE),
    "sum of three": LAYERS.Add()([SIDE, LAYERS.ReLU()(SIDE), LAYERS.ReLU(0.5)(SIDE)]),
    "concatenated": LAYERS.Concatenate()([SIDE, LAYERS.Activation("relu6")(SIDE)]),
    "concatenated rows": LAYERS.Concatenate(axis=1)([SIDE, LAYERS.ReLU()(SIDE)]),
    "softmax over channels": LAYERS.Softmax()(SIDE),
    "norm without scale": LAYERS.BatchNormalization(scale=False, center=False)(SIDE),
    "sigmoid, tanh": LAYERS.Activation("tanh")(LAYERS.Activation("sigmoid")(SIDE)),
    "dropout": LAYERS.Dropout(0.5)(SIDE),
}


@pytest.mark.parametrize("case", CASES)
def test_layers_are_equal(case):
    assert_equal(normalised(functional(CASES[case])))


def test_nested_nets_and_layers_used_twice_are_equal():
    block = keras.Sequential([keras.Input((9, 8, 4)), LAYERS.Conv2D(4, 3, padding="same")])
    shared = LAYERS.Conv2D(4, 1)
    once = shared(block(SIDE))
    assert_equal(functional(LAYERS.Add()([shared(once), once])))


def test_normalisation_is_folded_only_where_nothing_else_reads_the_convolution():
    plain = LAYERS.Conv2D(4, 3, padding="same")(SIDE)
    norm = LAYERS.BatchNormalization()
    alone = functional(norm(plain))
    read_twice = functional(LAYERS.Add()([LAYERS.BatchNormalization()(plain), plain]))
    for net, kept in ((alone, False), (read_twice, True)):
        kinds = [node.op_type for node in int8.graph(net).graph.node]
        assert ("BatchNormalization" in kinds) == kept
        assert_equal(normalised(net))


def test_unknown_layer_is_named():
    with pytest.raises(ValueError, match=r"`model` must have layers among .* \('odd'\)"):
        int8.graph(functional(LAYERS.UpSampling2D(name="odd")(SIDE)))
