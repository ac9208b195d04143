"""Nets for images and clips that lessons use: classifiers, autoencoders, the pair of a GAN."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from dlcourse.nets.seeded import Net, SeededLayers, Sizes
from dlguide.errors import require
from dlguide.models.nets import draw, layers_of, sequence_of_seeds, wide

# --- clips of video ---


_CNN_3D = {"frames": 8, "image": 32, "channels": 1, "filters": 16, "hidden": 64, "classes": 10}
_C3D = {"frames": 16, "image": 112, "channels": 3, "filters": 64, "hidden": 2048, "classes": 101}


def clip_net(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a net of 3 x 3 x 3 convolutions, each with ReLU and pooling after it.

    "cnn_3d" has two convolutions and one dense layer before the last; small enough for a lesson.
    "c3d" has five and two, for 16 frames of 112 x 112 x 3, as the net with which Tran et al.
    searched for the best depth of a kernel. Where 7 pixels are halved 4 remain, as their framework
    rounds. Dropout is left to the caller.

    Source:
        Tran et al. 2015 (arXiv:1412.0767), section 3.1.
    """
    c3d = make.name == "c3d"
    shape = (sizes["frames"], sizes["image"], sizes["image"], sizes["channels"])
    clips = x = keras.Input(shape, dtype=make.wide, name="clips")
    for number, multiple in enumerate((1, 2, 4, 4, 4) if c3d else (1, 2), start=1):
        filters, layer = multiple * sizes["filters"], f"conv{number}"
        x = make(layers.Conv3D, x, filters, 3, padding="same", activation="relu", name=layer)
        # C3D keeps the frames apart in its first layer
        window = (1, 2, 2) if c3d and number == 1 else (2, 2, 2)
        x = make(layers.MaxPooling3D, x, window, padding="same", name=f"pool{number}")
    x = make(layers.Flatten, x, name="flatten")
    for number in (1, 2) if c3d else (1,):
        x = make(layers.Dense, x, sizes["hidden"], activation="relu", name=f"hidden{number}")
        x = make(layers.Dropout, x, dropout, name=f"dropout{number}")
    return keras.Model(clips, make.logits(x, sizes["classes"]), name=make.name)


# --- photographs of 224 x 224 x 3 ---

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


def photograph_net(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
    """Build one of two large nets with He's initial weights; without a seed, without any.

    "alexnet" is the version without groups; "googlenet" is without its two auxiliary heads and
    without local response normalisation.

    Source:
        Krizhevsky 2014 (arXiv:1404.5997); Szegedy et al. 2014 (arXiv:1409.4842).
    """
    first, second, *_ = sequence_of_seeds(make.dropout_seed)
    with layers_of(make.dtype):
        x = images = keras.Input((sizes["image"], sizes["image"], 3), dtype=wide(), name="images")
        if make.name == "alexnet":
            x = layers.Flatten(name="flatten")(_alexnet(x))
            for layer, seed in (("fc1", first), ("fc2", second)):
                x = layers.Dropout(dropout, seed=seed, name=f"{layer}_dropout")(x)
                x = layers.Dense(4096, "relu", kernel_initializer="zeros", name=layer)(x)
        else:
            x = layers.GlobalAveragePooling2D(name="mean")(_googlenet(x))
            if dropout > 0:
                x = layers.Dropout(dropout, seed=first, name="last_dropout")(x)
        x = layers.Dense(sizes["classes"], dtype=wide(), name="logits")(x)
    model = keras.Model(images, x, name=make.name)
    if make.seed is not None:
        draw(model, sequence_of_seeds(make.seed))
    return model


def _convolved(x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
    options = {"padding": "same", "activation": "relu", "kernel_initializer": "zeros", **options}
    return layers.Conv2D(filters, kernel, name=name, **options)(x)


def _alexnet(x: Any) -> Any:
    """Apply the convolutions without groups: Krizhevsky 2014 (arXiv:1404.5997), footnote 1."""
    x = layers.ZeroPadding2D(2, name="conv1_pad")(x)
    x = _convolved(x, 64, 11, "conv1", strides=4, padding="valid")
    x = layers.MaxPooling2D(3, 2, name="pool1")(x)
    x = _convolved(x, 192, 5, "conv2")
    x = layers.MaxPooling2D(3, 2, name="pool2")(x)
    x = _convolved(x, 384, 3, "conv3")
    x = _convolved(x, 256, 3, "conv4")
    x = _convolved(x, 256, 3, "conv5")
    return layers.MaxPooling2D(3, 2, name="pool5")(x)


def _googlenet(x: Any) -> Any:
    """Apply the inception blocks: Szegedy et al. 2014 (arXiv:1409.4842), Table 1."""
    x = _convolved(x, 64, 7, "conv1", strides=2)
    x = layers.MaxPooling2D(3, 2, "same", name="pool1")(x)
    x = _convolved(x, 64, 1, "conv2_reduce")
    x = _convolved(x, 192, 3, "conv2")
    x = layers.MaxPooling2D(3, 2, "same", name="pool2")(x)
    for name, (one, reduce3, three, reduce5, five, project) in _INCEPTION.items():
        if name in ("4a", "5a"):
            x = layers.MaxPooling2D(3, 2, "same", name=f"pool{name[0]}")(x)
        branch1 = _convolved(x, one, 1, f"{name}_1x1")
        branch3 = _convolved(x, reduce3, 1, f"{name}_3x3_reduce")
        branch3 = _convolved(branch3, three, 3, f"{name}_3x3")
        branch5 = _convolved(x, reduce5, 1, f"{name}_5x5_reduce")
        branch5 = _convolved(branch5, five, 5, f"{name}_5x5")
        pooled = layers.MaxPooling2D(3, 1, "same", name=f"{name}_pool")(x)
        pooled = _convolved(pooled, project, 1, f"{name}_project")
        x = layers.Concatenate(name=f"{name}_concat")([branch1, branch3, branch5, pooled])
    return x


# --- nets that give images: denoising autoencoders, and the pair of a GAN ---

# Smallest map of a DCGAN (pixels) and how often it is doubled.
_MAPS = {"dcgan": (7, 2), "dcgan64": (4, 4)}
_SMALL, _LARGE = {"filters": 32, "channels": 1}, {"filters": 128, "channels": 3}

_NOISY = {"image": 28, "channels": 1, "noise": 0.5}


def autoencoder(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a denoising autoencoder.

    "autoencoder" has dense layers down to `code` values and up again, "conv_autoencoder" two
    convolutions that halve the image, down to `code` channels, and two transposed ones. Both add
    normal noise to their input while they are trained, and none when they infer. Train them to
    give the clean image: the logits are for binary cross-entropy with images of 0 to 1.

    Source:
        Vincent et al., ICML 2008.
    """
    shape = (sizes["image"], sizes["image"], sizes["channels"])
    convolutional = make.name == "conv_autoencoder"
    then = "The image is halved twice and doubled twice."
    halved = not convolutional or shape[0] % 4 == 0
    require(halved, "image", "be a multiple of 4", shape[0], then)
    images = keras.Input(shape, dtype=make.wide, name="inputs")
    x = make(layers.GaussianNoise, images, sizes["noise"], name="noise")
    x = (_convolutional if convolutional else _dense)(make, x, sizes)
    return keras.Model(images, x, name=make.name)


def dcgan(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
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
    smallest, doublings = _MAPS[make.name.split("_")[0]]
    generates, side = make.name.endswith("generator"), smallest * 2**doublings
    shape = (sizes["latent"],) if generates else (side, side, sizes["channels"])
    inputs = keras.Input(shape, dtype=make.wide, name="inputs")
    if generates:
        x = _generator(make, inputs, sizes, smallest, doublings)
    else:
        x = _discriminator(make, inputs, sizes, doublings)
    return keras.Model(inputs, x, name=make.name)


def _dense(make: SeededLayers, x: Any, sizes: Sizes) -> Any:
    shape, hidden = tuple(x.shape[1:]), sizes["hidden"]
    x = make(layers.Flatten, x, name="flatten")
    x = make(layers.Dense, x, hidden, activation="relu", name="encode")
    x = make(layers.Dense, x, sizes["code"], activation="relu", name="code")
    x = make(layers.Dense, x, hidden, activation="relu", name="decode")
    x = make.logits(x, shape[0] * shape[1] * shape[2])
    return layers.Reshape(shape, dtype=make.wide, name="image")(x)


def _convolutional(make: SeededLayers, x: Any, sizes: Sizes) -> Any:
    filters, same = sizes["filters"], {"strides": 2, "padding": "same"}
    relu = {"activation": "relu", **same}
    x = make(layers.Conv2D, x, filters, 3, name="encode", **relu)
    x = make(layers.Conv2D, x, sizes["code"], 3, name="code", **relu)
    x = make(layers.Conv2DTranspose, x, filters, 3, name="decode", **relu)
    return _last(make, x, sizes["channels"], 3, name="logits", **same)


def _generator(make: SeededLayers, x: Any, sizes: Sizes, smallest: int, doublings: int) -> Any:
    filters = sizes["filters"] * 2 ** (doublings - 1)
    x = make(layers.Dense, x, smallest**2 * filters, use_bias=False, name="project")
    x = make(layers.Reshape, x, (smallest, smallest, filters), name="map")
    same = {"strides": 2, "padding": "same"}
    for number in range(1, doublings):
        x = _normalised_relu(make, x, f"norm{number}")
        filters //= 2
        x = make(layers.Conv2DTranspose, x, filters, 5, use_bias=False, name=f"up{number}", **same)
    x = _normalised_relu(make, x, f"norm{doublings}")
    return _last(make, x, sizes["channels"], 5, name="image", activation="tanh", **same)


def _normalised_relu(make: SeededLayers, x: Any, name: str) -> Any:
    x = make(layers.BatchNormalization, x, momentum=0.9, epsilon=1e-5, name=name)
    return make(layers.ReLU, x, name=f"{name}_relu")


def _discriminator(make: SeededLayers, x: Any, sizes: Sizes, halvings: int) -> Any:
    filters = sizes["filters"]
    for number in range(1, halvings + 1):
        first = number == 1
        x = make(layers.Conv2D, x, filters, 5, 2, "same", use_bias=first, name=f"down{number}")
        if not first:
            x = make(layers.BatchNormalization, x, momentum=0.9, epsilon=1e-5, name=f"norm{number}")
        x = make(layers.LeakyReLU, x, negative_slope=0.2, name=f"relu{number}")
        filters *= 2
    return make.logits(make(layers.Flatten, x, name="flatten"), 1, name="logit")


def _last(make: SeededLayers, x: Any, channels: int, kernel: int, **options: Any) -> Any:
    """Apply the last transposed convolution, in float32 also in mixed precision."""
    return make(layers.Conv2DTranspose, x, channels, kernel, dtype=make.wide, **options)


NETS = {
    "alexnet": Net(photograph_net, {"image": 224, "classes": 1000}, 0.5),
    "googlenet": Net(photograph_net, {"image": 224, "classes": 1000}, 0.4),
    "cnn_3d": Net(clip_net, _CNN_3D),
    "c3d": Net(clip_net, _C3D),
    "autoencoder": Net(autoencoder, {**_NOISY, "hidden": 256, "code": 32}, None),
    "conv_autoencoder": Net(autoencoder, {**_NOISY, "filters": 16, "code": 8}, None),
    "dcgan_generator": Net(dcgan, {"latent": 100, **_SMALL}, None, "RandomNormal"),
    "dcgan_discriminator": Net(dcgan, _SMALL, None, "RandomNormal"),
    "dcgan64_generator": Net(dcgan, {"latent": 100, **_LARGE}, None, "RandomNormal"),
    "dcgan64_discriminator": Net(dcgan, _LARGE, None, "RandomNormal"),
}
