"""The large nets of the guide by name, as their papers and torchvision have them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlguide.models.blocks import Layers, alexnet, googlenet, resnet

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Architecture:
    """What a large net is, before it is built.

    `image` is the height and width of its images and `smallest` the least it can work on
    (pixels), `dropout` the share that its paper drops, `parameters` the number of its trainable
    parameters with 1000 classes.
    """

    image: int
    smallest: int
    dropout: float
    parameters: int


ARCHITECTURES = {
    "alexnet": Architecture(224, 63, 0.5, 61_100_840),
    "vgg16": Architecture(224, 32, 0.5, 138_357_544),
    "vgg19": Architecture(224, 32, 0.5, 143_667_240),
    "googlenet": Architecture(224, 32, 0.4, 6_998_552),
    "inception_v3": Architecture(299, 75, 0.2, 23_817_352),
    "resnet50": Architecture(224, 32, 0.0, 25_557_032),
    "resnet50_v1.5": Architecture(224, 32, 0.0, 25_557_032),
    "resnet101": Architecture(224, 32, 0.0, 44_549_160),
    "resnet152": Architecture(224, 32, 0.0, 60_192_808),
    "densenet121": Architecture(224, 32, 0.0, 7_978_856),
    "xception": Architecture(299, 71, 0.5, 22_855_952),
    "mobilenet_v2": Architecture(224, 32, 0.2, 3_504_872),
}
_BLOCKS = {
    "resnet50": (3, 4, 6, 3),
    "resnet50_v1.5": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
# Published nets that Keras has with exactly the published parameters.
_IN_KERAS = {
    "vgg16": "VGG16",
    "vgg19": "VGG19",
    "inception_v3": "InceptionV3",
    "densenet121": "DenseNet121",
    "xception": "Xception",
    "mobilenet_v2": "MobileNetV2",
}


def assemble(
    name: str, image: int, classes: int, dropout: float, dtype: str, dropout_seed: int
) -> keras.Model:
    """Put a net of this module together; `draw` then gives it its initial weights."""
    import keras

    with _global_state_of_keras_kept(dtype):
        wide = "float32" if dtype.startswith("mixed") else dtype
        images = keras.Input((image, image, 3), dtype=wide, name="images")
        features = _features(name, Layers(dtype), images, dropout, dropout_seed)
        logits = keras.layers.Dense(classes, dtype=wide, name="logits")(features)
        return keras.Model(images, logits, name=name)


def _features(
    name: str, make: Layers, images: keras.KerasTensor, dropout: float, dropout_seed: int
) -> keras.KerasTensor:
    """Apply everything before the last layer, its dropout included."""
    import keras
    import numpy as np

    top = [] if dropout == 0 else ["last"]
    if name in _BLOCKS:
        x = resnet(make, images, _BLOCKS[name], stride_in_3x3=name.endswith("v1.5"))
    elif name == "alexnet":
        x = alexnet(make, images)
    elif name == "googlenet":
        x = googlenet(make, images)
    else:
        application = getattr(keras.applications, _IN_KERAS[name])
        x = application(include_top=False, weights=None, input_tensor=images).output
    if name in ("alexnet", "vgg16", "vgg19"):
        x = make("Flatten", x, name="flatten")
        top = ["fc1", "fc2"]
    else:
        x = make("GlobalAveragePooling2D", x, name="mean")
    for drop_seed, layer in zip(
        np.random.SeedSequence(dropout_seed).generate_state(2), top, strict=False
    ):
        if name.startswith("vgg"):
            x = make("Dense", x, 4096, activation="relu", name=layer)
        x = make("Dropout", x, dropout, seed=int(drop_seed >> 1), name=f"{layer}_dropout")
        if name == "alexnet":
            x = make("Dense", x, 4096, activation="relu", name=layer)
    return x


def draw(model: keras.Model, seed: int) -> None:
    """Give a net the initial weights of a seed, whatever it had before.

    Each kernel has a seed of its own, drawn from `seed`. Kernels before the last layer come from
    He's normal distribution, for layers that ReLU follows; those of the last layer from Glorot's
    uniform distribution.
    """
    import keras
    import numpy as np

    kernels = [
        weight
        for layer in model.layers
        for weight in layer.trainable_weights
        if weight.name.endswith("kernel")
    ]
    seeds = np.random.SeedSequence(seed).generate_state(len(kernels)) >> 1
    last = model.layers[-1].kernel
    for weight, number in zip(kernels, seeds, strict=True):
        if weight is last:
            start = keras.initializers.GlorotUniform(seed=int(number))
        else:
            start = keras.initializers.HeNormal(seed=int(number))
        weight.assign(start(weight.shape, dtype=weight.dtype))


@contextmanager
def _global_state_of_keras_kept(dtype: str) -> Iterator[None]:
    """Let keras.applications use `dtype`, and undo what it does to the global states.

    Its layers take their dtype from the global policy and their seeds from Python's `random`.
    """
    import keras

    policy, state = keras.config.dtype_policy(), random.getstate()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(state)
