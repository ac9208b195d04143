"""Nets that give images: denoising autoencoders, and the pair of a GAN."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.models.layers import SeededLayers
from dlguide.models.registry import NetSpec, Size, register

if TYPE_CHECKING:
    import keras

# Smallest map of a DCGAN (pixels) and how often it is doubled.
_MAPS = {"dcgan": (7, 2), "dcgan64": (4, 4)}
_PICTURE = ("image", "image", "channels")
_SMALL, _LARGE = {"filters": 32, "channels": 1}, {"filters": 128, "channels": 3}


@register(
    NetSpec(
        "autoencoder",
        "autoencoder",
        419_120,
        _PICTURE,
        {"image": 28, "channels": 1, "hidden": 256, "code": 32, "noise": 0.5},
        dropout=None,
    ),
    NetSpec(
        "conv_autoencoder",
        "autoencoder",
        2_633,
        _PICTURE,
        {"image": 28, "channels": 1, "filters": 16, "code": 8, "noise": 0.5},
        least={"image": 4},
        dropout=None,
    ),
)
def autoencoder(
    make: SeededLayers, shape: tuple[int, ...], sizes: Mapping[str, Size], dropout: float
) -> keras.Model:
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
def dcgan(
    make: SeededLayers, shape: tuple[int, ...], sizes: Mapping[str, Size], dropout: float
) -> keras.Model:
    """Build the generator or the discriminator of a DCGAN.

    - "dcgan_generator": `latent` random values become images of -1 to 1; "dcgan_discriminator"
      gives one logit, above 0 for a true image. 28 x 28 x 1, small enough for a lesson.
    - "dcgan64_generator": the paper's, drawn in its Figure 1: 1024, 512, 256, 128 channels on
      maps of 4, 8, 16, 32 pixels. "dcgan64_discriminator" is its mirror, which the paper
      describes without a figure. 64 x 64 x 3.

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


def _dense(make: SeededLayers, x: Any, sizes: Mapping[str, Size]) -> Any:
    import keras

    shape, hidden = tuple(x.shape[1:]), int(sizes["hidden"])
    x = make("Flatten", x, name="flatten")
    x = make("Dense", x, hidden, activation="relu", name="encode")
    x = make("Dense", x, int(sizes["code"]), activation="relu", name="code")
    x = make("Dense", x, hidden, activation="relu", name="decode")
    x = make.logits(x, shape[0] * shape[1] * shape[2])
    return keras.layers.Reshape(shape, dtype=make.wide, name="image")(x)


def _convolutional(make: SeededLayers, x: Any, sizes: Mapping[str, Size]) -> Any:
    filters, same = int(sizes["filters"]), {"strides": 2, "padding": "same"}
    relu = {"activation": "relu", **same}
    x = make("Conv2D", x, filters, 3, name="encode", **relu)
    x = make("Conv2D", x, int(sizes["code"]), 3, name="code", **relu)
    x = make("Conv2DTranspose", x, filters, 3, name="decode", **relu)
    return _last(make, x, int(sizes["channels"]), 3, name="logits", **same)


def _generator(
    make: SeededLayers, x: Any, sizes: Mapping[str, Size], smallest: int, doublings: int
) -> Any:
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


def _discriminator(make: SeededLayers, x: Any, sizes: Mapping[str, Size], halvings: int) -> Any:
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
