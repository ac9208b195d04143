"""Pictures of one thing each, whose class shows in its shape, its texture and its colours.

Like photographs, pictures of one class differ in all the rest: where the thing is, how large, how
it is turned and lit, and what is behind it.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dlguide.data.synthetic.samples import KINDS, Samples, clouds, encoded, grid, random, step
from dlguide.data.synthetic.shapes import SHAPES, TEXTURES, turned
from dlguide.errors import require_count, require_known

# The golden ratio: any number of hues in a row lie apart from each other.
_GOLDEN = 0.618034
_SECOND_HUES = (0.5, 0.12, 0.33, 0.67, 0.85)
SMALLEST = 16


@dataclass(frozen=True, eq=False)
class Picture:
    """A labelled picture.

    Args:
        index: its number in the data set.
        label: its class, 0 to classes - 1.
        kind: "jpeg" or "png".
        pixels: uint8, shape (rows, columns, 3).
    """

    index: int
    label: int
    kind: str
    pixels: np.ndarray = field(repr=False)

    def encoded(self) -> bytes:
        """Write the picture as the bytes of a file of its kind.

        Returns:
            bytes: a JPEG or PNG file.
        """
        return encoded(self.pixels, self.kind)


def images(
    classes: int, size: int, count: int, seed: int, kind: str = "jpeg", vary: bool = False
) -> Samples:
    """Make labelled pictures with learnable classes, as many as wanted.

    The class of picture i is i modulo `classes`, so every class occurs equally often. What a
    class looks like does not depend on the seed: use another seed for pictures to test with.

    Args:
        classes: number of classes (count).
        size: length of the shorter side (pixels).
        count: number of pictures (count).
        seed: 0 or more; another one gives other pictures of the same classes.
        kind: "jpeg" or "png", the form in which they are encoded.
        vary: whether pictures are up to half as long again in one direction, as photographs are.

    Returns:
        Samples: of `Picture`.

    Raises:
        ValueError: when a number is too small or the kind is unknown.

    >>> [picture.label for picture in images(classes=3, size=32, count=5, seed=1)]
    [0, 1, 2, 0, 1]
    """
    require_count(classes, "classes")
    require_count(size, "size", least=SMALLEST)
    require_count(seed, "seed", least=0)
    require_known(kind, KINDS, "kind")
    make = partial(_picture, classes=classes, size=size, seed=seed, kind=kind, vary=vary)
    return Samples(range(require_count(count, "count")), make)


def _picture(index: int, classes: int, size: int, seed: int, kind: str, vary: bool) -> Picture:
    rng = random(seed, "picture", index)
    rows, columns = size, size
    if vary:
        longer = round(size * rng.uniform(1, 1.5))
        rows, columns = (size, longer) if rng.random() < 0.7 else (longer, size)
    label = index % classes
    pixels = _draw(rng, label, rows, columns)
    return Picture(index, label, kind, pixels)


def _draw(rng: np.random.Generator, label: int, rows: int, columns: int) -> np.ndarray:
    x, y = grid(rows, columns)
    picture = _background(rng, rows, columns, y)
    scale = rng.uniform(0.55, 0.8)
    center = rng.uniform(-0.25, 0.25, 2).tolist()
    angle = rng.uniform(-0.4, 0.4)
    shape = SHAPES[label % len(SHAPES)]
    u, v = turned((x - center[0]) / scale, (y - center[1]) / scale, angle)
    distance = shape(u, v)
    pixel = 2 / min(rows, columns) / scale
    # the shadow falls to the lower right
    shadow = step(
        shape(*turned((x - center[0]) / scale - 0.12, (y - center[1]) / scale - 0.14, angle)), 0.3
    )
    picture *= 1 - 0.45 * shadow[..., None]
    mask = step(distance, 2 * pixel)[..., None]
    return _finish(rng, picture + mask * (_surface(rng, label, u, v, distance) - picture))


def _background(rng: np.random.Generator, rows: int, columns: int, y: np.ndarray) -> np.ndarray:
    near, far = (
        np.array(colorsys.hsv_to_rgb(rng.random(), rng.uniform(0.05, 0.35), value), np.float32)
        for value in rng.uniform(0.35, 0.9, 2)
    )
    blend = np.clip((y + 1) / 2 + 0.15 * clouds(rng, rows, columns, 3), 0, 1)[..., None]
    return far + blend * (near - far)


def _surface(
    rng: np.random.Generator, label: int, u: np.ndarray, v: np.ndarray, distance: np.ndarray
) -> np.ndarray:
    hue = (label * _GOLDEN + rng.uniform(-0.03, 0.03)) % 1
    second = (hue + _SECOND_HUES[label % len(_SECOND_HUES)]) % 1
    one = np.array(colorsys.hsv_to_rgb(hue, rng.uniform(0.7, 0.95), 0.95), np.float32)
    two = np.array(colorsys.hsv_to_rgb(second, rng.uniform(0.4, 0.7), 0.6), np.float32)
    moved = rng.uniform(0, 1, 2).tolist()
    pattern = TEXTURES[label % len(TEXTURES)](u + moved[0], v + moved[1])
    colour = one + np.clip(0.5 * pattern + 0.5, 0, 1)[..., None] * 0.75 * (two - one)
    # light from the upper left, and a darker rim as on something round
    light = 0.92 - 0.16 * (u + v) - 0.3 * step(-distance - 0.04, 0.14)
    return colour * light[..., None]


def _finish(rng: np.random.Generator, picture: np.ndarray) -> np.ndarray:
    picture = picture * rng.uniform(0.75, 1.1)
    picture = picture + 0.015 * rng.standard_normal(picture.shape, np.float32)
    return np.round(255 * np.clip(picture, 0, 1)).astype(np.uint8)
