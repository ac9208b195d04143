"""What a training of the video case is asked for, checked before any work."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from dlcourse.usecases.video import scenes
from dlcourse.usecases.video.nets import resolutions
from dlguide.errors import require, require_count, require_known, require_positive

# The guide's frames have 128 pixels; a lesson has 32.
SIZE, REAL_SIZE = 32, 128


@dataclass(frozen=True)
class Settings:
    """The arguments of `train` that make a training what it is."""

    real: str | None = None
    seed: int = 0
    size: int = SIZE
    epochs: int = 12
    batch: int = 16
    filters: int = 48
    blocks: int = 3
    judges: int = 16
    volume: bool = False
    drives: int = 24
    held_out: int = 8
    frames: int = 48
    spacing: int = 3
    learning_rate: float = 3e-3
    edges: float = 0.5
    adversarial: float = 0.005
    dtype: str = "float32"

    def check(self) -> None:
        """Refuse what no training can be made of; the data is looked for, but not read."""
        then = "A frame is cut into parts of 8, 16, 32 pixels and so on; SSIM needs 11."
        large = require_count(self.size, "size") >= 16
        require(large, "size", "be at least 16", self.size, then)
        resolutions(self.size)
        for name in ("epochs", "batch", "filters", "blocks", "judges", "spacing"):
            require_count(getattr(self, name), name)
        require_positive(self.learning_rate, "learning_rate")
        for name in ("edges", "adversarial"):
            value = getattr(self, name)
            number = isinstance(value, Real) and 0 <= value < float("inf")
            require(number, name, "be a number of at least 0", value)
        require_known(self.dtype, ("float32", "float64"), "dtype")
        require(self.volume in (True, False), "volume", "be True or False", self.volume)
        if self.real is None:
            scenes.drawn(self.size, self.drives, self.held_out, self.frames, self.seed)
        else:
            require_count(self.seed, "seed", least=0)
            scenes.kitti(self.real, self.size)

    def as_dict(self) -> dict[str, Any]:
        """Give all of it by name, ready for JSON and for a checkpoint."""
        return asdict(self)


# What `train` takes by name beside data, seed, checkpoint and ranks, with what it is unless told.
OPTIONS: dict[str, Any] = {
    name: field.default
    for name, field in Settings.__dataclass_fields__.items()
    if name not in ("real", "seed")
}


def check(real: str | os.PathLike | None = None, **own: Any) -> None:
    """Refuse bad settings and bad data before any rank starts.

    Args:
        real: folder of KITTI tracking; None for drawn drives.
        own: further arguments of `train`, those about the ranks and the checkpoint left out.

    Raises:
        ValueError: when a number is out of range or a name unknown.
        MissingComponentError: when the real data is not there; says what was looked for, where.
        DataError: when it is there in part, or is another data set.
    """
    named(real, **own).check()


def named(real: str | os.PathLike | None = None, **own: Any) -> Settings:
    """Make settings of arguments by name.

    Args:
        real: folder of KITTI tracking; None for drawn drives.
        own: the others.

    Returns:
        Settings: not yet checked.

    Raises:
        ValueError: when there is no such argument.
    """
    known = Settings.__dataclass_fields__
    for name in own:
        require_known(name, known, "argument")
    return Settings(real=None if real is None else os.fspath(real), **own)
