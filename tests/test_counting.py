"""Counted costs are those of papers, of TensorFlow's profiler and of closed forms."""

import json
from dataclasses import asdict

import pytest

from dlguide import models, published

PUBLISHED = {(row["name"], row["source"]): row for row in published.load("architectures")}


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras", reason="the nets are Keras models")


@pytest.fixture(scope="module")
def costs(keras):
    """Count each large net once."""
    return {name: models.count(models.build(name, seed=None)) for name in models.names("imagenet")}


@pytest.mark.parametrize(
    ("net", "name", "source"),
    [
        ("resnet50", "ResNet-50", "He et al. 2015 Table 1"),
        ("resnet50", "ResNet-50", "Hu et al. 2017 section 4"),
        ("resnet50_v1.5", "ResNet-50", "torchvision"),
        ("resnet101", "ResNet-101", "He et al. 2015 Table 1"),
        ("resnet152", "ResNet-152", "He et al. 2015 Table 1"),
        ("vgg16", "VGG-16", "He et al. 2015 section 1"),
        ("vgg16", "VGG-16", "torchvision"),
        ("vgg19", "VGG-19", "He et al. 2015 section 1"),
        ("vgg19", "VGG-19", "torchvision"),
        ("densenet121", "DenseNet-121", "torchvision"),
        ("inception_v3", "Inception V3", "torchvision"),
        ("mobilenet_v2", "MobileNet V2", "torchvision"),
    ],
)
def test_multiply_adds_are_within_2_percent_of_the_published_ones(net, name, source, costs):
    printed = PUBLISHED[name, source]["multiply_adds"]
    assert abs(costs[net].multiply_adds / printed - 1) < 0.02


@pytest.mark.parametrize(
    ("net", "name", "source"),
    [
        ("vgg16", "VGG-16", "torchvision"),
        ("vgg19", "VGG-19", "torchvision"),
        ("resnet50", "ResNet-50", "torchvision"),
        ("resnet50_v1.5", "ResNet-50", "torchvision"),
        ("resnet101", "ResNet-101", "torchvision"),
        ("resnet152", "ResNet-152", "torchvision"),
        ("densenet121", "DenseNet-121", "torchvision"),
        ("xception", "Xception", "Chollet 2016 Table 3"),
        ("mobilenet_v2", "MobileNet V2", "torchvision"),
    ],
)
def test_parameters_are_exactly_the_published_ones(net, name, source, costs):
    assert costs[net].parameters == PUBLISHED[name, source]["parameters"]


@pytest.mark.parametrize(
    ("net", "name"),
    [
        ("inception_v3", "Inception V3"),
        ("densenet121", "DenseNet-121"),
        ("xception", "Xception"),
        ("mobilenet_v2", "MobileNet V2"),
    ],
)
def test_with_statistics_they_are_the_parameters_that_keras_publishes(net, name, costs):
    total = costs[net].parameters + costs[net].statistics
    assert total == PUBLISHED[name, "keras.applications"]["parameters"]


def build(keras, shape, *layers):
    return keras.Sequential([keras.Input(shape), *layers])


# (input shape, layer, multiply-adds, other flops), by hand
BY_HAND = [
    ((8, 8, 3), ("Conv2D", 5, 3), {}, 6 * 6 * 9 * 3 * 5, 6 * 6 * 5),
    ((9, 9, 4), ("Conv2D", 6, 3), {"strides": 2, "groups": 2}, 16 * 9 * 2 * 6, 16 * 6),
    ((10, 3), ("Conv1D", 4, 5), {"use_bias": False}, 6 * 5 * 3 * 4, 0),
    ((6, 6, 6, 2), ("Conv3D", 3, 3), {"activation": "relu"}, 64 * 27 * 2 * 3, 2 * 64 * 3),
    ((8, 8, 3), ("DepthwiseConv2D", 3), {"depth_multiplier": 2}, 36 * 9 * 6, 36 * 6),
    ((8, 8, 4), ("SeparableConv2D", 5, 3), {}, 36 * 9 * 4 + 36 * 4 * 5, 36 * 5),
    ((4, 4, 3), ("Conv2DTranspose", 2, 2), {"strides": 2}, 16 * 3 * 4 * 2, 64 * 2),
    ((7,), ("Dense", 11), {}, 7 * 11, 11),
    ((5, 7), ("Dense", 11), {"activation": "softmax"}, 5 * 7 * 11, 4 * 5 * 11),
    ((8, 8, 3), ("MaxPooling2D", 2), {}, 0, 4 * 4 * 3 * 4),
    ((8, 8, 3), ("GlobalAveragePooling2D",), {}, 0, 192),
    ((8, 8, 3), ("BatchNormalization",), {}, 0, 2 * 192),
    ((8, 8, 3), ("ReLU",), {}, 0, 192),
    ((8, 8, 3), ("Activation", "tanh"), {}, 0, 192),
    ((8, 8, 3), ("ZeroPadding2D", 1), {}, 0, 0),
    ((8, 8, 3), ("Flatten",), {}, 0, 0),
    ((8, 8, 3), ("Dropout", 0.5), {}, 0, 0),
]


@pytest.mark.parametrize(("shape", "layer", "options", "multiply_adds", "other"), BY_HAND)
def test_each_kind_of_layer_costs_what_its_closed_form_says(
    shape, layer, options, multiply_adds, other, keras
):
    kind, *args = layer
    cost = models.count(build(keras, shape, getattr(keras.layers, kind)(*args, **options)))
    assert (cost.multiply_adds, cost.flops) == (multiply_adds, 2 * multiply_adds + other)


@pytest.mark.parametrize("name", [*models.names("digits"), "vgg16", "resnet50"])
def test_multiply_adds_are_those_of_tensorflows_profiler(name, keras):
    import tensorflow as tf

    profiler = tf.compat.v1.profiler
    small = {} if name in models.names("digits") else {"image": 64, "classes": 10}
    model = models.build(name, **small)
    images = tf.TensorSpec((1, *model.input_shape[1:]))
    graph = tf.function(lambda x: model(x, training=False)).get_concrete_function(images).graph
    options = profiler.ProfileOptionBuilder(profiler.ProfileOptionBuilder.float_operation())
    options = options.with_empty_output().select(["float_ops"]).order_by("float_ops")
    root = profiler.profile(graph, cmd="op", options=options.build())
    theirs, node = 0, root
    while node.children:
        node = node.children[0]
        if node.name in ("Conv2D", "MatMul"):
            theirs += node.total_float_ops - sum(c.total_float_ops for c in node.children)
    assert 2 * models.count(model).multiply_adds == theirs > 0


def test_training_costs_three_times_the_forward_pass_less_the_gradient_of_the_images(costs):
    for name in ("vgg16", "resnet50"):
        cost = costs[name]
        first = next(layer for layer in cost.layers if layer.multiply_adds)
        assert cost.training_multiply_adds == 3 * cost.multiply_adds - first.multiply_adds


def test_frozen_layers_cost_no_gradients(keras):
    layers = [keras.layers.Dense(units, use_bias=False) for units in (3, 5, 7)]
    model = build(keras, (2,), *layers)
    assert models.count(model).training_multiply_adds == 2 * 6 + 3 * 15 + 3 * 35
    layers[0].trainable = False
    assert models.count(model).training_multiply_adds == 6 + 2 * 15 + 3 * 35
    layers[0].trainable, layers[1].trainable = True, False
    cost = models.count(model)
    assert cost.training_multiply_adds == 2 * 6 + 2 * 15 + 3 * 35
    assert (cost.parameters, cost.trainable, cost.gradient_bytes) == (56, 41, 164)
    wide = keras.layers.Dense(5, use_bias=False, dtype="float64")
    cost = models.count(build(keras, (2,), wide, keras.layers.Dense(3, use_bias=False)))
    assert cost.gradient_bytes == 8 * 2 * 5 + 4 * 5 * 3


def test_bytes_are_inputs_outputs_and_the_share_of_the_weights(keras):
    model = build(keras, (7,), keras.layers.Dense(11))
    for batch in (1, 10):
        cost = models.count(model, batch)
        assert (cost.activation_bytes, cost.weight_bytes) == (44, 4 * 88)
        assert cost.bytes_moved == 28 + 44 + 352 / batch
        assert cost.flops_per_byte == cost.flops / cost.bytes_moved
    half = keras.Sequential([keras.Input((7,)), keras.layers.Dense(11, dtype="mixed_bfloat16")])
    assert models.count(half).activation_bytes == 22


def test_models_inside_models_and_layers_used_twice_are_counted(keras):
    inner = models.build("mlp")
    images = keras.Input((28, 28, 1))
    shared = keras.layers.Dense(10, use_bias=False, name="shared")
    logits = shared(shared(inner(images)))
    cost = models.count(keras.Model(images, logits))
    assert cost.multiply_adds == models.count(inner).multiply_adds + 2 * 100
    assert cost.parameters == models.parameters("mlp") + 100
    assert {layer.name for layer in cost.layers} >= {"mlp/hidden", "shared"}
    assert cost.training_multiply_adds == models.count(inner).training_multiply_adds + 6 * 100


def test_the_sums_by_kind_are_the_whole_and_everything_is_json(costs):
    cost = costs["resnet50"]
    for field in ("parameters", "multiply_adds", "flops", "bytes_moved"):
        total = sum(getattr(one, field) for one in cost.by_kind())
        assert total == pytest.approx(getattr(cost, field), rel=1e-12)
    assert json.loads(json.dumps(asdict(cost)))["name"] == "resnet50"


def test_an_unknown_layer_with_weights_is_named(keras):
    layer = keras.layers.ConvLSTM1D(4, 3, name="memory")
    model = build(keras, (5, 6, 3), layer)
    with pytest.raises(ValueError, match=r"got 'layer memory of kind ConvLSTM1D with 3 weights'"):
        models.count(model)


def test_open_shapes_and_hidden_graphs_are_refused(keras):
    open_shape = build(keras, (None, None, 3), keras.layers.Conv2D(2, 3))
    with pytest.raises(ValueError, match=r"fixed shapes at layer conv2d.*got \(None, None, 3\)"):
        models.count(open_shape)
    with pytest.raises(ValueError, match="functional or sequential Keras model with known input"):
        models.count(keras.Sequential([keras.layers.Dense(3)]))
    with pytest.raises(ValueError, match="`batch` must be a whole number of at least 1, got 0"):
        models.count(models.build("mlp"), 0)
