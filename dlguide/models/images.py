"""Nets for images and clips: classifiers, denoising autoencoders, and the pair of a GAN."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.models.registry import NetSpec, SeededLayers, Shape, Sizes, register

if TYPE_CHECKING:
    import keras

# --- digits: 28 x 28 x 1, 10 classes ---


@register(
    NetSpec("mlp", "digits", 50_890, (28, 28, 1), dropout=0.0),
    NetSpec("mnist_cnn", "digits", 184_586, (28, 28, 1), dropout=0.25),
    NetSpec("mnist_cnn_bn", "digits", 184_778, (28, 28, 1), dropout=0.25),
)
def digits_net(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a small net for digits: dense, or with two convolutions of 5 x 5."""
    import keras
    import numpy as np

    layers, dtype, wide = keras.layers, make.dtype, make.wide
    seeds = np.random.SeedSequence(make.seed).generate_state(8) >> 1
    starts = (keras.initializers.GlorotUniform(seed=int(seed)) for seed in seeds)
    net = [keras.Input(shape, dtype=wide, name="images")]
    for number, filters in enumerate(() if make.name == "mlp" else (32, 64), start=1):
        start = {"kernel_initializer": next(starts), "name": f"conv{number}"}
        net.append(layers.Conv2D(filters, 5, dtype=dtype, **start))
        if make.name == "mnist_cnn_bn":
            net.append(layers.BatchNormalization(dtype=dtype, name=f"norm{number}"))
        net.append(layers.ReLU(dtype=dtype, name=f"relu{number}"))
        net.append(layers.MaxPooling2D(dtype=dtype, name=f"pool{number}"))
    hidden = 64 if make.name == "mlp" else 128
    net += [
        layers.Flatten(dtype=dtype, name="flatten"),
        layers.Dense(hidden, "relu", kernel_initializer=next(starts), dtype=dtype, name="hidden"),
        layers.Dropout(dropout, seed=make.dropout_seed, dtype=dtype, name="dropout"),
        layers.Dense(10, kernel_initializer=next(starts), dtype=wide, name="logits"),
    ]
    return keras.Sequential(net, name=make.name)


# --- CIFAR-10: 6 n + 2 layers on images of 32 x 32 x 3 ---


def _cifar(name: str, parameters: int) -> NetSpec:
    inputs, sizes = ("image", "image", 3), {"image": 32, "classes": 10}
    return NetSpec(name, "classifier", parameters, inputs, sizes, least={"image": 8})


@register(
    _cifar("resnet8", 75_290),
    _cifar("resnet20", 269_722),
    _cifar("resnet32", 464_154),
    _cifar("resnet44", 658_586),
    _cifar("resnet56", 853_018),
    _cifar("resnet110", 1_727_962),
)
def cifar_resnet(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a residual net for small images.

    A convolution of 16 filters, then three stages of n blocks of two 3 x 3 convolutions with 16,
    32 and 64 filters on maps of 32, 16 and 8 pixels, the mean over the map, and one dense layer.
    Shortcuts are those of the paper's option A: where a stage halves the map, the shortcut takes
    every second pixel and puts zeros into the new channels, without parameters. The paper's nets
    begin with 20 layers; that of 8 follows the same rule, for trainings of seconds.

    Source:
        He et al. 2015 (arXiv:1512.03385), sections 3.3 and 4.2, Table 6.
    """
    import keras

    blocks = (int(make.name.removeprefix("resnet")) - 2) // 6
    images = keras.Input(shape, dtype=make.wide, name="images")
    x = make("ReLU", make.normalised(images, 16, 3, 1, "conv1"), name="conv1_relu")
    for stage, filters in enumerate((16, 32, 64), start=2):
        for number in range(1, blocks + 1):
            block = f"conv{stage}_block{number}"
            strides = 2 if number == 1 and stage > 2 else 1
            shortcut = x if strides == 1 else _subsampled(make, x, filters, block)
            x = make.normalised(x, filters, 3, strides, f"{block}_1")
            x = make("ReLU", x, name=f"{block}_1_relu")
            x = make.normalised(x, filters, 3, 1, f"{block}_2")
            x = make("Add", [shortcut, x], name=f"{block}_add")
            x = make("ReLU", x, name=f"{block}_relu")
    x = make("GlobalAveragePooling2D", x, name="mean")
    if dropout > 0:
        x = make("Dropout", x, dropout, name="dropout")
    return keras.Model(images, make.logits(x, int(sizes["classes"])), name=make.name)


def _subsampled(make: SeededLayers, x: Any, filters: int, block: str) -> Any:
    """Take every second pixel and fill up with channels of zeros: option A."""
    x = make("AveragePooling2D", x, 1, 2, name=f"{block}_subsample")
    height, width, channels = x.shape[1:]
    # padding works on spatial dimensions, so the channels become one of them
    x = make("Reshape", x, (height, width, channels, 1), name=f"{block}_channels")
    pads = ((0, 0), (0, 0), (0, filters - channels))
    x = make("ZeroPadding3D", x, pads, data_format="channels_last", name=f"{block}_zeros")
    return make("Reshape", x, (height, width, filters), name=f"{block}_shortcut")


# --- clips of video ---


_CLIPS = ("frames", "image", "image", "channels")
_CNN_3D = {"frames": 8, "image": 32, "channels": 1, "filters": 16, "hidden": 64, "classes": 10}
_C3D = {"frames": 16, "image": 112, "channels": 3, "filters": 64, "hidden": 2048, "classes": 101}


@register(
    NetSpec("cnn_3d", "classifier", 277_162, _CLIPS, _CNN_3D, least={"frames": 4, "image": 4}),
    NetSpec("c3d", "classifier", 17_444_965, _CLIPS, _C3D),
)
def clip_net(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a net of 3 x 3 x 3 convolutions, each with ReLU and pooling after it.

    "cnn_3d" has two convolutions and one dense layer before the last; small enough for a lesson.
    "c3d" has five and two, for 16 frames of 112 x 112 x 3, as the net with which Tran et al.
    searched for the best depth of a kernel. Where 7 pixels are halved 4 remain, as their framework
    rounds. Dropout is left to the caller.

    Source:
        Tran et al. 2015 (arXiv:1412.0767), section 3.1.
    """
    import keras

    c3d = make.name == "c3d"
    clips = x = keras.Input(shape, dtype=make.wide, name="clips")
    for number, multiple in enumerate((1, 2, 4, 4, 4) if c3d else (1, 2), start=1):
        filters, layer = multiple * int(sizes["filters"]), f"conv{number}"
        x = make("Conv3D", x, filters, 3, padding="same", activation="relu", name=layer)
        # C3D keeps the frames apart in its first layer
        window = (1, 2, 2) if c3d and number == 1 else (2, 2, 2)
        x = make("MaxPooling3D", x, window, padding="same", name=f"pool{number}")
    x = make("Flatten", x, name="flatten")
    for number in (1, 2) if c3d else (1,):
        x = make("Dense", x, int(sizes["hidden"]), activation="relu", name=f"hidden{number}")
        x = make("Dropout", x, dropout, name=f"dropout{number}")
    return keras.Model(clips, make.logits(x, int(sizes["classes"])), name=make.name)


# --- ImageNet: photographs of 224 x 224 x 3, as the papers and torchvision have the nets ---

_RESNET_BLOCKS = {
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
# Columns of Table 1 in Szegedy et al. 2014: filters of the 1 x 1 branch, of the 3 x 3 one with
# its reduction, of the 5 x 5 one with its reduction, and of the projection after the pooling.
_INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def _photographs(
    name: str, parameters: int, dropout: float = 0.0, image: int = 224, smallest: int = 32
) -> NetSpec:
    inputs, sizes = ("image", "image", 3), {"image": image, "classes": 1000}
    least = {"image": smallest}
    return NetSpec(name, "imagenet", parameters, inputs, sizes, least, dropout, start="zeros")


@register(
    _photographs("alexnet", 61_100_840, 0.5, smallest=63),
    _photographs("vgg16", 138_357_544, 0.5),
    _photographs("vgg19", 143_667_240, 0.5),
    _photographs("googlenet", 6_998_552, 0.4),
    _photographs("inception_v3", 23_817_352, 0.2, image=299, smallest=75),
    _photographs("resnet50", 25_557_032),
    _photographs("resnet50_v1.5", 25_557_032),
    _photographs("resnet101", 44_549_160),
    _photographs("resnet152", 60_192_808),
    _photographs("densenet121", 7_978_856),
    _photographs("xception", 22_855_952, 0.5, image=299, smallest=71),
    _photographs("mobilenet_v2", 3_504_872, 0.2),
)
def imagenet_net(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a large net with the initial weights of its seed."""
    model = undrawn(make, shape, sizes, dropout)
    draw(model, make.seed)
    return model


def undrawn(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a large net without initial weights, for counting."""
    import keras

    with _global_state_of_keras_kept(make.dtype):
        images = keras.Input(shape, dtype=make.wide, name="images")
        features = _features(make, images, dropout)
        return keras.Model(images, make.logits(features, int(sizes["classes"])), name=make.name)


def _features(make: SeededLayers, images: keras.KerasTensor, dropout: float) -> keras.KerasTensor:
    """Apply everything before the last layer, its dropout included."""
    import keras
    import numpy as np

    name = make.name
    top = [] if dropout == 0 else ["last"]
    if name in _RESNET_BLOCKS:
        x = _resnet(make, images, _RESNET_BLOCKS[name], stride_in_3x3=name.endswith("v1.5"))
    elif name == "alexnet":
        x = _alexnet(make, images)
    elif name == "googlenet":
        x = _googlenet(make, images)
    else:
        application = getattr(keras.applications, _IN_KERAS[name])
        x = application(include_top=False, weights=None, input_tensor=images).output
    if name in ("alexnet", "vgg16", "vgg19"):
        x = make("Flatten", x, name="flatten")
        top = ["fc1", "fc2"]
    else:
        x = make("GlobalAveragePooling2D", x, name="mean")
    seeds = np.random.SeedSequence(make.dropout_seed).generate_state(2) >> 1
    for seed, layer in zip(seeds, top, strict=False):
        if name.startswith("vgg"):
            x = make("Dense", x, 4096, activation="relu", name=layer)
        x = make("Dropout", x, dropout, seed=int(seed), name=f"{layer}_dropout")
        if name == "alexnet":
            x = make("Dense", x, 4096, activation="relu", name=layer)
    return x


def _resnet(make: SeededLayers, x: Any, blocks: Sequence[int], stride_in_3x3: bool) -> Any:
    """Apply bottleneck blocks: He et al. 2015 (arXiv:1512.03385), Table 1."""
    x = make.normalised(x, 64, 7, 2, "conv1")
    x = make("ReLU", x, name="conv1_relu")
    x = make("ZeroPadding2D", x, 1, name="pool1_pad")
    x = make("MaxPooling2D", x, 3, 2, name="pool1")
    for stage, count in enumerate(blocks, start=2):
        filters = 64 * 2 ** (stage - 2)
        for number in range(1, count + 1):
            name = f"conv{stage}_block{number}"
            strides = 2 if number == 1 and stage > 2 else 1
            first, second = (1, strides) if stride_in_3x3 else (strides, 1)
            shortcut = x
            if number == 1:
                shortcut = make.normalised(x, 4 * filters, 1, strides, f"{name}_0")
            x = make.normalised(x, filters, 1, first, f"{name}_1")
            x = make("ReLU", x, name=f"{name}_1_relu")
            x = make.normalised(x, filters, 3, second, f"{name}_2")
            x = make("ReLU", x, name=f"{name}_2_relu")
            x = make.normalised(x, 4 * filters, 1, 1, f"{name}_3")
            x = make("Add", [shortcut, x], name=f"{name}_add")
            x = make("ReLU", x, name=f"{name}_relu")
    return x


def _alexnet(make: SeededLayers, x: Any) -> Any:
    """Apply the convolutions without groups: Krizhevsky 2014 (arXiv:1404.5997), footnote 1."""
    x = make("ZeroPadding2D", x, 2, name="conv1_pad")
    x = make.convolve(x, 64, 11, "conv1", strides=4, padding="valid")
    x = make("MaxPooling2D", x, 3, 2, name="pool1")
    x = make.convolve(x, 192, 5, "conv2")
    x = make("MaxPooling2D", x, 3, 2, name="pool2")
    x = make.convolve(x, 384, 3, "conv3")
    x = make.convolve(x, 256, 3, "conv4")
    x = make.convolve(x, 256, 3, "conv5")
    return make("MaxPooling2D", x, 3, 2, name="pool5")


def _googlenet(make: SeededLayers, x: Any) -> Any:
    """Apply the inception blocks: Szegedy et al. 2014 (arXiv:1409.4842), Table 1."""
    x = make.convolve(x, 64, 7, "conv1", strides=2)
    x = make("MaxPooling2D", x, 3, 2, "same", name="pool1")
    x = make.convolve(x, 64, 1, "conv2_reduce")
    x = make.convolve(x, 192, 3, "conv2")
    x = make("MaxPooling2D", x, 3, 2, "same", name="pool2")
    for name, (one, reduce3, three, reduce5, five, project) in _INCEPTION.items():
        if name in ("4a", "5a"):
            x = make("MaxPooling2D", x, 3, 2, "same", name=f"pool{name[0]}")
        branch1 = make.convolve(x, one, 1, f"{name}_1x1")
        branch3 = make.convolve(x, reduce3, 1, f"{name}_3x3_reduce")
        branch3 = make.convolve(branch3, three, 3, f"{name}_3x3")
        branch5 = make.convolve(x, reduce5, 1, f"{name}_5x5_reduce")
        branch5 = make.convolve(branch5, five, 5, f"{name}_5x5")
        pooled = make("MaxPooling2D", x, 3, 1, "same", name=f"{name}_pool")
        pooled = make.convolve(pooled, project, 1, f"{name}_project")
        x = make("Concatenate", [branch1, branch3, branch5, pooled], name=f"{name}_concat")
    return x


def draw(model: keras.Model, seed: int) -> None:
    """Give each kernel of a large net its own initial weights: He's, the last layer's Glorot's."""
    import keras
    import numpy as np

    kernels = [each for each in model.trainable_weights if each.name.endswith("kernel")]
    seeds = np.random.SeedSequence(seed).generate_state(len(kernels)) >> 1
    for weight, number in zip(kernels, seeds, strict=True):
        last = weight is model.layers[-1].kernel
        kind = keras.initializers.GlorotUniform if last else keras.initializers.HeNormal
        weight.assign(kind(seed=int(number))(weight.shape, dtype=weight.dtype))


@contextmanager
def _global_state_of_keras_kept(dtype: str) -> Iterator[None]:
    """Let keras.applications use `dtype`, and restore the global policy and Python's `random`."""
    import keras

    policy, state = keras.config.dtype_policy(), random.getstate()
    keras.config.set_dtype_policy(dtype)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)
        random.setstate(state)


# --- nets that give images: denoising autoencoders, and the pair of a GAN ---

# Smallest map of a DCGAN (pixels) and how often it is doubled.
_MAPS = {"dcgan": (7, 2), "dcgan64": (4, 4)}
_PICTURE = ("image", "image", "channels")
_SMALL, _LARGE = {"filters": 32, "channels": 1}, {"filters": 128, "channels": 3}


_NOISY = {"image": 28, "channels": 1, "noise": 0.5}


def _autoencoder(name: str, parameters: int, image: int = 1, **sizes: int) -> NetSpec:
    least = {"image": image}
    return NetSpec(name, "autoencoder", parameters, _PICTURE, {**_NOISY, **sizes}, least, None)


@register(
    _autoencoder("autoencoder", 419_120, hidden=256, code=32),
    _autoencoder("conv_autoencoder", 2_633, image=4, filters=16, code=8),
)
def autoencoder(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a denoising autoencoder.

    "autoencoder" has dense layers down to `code` values and up again, "conv_autoencoder" two
    convolutions that halve the image, down to `code` channels, and two transposed ones. Both add
    normal noise to their input while they are trained, and none when they infer. Train them to
    give the clean image: the logits are for binary cross-entropy with images of 0 to 1.

    Source:
        Vincent et al., ICML 2008.
    """
    import keras

    convolutional = make.name == "conv_autoencoder"
    then = "The image is halved twice and doubled twice."
    halved = not convolutional or shape[0] % 4 == 0
    require(halved, "image", "be a multiple of 4", shape[0], then)
    images = keras.Input(shape, dtype=make.wide, name="inputs")
    x = make("GaussianNoise", images, sizes["noise"], name="noise")
    x = (_convolutional if convolutional else _dense)(make, x, sizes)
    return keras.Model(images, x, name=make.name)


def _dcgan(name: str, task: str, parameters: int, *inputs: int | str, **sizes: int) -> NetSpec:
    return NetSpec(name, task, parameters, inputs, sizes, dropout=None, start="RandomNormal")


@register(
    _dcgan("dcgan_generator", "generator", 365_793, "latent", latent=100, **_SMALL),
    _dcgan("dcgan_discriminator", "discriminator", 55_297, 28, 28, "channels", **_SMALL),
    _dcgan("dcgan64_generator", "generator", 18_855_043, "latent", latent=100, **_LARGE),
    _dcgan("dcgan64_discriminator", "discriminator", 17_232_897, 64, 64, "channels", **_LARGE),
)
def dcgan(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build the generator or the discriminator of a DCGAN.

    A generator makes images of -1 to 1 of `latent` random values, a discriminator gives one logit,
    above 0 for a true image. "dcgan_..." is for 28 x 28 x 1, small enough for a lesson.
    "dcgan64_generator" is the paper's, drawn in its Figure 1: 1024, 512, 256, 128 channels on maps
    of 4, 8, 16, 32 pixels; "dcgan64_discriminator" is its mirror, which the paper describes
    without a figure. 64 x 64 x 3.

    A DCGAN has convolutions with strides instead of pooling, kernels of 5 x 5, batch
    normalisation everywhere but at the generator's output and the discriminator's input, ReLU
    in the generator and LeakyReLU of slope 0.2 in the discriminator.

    Source:
        Radford et al. 2015 (arXiv:1511.06434), sections 3 and 4, Figure 1.
    """
    import keras

    inputs = keras.Input(shape, dtype=make.wide, name="inputs")
    smallest, doublings = _MAPS[make.name.split("_")[0]]
    if make.name.endswith("generator"):
        x = _generator(make, inputs, sizes, smallest, doublings)
    else:
        x = _discriminator(make, inputs, sizes, doublings)
    return keras.Model(inputs, x, name=make.name)


def _dense(make: SeededLayers, x: Any, sizes: Sizes) -> Any:
    import keras

    shape, hidden = tuple(x.shape[1:]), int(sizes["hidden"])
    x = make("Flatten", x, name="flatten")
    x = make("Dense", x, hidden, activation="relu", name="encode")
    x = make("Dense", x, int(sizes["code"]), activation="relu", name="code")
    x = make("Dense", x, hidden, activation="relu", name="decode")
    x = make.logits(x, shape[0] * shape[1] * shape[2])
    return keras.layers.Reshape(shape, dtype=make.wide, name="image")(x)


def _convolutional(make: SeededLayers, x: Any, sizes: Sizes) -> Any:
    filters, same = int(sizes["filters"]), {"strides": 2, "padding": "same"}
    relu = {"activation": "relu", **same}
    x = make("Conv2D", x, filters, 3, name="encode", **relu)
    x = make("Conv2D", x, int(sizes["code"]), 3, name="code", **relu)
    x = make("Conv2DTranspose", x, filters, 3, name="decode", **relu)
    return _last(make, x, int(sizes["channels"]), 3, name="logits", **same)


def _generator(make: SeededLayers, x: Any, sizes: Sizes, smallest: int, doublings: int) -> Any:
    filters = int(sizes["filters"]) * 2 ** (doublings - 1)
    x = make("Dense", x, smallest**2 * filters, use_bias=False, name="project")
    x = make("Reshape", x, (smallest, smallest, filters), name="map")
    same = {"strides": 2, "padding": "same"}
    for number in range(1, doublings):
        x = _normalised_relu(make, x, f"norm{number}")
        filters //= 2
        x = make("Conv2DTranspose", x, filters, 5, use_bias=False, name=f"up{number}", **same)
    x = _normalised_relu(make, x, f"norm{doublings}")
    return _last(make, x, int(sizes["channels"]), 5, name="image", activation="tanh", **same)


def _normalised_relu(make: SeededLayers, x: Any, name: str) -> Any:
    x = make("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=name)
    return make("ReLU", x, name=f"{name}_relu")


def _discriminator(make: SeededLayers, x: Any, sizes: Sizes, halvings: int) -> Any:
    filters = int(sizes["filters"])
    for number in range(1, halvings + 1):
        first = number == 1
        x = make("Conv2D", x, filters, 5, 2, "same", use_bias=first, name=f"down{number}")
        if not first:
            x = make("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=f"norm{number}")
        x = make("LeakyReLU", x, negative_slope=0.2, name=f"relu{number}")
        filters *= 2
    return make.logits(make("Flatten", x, name="flatten"), 1, name="logit")


def _last(make: SeededLayers, x: Any, channels: int, kernel: int, **options: Any) -> Any:
    """Apply the last transposed convolution, in float32 also in mixed precision."""
    return make("Conv2DTranspose", x, channels, kernel, dtype=make.wide, **options)
