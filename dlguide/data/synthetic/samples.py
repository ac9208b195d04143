"""A sequence of samples that are made when they are asked for."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from dlguide.errors import require, require_known

KINDS = ("jpeg", "png")
# What one seed is used for; each has random numbers of its own.
_STREAMS = ("picture", "findings", "patients", "patient", "radiograph", "scene", "vehicle")


@dataclass(frozen=True)
class Samples(Sequence):
    """Samples by their index, each made when it is asked for and not kept.

    A slice is such a sequence again, so `samples[rank::ranks]` is a rank's part.

    Args:
        indices: the samples' numbers (range).
        make: function that makes the sample of a number.
    """

    indices: range
    make: Callable[[int], Any]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            return Samples(self.indices[place], self.make)
        if not -len(self) <= place < len(self):
            raise IndexError(
                f"`index` must be below the {len(self)} samples, got {place}. Ask for more with "
                "`count`: samples already made do not change."
            )
        return self.make(self.indices[place])

    def __iter__(self) -> Iterator[Any]:
        return map(self.make, self.indices)


def random(seed: int, stream: str, *numbers: int) -> np.random.Generator:
    """Start the random numbers of one sample."""
    require(seed >= 0, "seed", "be at least 0", seed)
    place = _STREAMS.index(require_known(stream, _STREAMS, "stream"))
    # with their count, for NumPy takes [1, 2] and [1, 2, 0] for the same
    return np.random.default_rng([seed, place, len(numbers), *numbers])


def encoded(pixels: np.ndarray, kind: str, quality: int = 90) -> bytes:
    """Write an image as the bytes of a file.

    The bytes of a JPEG, and slightly what they decode to, depend on the version of its library.
    """
    require_known(kind, KINDS, "kind")
    file = io.BytesIO()
    options = {"quality": quality} if kind == "jpeg" else {"compress_level": 6}
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def grid(rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Give each pixel its place; the shorter side goes from -1 to 1, down and to the right."""
    half = min(rows, columns) / 2
    x = (np.arange(columns, dtype=np.float32) + 0.5 - columns / 2) / half
    y = (np.arange(rows, dtype=np.float32) + 0.5 - rows / 2) / half
    return x[None, :], y[:, None]


def step(distance: np.ndarray, width: float) -> np.ndarray:
    """Go smoothly from 1 where `distance` is below 0 to 0 above, over a border of `width`.

    Args:
        distance: signed distance to an outline, below 0 inside.
        width: of the border, in the same unit.

    Returns:
        numpy.ndarray: of the same shape, 0 to 1.
    """
    at = np.clip(0.5 - distance / width, 0, 1)
    return at * at * (3 - 2 * at)


def clouds(rng: np.random.Generator, rows: int, columns: int, cells: int) -> np.ndarray:
    """Make soft noise of a few sizes."""
    total = np.zeros((rows, columns), np.float32)
    for octave in range(3):
        coarse = rng.standard_normal((cells << octave, cells << octave)).astype(np.float32)
        smooth = Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) / 2**octave
    return total
