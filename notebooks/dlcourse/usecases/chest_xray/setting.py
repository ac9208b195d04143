"""What a training of the case can be asked for: checked before any rank starts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlcourse.usecases.chest_xray import collection, pretraining
from dlcourse.usecases.chest_xray import net as nets
from dlcourse.usecases.chest_xray import weights as given
from dlcourse.usecases.run import Option
from dlguide.errors import require, require_count, require_known, require_positive

if TYPE_CHECKING:
    import keras

STARTS = ("chosen", "last", "early", "none")
RATES = ("even", "published")
DEVICES = ("auto", "cpu", "gpu")


@dataclass(frozen=True)
class Setting:
    """What `train` was asked for, apart from where to read and write; `train` tells what is what.

    All of it is checked when it is made.
    """

    seed: int = 0
    net: str = nets.SMALL
    image: int | None = None
    batch_per_rank: int = 32
    epochs: int = 5
    pretrain_epochs: int = 8
    warmup: float = 0.5
    start: str = "chosen"
    rate: float | None = None
    dtype: str = "float32"
    device: str = "auto"
    radiographs: int = 1200
    archive: int | str | os.PathLike = 1500
    rates: str = "even"
    data_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_per_rank", "epochs", "pretrain_epochs", "radiographs"):
            require_count(getattr(self, name), name)
        if not isinstance(self.archive, str | os.PathLike):
            require_count(self.archive, "archive")
        for name in ("seed", "data_seed"):
            require_count(getattr(self, name), name, least=0)
        require_known(self.net, nets.NETS, "net")
        require_known(self.start, STARTS, "start")
        require_known(self.rates, RATES, "rates")
        require_known(self.dtype, ("float32", "float64"), "dtype")
        if self.image is not None:
            require_count(self.image, "image", least=collection.SMALLEST)
        if self.rate is not None:
            require_positive(self.rate, "rate")
        require_known(self.device, DEVICES, "device")
        require_positive(self.warmup, "warmup")
        must = f"be above 0 and shorter than the {self.epochs} epochs of the training"
        require(0 < self.warmup < self.epochs, "warmup", must, self.warmup)

    @property
    def size(self) -> int:
        """Height and width of the radiographs (pixels)."""
        return nets.SIZES[self.net] if self.image is None else self.image

    def build(self, outputs: int) -> keras.Model:
        """Build the net.

        Args:
            outputs: its logits (count).

        Returns:
            keras.Model: the same for the same setting.
        """
        return nets.build(self.net, self.size, outputs, self.seed, self.dtype)


# What `dlguide usecase chest_xray --set` accepts.
OPTIONS = {
    "weights": Option(None, str),
    "compare": Option(None, bool),
    "net": Option(nets.SMALL, str),
    "image": Option(None, int),
    "batch_per_rank": Option(32, int),
    "epochs": Option(5, int),
    "pretrain_epochs": Option(8, int),
    "warmup": Option(0.5, float),
    "start": Option("chosen", str),
    "rate": Option(None, float),
    "dtype": Option("float32", str),
    "device": Option("auto", str),
    "radiographs": Option(1200, int),
    "archive": Option(1500, (int, str)),
    "rates": Option("even", str),
    "data_seed": Option(0, int),
}


def check(
    real: str | os.PathLike | None = None, weights: str | os.PathLike | None = None, **own: Any
) -> None:
    """Refuse before any rank starts what `train` would refuse on all ranks.

    Args:
        real: as for `train`.
        weights: as for `train`.
        own: further arguments of `train`.

    Raises:
        ValueError: when a setting is out of range.
        MissingComponentError: when data or weights are not there.
        DataError: when a label file or a list is not as it must be; names file and line.
    """
    known = ("checkpoint", "report", "parallel", "compare")
    compare = own.get("compare")
    require(compare in (True, False, None), "compare", "be True, False or None", compare)
    Setting(**{name: value for name, value in own.items() if name not in known})
    require_start(str(own.get("start", "chosen")), weights)
    if real is not None:
        collection.read(real)
    archive = own.get("archive")
    if isinstance(archive, str | os.PathLike):
        pretraining.require_archive(archive)
    if weights is not None:
        given.require_there(weights, str(own.get("net", nets.SMALL)))


def require_start(start: str, weights: str | os.PathLike | None) -> None:
    """Refuse weights for a training that shall begin without any."""
    must = "be a file or folder"
    require(weights is None or isinstance(weights, str | os.PathLike), "weights", must, weights)
    must = 'be None with start="none", which begins from scratch'
    require(weights is None or start != "none", "weights", must, weights, "Leave one of them out.")
