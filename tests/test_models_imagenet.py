"""The large nets are those of their papers, and their seed alone decides how they start."""

import hashlib

import numpy as np
import pytest

from dlguide import models
from dlguide.models.nets import NETS, normalised


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


def test_a_convolution_with_stride_pads_both_sides(keras):
    """As the papers: 224 becomes 112, and the first window has padding on its left."""
    images = keras.Input((8, 8, 1))
    model = keras.Model(images, normalised(images, 1, 3, 2, "conv"))
    model.get_layer("conv").kernel.assign(np.ones((3, 3, 1, 1)))
    sums = model.get_layer("conv").output
    counted = keras.Model(images, sums)(np.ones((1, 8, 8, 1))).numpy()[0, :, :, 0]
    assert counted.tolist() == [[4, 6, 6, 6]] + [[6, 9, 9, 9]] * 3


def small(name, **options):
    """Build a large net for the smallest images it takes."""
    return models.build(name, image=NETS[name].least, classes=7, **options)


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "densenet121"])
def test_the_seed_alone_decides_the_weights_of_a_large_net(name, keras):
    keras.utils.set_random_seed(1)
    first = digest(small(name, seed=5))
    keras.utils.set_random_seed(2)
    assert digest(small(name, seed=5)) == first
    assert digest(small(name, seed=6)) != first


def test_kernels_start_from_hes_distribution_and_biases_from_0(keras):
    model = small("vgg16")
    kernel = model.get_layer("block3_conv2").kernel.numpy()
    assert abs(kernel.std() / np.sqrt(2 / (9 * 256)) - 1) < 0.03
    assert not model.get_layer("block3_conv2").bias.numpy().any()
    logits = model.get_layer("logits").kernel.numpy()
    assert np.abs(logits).max() <= np.sqrt(6 / (4096 + 7))


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "densenet121"])
def test_large_nets_infer_what_those_of_keras_infer_with_the_same_weights(name, keras):
    """Ours have no bias before batch normalisation; that of Keras is 0 when it starts."""
    theirs = getattr(
        keras.applications, {"vgg16": "VGG16", "resnet50": "ResNet50"}.get(name, "DenseNet121")
    )(include_top=False, weights=None, input_shape=(64, 64, 3))
    ours = models.build(name, image=64, classes=7)
    theirs.set_weights([w if w.ndim == 1 else 3 * w for w in theirs.get_weights()])
    for layer in theirs.layers:
        weights = layer.get_weights()
        if weights and name == "resnet50":
            mine = layer.name.replace("_conv", "").replace("_bn", "_norm")
            ours.get_layer(mine).set_weights(weights[:1] if "_conv" in layer.name else weights)
        elif weights:
            ours.get_layer(layer.name).set_weights(weights)
    body = keras.Model(ours.inputs, ours.get_layer("flatten" if "vgg" in name else "mean").input)
    images = np.random.default_rng(4).random((2, 64, 64, 3), "float32")
    expected = theirs(images, training=False).numpy()
    assert np.abs(expected).max() > 0
    # Keras' epsilon is 1.001e-5, ours 1e-5
    assert np.abs(body([images]).numpy() - expected).max() < 2e-3 * np.abs(expected).max()
