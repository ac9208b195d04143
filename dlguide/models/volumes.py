"""Nets of three-dimensional convolutions, for video clips and other volumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlguide.models.described import Described, Size
from dlguide.models.seeded import Seeded

if TYPE_CHECKING:
    import keras

# Multiples of `filters`, layer by layer.
_WIDTHS = {"cnn_3d": (1, 2), "c3d": (1, 2, 4, 4, 4)}
_INPUTS = ("frames", "image", "image", "channels")
NETS = {
    "cnn_3d": Described(
        task="classifier",
        sizes={
            **{"frames": 8, "image": 32, "channels": 1},
            **{"filters": 16, "hidden": 64, "classes": 10},
        },
        inputs=_INPUTS,
        least={"frames": 4, "image": 4},
        dropout=0.0,
    ),
    "c3d": Described(
        task="classifier",
        sizes={
            **{"frames": 16, "image": 112, "channels": 3},
            **{"filters": 64, "hidden": 2048, "classes": 101},
        },
        inputs=_INPUTS,
        dropout=0.0,
    ),
}
START: dict[str, Any] = {"start": "HeNormal"}


def _pool(name: str, number: int) -> tuple[int, int, int]:
    # C3D keeps the frames apart in its first layer
    return (1, 2, 2) if name == "c3d" and number == 1 else (2, 2, 2)


def assemble(name: str, make: Seeded, sizes: Mapping[str, Size], dropout: float) -> keras.Model:
    """Put a net of 3 x 3 x 3 convolutions together, each with ReLU and pooling after it.

    - "cnn_3d": two convolutions and one dense layer before the last; small enough for a lesson.
    - "c3d": the net with which Tran et al. searched for the best depth of a kernel, five
      convolutions and two dense layers, for 16 frames of 112 x 112 x 3. Where 7 pixels are
      halved 4 remain, as their framework rounds. Dropout is left to the caller.

    Source:
        Tran et al. 2015 (arXiv:1412.0767), section 3.1.
    """
    import keras

    clips = x = keras.Input(NETS[name].sample(sizes), dtype=make.wide, name="clips")
    for number, multiple in enumerate(_WIDTHS[name], start=1):
        filters, layer = multiple * int(sizes["filters"]), f"conv{number}"
        x = make("Conv3D", x, filters, 3, padding="same", activation="relu", name=layer)
        x = make("MaxPooling3D", x, _pool(name, number), padding="same", name=f"pool{number}")
    x = make("Flatten", x, name="flatten")
    for number in range(1, 3 if name == "c3d" else 2):
        x = make("Dense", x, int(sizes["hidden"]), activation="relu", name=f"hidden{number}")
        x = make("Dropout", x, dropout, name=f"dropout{number}")
    return keras.Model(clips, make.results(x, int(sizes["classes"])), name=name)


def parameters(name: str, sizes: Mapping[str, Size]) -> int:
    """Count the trainable parameters from the closed form.

    A convolution from C to F channels has (27 C + 1) F, a dense layer (inputs + 1) outputs.

    Args:
        name: a key of `NETS`.
        sizes: as for `assemble`.

    Returns:
        int: number of trainable parameters (count).
    """
    shape, channels, total = [int(sizes[one]) for one in _INPUTS[:3]], int(sizes["channels"]), 0
    for number, multiple in enumerate(_WIDTHS[name], start=1):
        filters = multiple * int(sizes["filters"])
        total += (27 * channels + 1) * filters
        shape = [-(-side // by) for side, by in zip(shape, _pool(name, number), strict=True)]
        channels = filters
    inputs = shape[0] * shape[1] * shape[2] * channels
    hidden = int(sizes["hidden"])
    for _ in range(1, 3 if name == "c3d" else 2):
        total, inputs = total + (inputs + 1) * hidden, hidden
    return total + (inputs + 1) * int(sizes["classes"])
