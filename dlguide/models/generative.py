"""Nets that give images: denoising autoencoders, and the pair of a GAN."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dlguide.models.described import Described, Size
from dlguide.models.seeded import Seeded

if TYPE_CHECKING:
    import keras

# Smallest map of a DCGAN (pixels) and how often it is doubled.
_MAPS = {"dcgan": (7, 2), "dcgan64": (4, 4)}
_PICTURE = ("image", "image", "channels")
NETS = {
    "autoencoder": Described(
        task="autoencoder",
        sizes={"image": 28, "channels": 1, "hidden": 256, "code": 32, "noise": 0.5},
        inputs=_PICTURE,
    ),
    "conv_autoencoder": Described(
        task="autoencoder",
        sizes={"image": 28, "channels": 1, "filters": 16, "code": 8, "noise": 0.5},
        inputs=_PICTURE,
        least={"image": 4},
    ),
    "dcgan_generator": Described(
        "generator", {"latent": 100, "filters": 32, "channels": 1}, ("latent",)
    ),
    "dcgan_discriminator": Described(
        "discriminator", {"filters": 32, "channels": 1}, (28, 28, "channels")
    ),
    "dcgan64_generator": Described(
        "generator", {"latent": 100, "filters": 128, "channels": 3}, ("latent",)
    ),
    "dcgan64_discriminator": Described(
        "discriminator", {"filters": 128, "channels": 3}, (64, 64, "channels")
    ),
}
START: dict[str, Any] = {"start": "HeNormal"}
# Radford et al., section 4, for all weights of both nets.
START_OF_GAN: dict[str, Any] = {"start": "RandomNormal", "stddev": 0.02}


def assemble(name: str, make: Seeded, sizes: Mapping[str, Size], dropout: float) -> keras.Model:
    """Put a net of this module together.

    - "autoencoder": dense layers down to `code` numbers and up again. "conv_autoencoder": two
      convolutions that halve the image, down to `code` channels, and two transposed ones. Both
      add normal noise to what they get while they are trained, and none when they infer. Train
      them to give the clean image: the logits are for binary cross-entropy with images of 0 to 1.
    - "dcgan_generator": `latent` random numbers become images of -1 to 1; "dcgan_discriminator"
      gives one logit, above 0 for a true image. 28 x 28 x 1, small enough for a lesson.
    - "dcgan64_generator": the paper's, drawn in its Figure 1: 1024, 512, 256, 128 channels on
      maps of 4, 8, 16, 32 pixels. "dcgan64_discriminator" is its mirror, which the paper
      describes without a figure. 64 x 64 x 3.

    A DCGAN has convolutions with strides in place of pooling, kernels of 5 x 5, batch
    normalisation everywhere but at the generator's output and the discriminator's input, ReLU
    in the generator and LeakyReLU of slope 0.2 in the discriminator.

    Source:
        Vincent et al., ICML 2008 (denoising autoencoders); Radford et al. 2015
        (arXiv:1511.06434), sections 3 and 4, Figure 1.
    """
    import keras

    images = keras.Input(NETS[name].sample(sizes), dtype=make.wide, name="inputs")
    if name.endswith("generator"):
        x = _generator(make, images, sizes, *_MAPS[name.split("_")[0]])
    elif name.endswith("discriminator"):
        x = _discriminator(make, images, sizes, _MAPS[name.split("_")[0]][1])
    else:
        x = make("GaussianNoise", images, sizes["noise"], name="noise")
        build = _convolutional if name == "conv_autoencoder" else _dense
        x = build(make, x, sizes)
    return keras.Model(images, x, name=name)


def _dense(make: Seeded, x: Any, sizes: Mapping[str, Size]) -> Any:
    import keras

    shape, hidden = tuple(x.shape[1:]), int(sizes["hidden"])
    x = make("Flatten", x, name="flatten")
    x = make("Dense", x, hidden, activation="relu", name="encode")
    x = make("Dense", x, int(sizes["code"]), activation="relu", name="code")
    x = make("Dense", x, hidden, activation="relu", name="decode")
    x = make.results(x, shape[0] * shape[1] * shape[2])
    return keras.layers.Reshape(shape, dtype=make.wide, name="image")(x)


def _convolutional(make: Seeded, x: Any, sizes: Mapping[str, Size]) -> Any:
    filters, same = int(sizes["filters"]), {"strides": 2, "padding": "same"}
    relu = {"activation": "relu", **same}
    x = make("Conv2D", x, filters, 3, name="encode", **relu)
    x = make("Conv2D", x, int(sizes["code"]), 3, name="code", **relu)
    x = make("Conv2DTranspose", x, filters, 3, name="decode", **relu)
    return _last(make, x, int(sizes["channels"]), 3, name="logits", **same)


def _generator(
    make: Seeded, x: Any, sizes: Mapping[str, Size], smallest: int, doublings: int
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


def _normalised_relu(make: Seeded, x: Any, name: str) -> Any:
    x = make("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=name)
    return make("ReLU", x, name=f"{name}_relu")


def _discriminator(make: Seeded, x: Any, sizes: Mapping[str, Size], halvings: int) -> Any:
    filters = int(sizes["filters"])
    for number in range(1, halvings + 1):
        first = number == 1
        x = make("Conv2D", x, filters, 5, 2, "same", use_bias=first, name=f"down{number}")
        if not first:
            x = make("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=f"norm{number}")
        x = make("LeakyReLU", x, negative_slope=0.2, name=f"relu{number}")
        filters *= 2
    return make.results(make("Flatten", x, name="flatten"), 1, name="logit")


def _last(make: Seeded, x: Any, channels: int, kernel: int, **options: Any) -> Any:
    """Apply the last transposed convolution, which gives wide numbers in mixed precision too."""
    import keras

    layer = keras.layers.Conv2DTranspose(
        channels, kernel, kernel_initializer=make.initial(), dtype=make.wide, **options
    )
    return layer(x)


def parameters(name: str, sizes: Mapping[str, Size]) -> int:
    """Count the trainable parameters from the closed form.

    A convolution of k x k from C to F channels, transposed or not, has k k C F, and F more for
    its bias or 2 F for its batch normalisation; a dense layer (inputs + 1) outputs. The
    normalisation after the generator's projection is by channel.

    Args:
        name: a key of `NETS`.
        sizes: those of the net.

    Returns:
        int: number of trainable parameters (count).
    """
    channels = int(sizes["channels"])
    if name == "autoencoder":
        pixels, hidden, code = int(sizes["image"]) ** 2 * channels, sizes["hidden"], sizes["code"]
        widths = (pixels, hidden, code, hidden, pixels)
        return int(sum((a + 1) * b for a, b in pairwise(widths)))
    if name == "conv_autoencoder":
        widths = (channels, sizes["filters"], sizes["code"], sizes["filters"], channels)
        return int(sum((9 * a + 1) * b for a, b in pairwise(widths)))
    smallest, steps = _MAPS[name.split("_")[0]]
    # channels on the maps from the largest to the smallest
    widths = [int(sizes["filters"]) * 2**step for step in range(steps)]
    inner = sum(25 * a * b for a, b in pairwise(widths))
    if name.endswith("generator"):
        projection = int(sizes["latent"]) * smallest**2 * widths[-1]
        return projection + inner + 2 * sum(widths) + 25 * widths[0] * channels + channels
    first = 25 * channels * widths[0] + widths[0]
    return first + inner + 2 * sum(widths[1:]) + smallest**2 * widths[-1] + 1
