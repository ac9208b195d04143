"""The residual nets for CIFAR-10: 6 n + 2 layers on images of 32 x 32 x 3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlguide.models.described import Described, Size
from dlguide.models.seeded import Seeded

if TYPE_CHECKING:
    import keras

_FILTERS = (16, 32, 64)
# Blocks of two convolutions in each of the three stages. The paper's nets begin with 20 layers;
# the one of 8 is made by the same rule, for trainings of seconds.
_BLOCKS = {
    "resnet8": 1,
    "resnet20": 3,
    "resnet32": 5,
    "resnet44": 7,
    "resnet56": 9,
    "resnet110": 18,
}
NETS = {
    name: Described(
        task="classifier",
        sizes={"image": 32, "classes": 10},
        inputs=("image", "image", 3),
        least={"image": 8},
        dropout=0.0,
    )
    for name in _BLOCKS
}
START: dict[str, Any] = {"start": "HeNormal"}


def assemble(name: str, make: Seeded, sizes: Mapping[str, Size], dropout: float) -> keras.Model:
    """Put a residual net for small images together.

    A convolution of 16 filters, then three stages of n blocks of two 3 x 3 convolutions with 16,
    32 and 64 filters on maps of 32, 16 and 8 pixels, the mean over the map, and one dense layer.

    Shortcuts are those of the paper's option A: where a stage halves the map, the shortcut takes
    every second pixel and puts zeros into the new channels. It has no parameters, which is how
    the paper's nets for CIFAR-10 are made; the projections of option B would add 2 784.

    Source:
        He et al. 2015 (arXiv:1512.03385), sections 3.3 and 4.2, Table 6.
    """
    import keras

    images = keras.Input(NETS[name].sample(sizes), dtype=make.wide, name="images")
    x = make("ReLU", make.normalised(images, 16, 3, 1, "conv1"), name="conv1_relu")
    for stage, filters in enumerate(_FILTERS, start=2):
        for number in range(1, _BLOCKS[name] + 1):
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
    return keras.Model(images, make.results(x, int(sizes["classes"])), name=name)


def _subsampled(make: Seeded, x: Any, filters: int, block: str) -> Any:
    """Take every second pixel and fill up with channels of zeros: option A."""
    x = make("AveragePooling2D", x, 1, 2, name=f"{block}_subsample")
    height, width, channels = x.shape[1:]
    # padding works on the dimensions of space, so the channels become one of them
    x = make("Reshape", x, (height, width, channels, 1), name=f"{block}_channels")
    pads = ((0, 0), (0, 0), (0, filters - channels))
    x = make("ZeroPadding3D", x, pads, data_format="channels_last", name=f"{block}_zeros")
    return make("Reshape", x, (height, width, filters), name=f"{block}_shortcut")


def parameters(name: str, sizes: Mapping[str, Size]) -> int:
    """Count the trainable parameters from the closed form.

    A convolution from C to F channels has 9 C F, its batch normalisation 2 F; with n blocks a
    stage, from 16 channels on:

        9 * 3 * 16 + 32 + sum over stages (9 C F + 9 (2 n - 1) F F + 4 n F) + 65 * classes

    Args:
        name: a key of `NETS`.
        sizes: image, classes.

    Returns:
        int: number of trainable parameters (count).
    """
    blocks, total, channels = _BLOCKS[name], 9 * 3 * 16 + 32, 16
    for filters in _FILTERS:
        total += 9 * channels * filters + 9 * (2 * blocks - 1) * filters**2 + 4 * blocks * filters
        channels = filters
    return total + (channels + 1) * int(sizes["classes"])
