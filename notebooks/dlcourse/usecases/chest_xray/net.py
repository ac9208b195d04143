"""The nets of the case: a small one for lessons, the guide's two and CheXNet's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlguide import models
from dlguide.data.input_pipeline import IMAGENET_DEVIATION, IMAGENET_MEAN, Normalise
from dlguide.errors import require_count, require_known
from dlguide.models.layers import SeededLayers

if TYPE_CHECKING:
    import keras

SMALL = "chest_cnn"
LARGE = ("vgg16", "resnet50", "densenet121")
NETS = (SMALL, *LARGE)
# Height and width that a net takes unless another is asked for (pixels).
SIZES = {SMALL: 32, **dict.fromkeys(LARGE, 224)}
HEAD = "logits"
_FILTERS = (16, 32, 48)
_HIDDEN = 96
_DTYPES = ("float32", "float64")


def build(
    net: str = SMALL,
    image: int | None = None,
    outputs: int = len(FINDINGS),
    seed: int = 0,
    dtype: str = "float32",
) -> keras.Model:
    """Build a net that gives one logit for each finding.

    "chest_cnn" has three convolutions of 3 x 3 with 16, 32 and 48 filters, each with a pooling
    behind it, and a dense layer of 96 units: without batch normalisation, so that ranks train
    exactly as one process does. The others are those of `dlguide.models`; their last layer has
    `outputs` logits.

    Args:
        net: one of `NETS`.
        image: height and width of the radiographs (pixels); None for the net's own.
        outputs: number of logits (count).
        seed: of the first weights, the same on every rank.
        dtype: "float32" or "float64".

    Returns:
        keras.Model: not compiled; takes (batch, image, image, `channels(net)`). Its last layer
            is called "logits".

    Raises:
        ValueError: when a name is unknown or a number out of range.
    """
    require_known(net, NETS, "net")
    require_known(dtype, _DTYPES, "dtype")
    image = SIZES[net] if image is None else require_count(image, "image", least=32)
    require_count(outputs, "outputs")
    if net in LARGE:
        return models.build(net, seed, dtype=dtype, image=image, classes=outputs)
    import keras

    make = SeededLayers(net, require_count(seed, "seed", least=0), dtype, seed, start="HeNormal")
    x = images = keras.Input((image, image, 1), dtype=make.wide, name="images")
    for number, filters in enumerate(_FILTERS, start=1):
        x = make("Conv2D", x, filters, 3, padding="same", activation="relu", name=f"conv{number}")
        x = make("MaxPooling2D", x, 2, name=f"pool{number}")
    x = make("Flatten", x, name="flatten")
    x = make("Dense", x, _HIDDEN, activation="relu", name="hidden")
    return keras.Model(images, make.logits(x, outputs, name=HEAD), name=net)


def channels(net: str) -> int:
    """Tell how many channels a net's images have."""
    return 1 if require_known(net, NETS, "net") == SMALL else 3


def normalised(net: str) -> Normalise:
    """Give what brings grey values to the range that a net expects."""
    if channels(net) == 1:
        return Normalise((0.5,), (0.25,))
    return Normalise(IMAGENET_MEAN, IMAGENET_DEVIATION)
