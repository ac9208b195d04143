"""A chest as an X-ray of it shows: bright where much is in the way, dark where there is air.

Places go from -1 to 1; left in the picture is the patient's right. A radiograph is built from the
darkness of the lungs, and what adds brightness on top: heart, spine, ribs, vessels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from dlguide.data.synthetic.samples import clouds, grid, step

SIDES = (-1, 1)


@dataclass(frozen=True)
class Anatomy:
    """The measures of one patient, in half widths of the picture."""

    lung_width: float
    lung_top: float
    domes: tuple[float, float]
    flatness: float
    heart: float
    air: float
    ribs: int
    tilt: float
    bones: float


def anatomy(rng: np.random.Generator, lying: bool = False) -> Anatomy:
    """Draw a patient's measures."""
    dome = rng.uniform(0.5, 0.6)
    values = Anatomy(
        lung_width=rng.uniform(0.335, 0.375),
        lung_top=rng.uniform(-0.82, -0.74),
        domes=(dome, dome + rng.uniform(0.03, 0.08)),
        flatness=rng.uniform(0, 0.25),
        heart=rng.uniform(0.30, 0.35),
        air=rng.uniform(0.9, 1.05),
        ribs=int(rng.integers(8, 10)),
        tilt=rng.uniform(-0.04, 0.04),
        bones=rng.uniform(0.8, 1.15),
    )
    if not lying:
        return values
    return replace(
        values, domes=tuple(dome - 0.08 for dome in values.domes), heart=values.heart + 0.04
    )


@dataclass(frozen=True, eq=False)
class Chest:
    """Where things are in one radiograph: what findings are painted on."""

    x: np.ndarray
    y: np.ndarray
    lungs: tuple[np.ndarray, np.ndarray]
    distances: tuple[np.ndarray, np.ndarray]
    heart: np.ndarray
    domes: tuple[np.ndarray, np.ndarray]
    body: Anatomy

    @property
    def lung(self) -> np.ndarray:
        """Inside of either lung, 0 to 1, shape (size, size)."""
        return np.maximum(*self.lungs)


def outline(body: Anatomy, size: int) -> Chest:
    """Lay out lungs, heart and diaphragm."""
    x, y = (np.broadcast_to(axis, (size, size)) for axis in grid(size, size))
    c, s = math.cos(body.tilt), math.sin(body.tilt)
    x, y = c * x + s * y, c * y - s * x
    border = max(0.025, 3 / size)
    lungs, distances, domes = [], [], []
    for side, dome in zip(SIDES, body.domes, strict=True):
        distance, lower = _lung(body, side, dome, x, y)
        distances.append(distance)
        domes.append(lower)
        lungs.append(step(distance, border))
    tip = body.domes[1] - 0.02
    heart = step(_heart(body, x, y, tip), 2 * border)
    return Chest(x, y, tuple(lungs), tuple(distances), heart, tuple(domes), body)


def render(chest: Chest, rng: np.random.Generator) -> np.ndarray:
    """Draw a chest without any finding."""
    x, y, body = chest.x, chest.y, chest.body
    size = len(x)
    widest = 0.86 + 0.1 * np.clip(y + 0.3, -0.6, 0.6)
    trunk = step(np.abs(x) - np.where(y < -0.72, widest + 1.1 * (y + 0.72), widest), 0.12)
    picture = 0.05 + trunk * (0.60 + 0.05 * clouds(rng, size, size, 2))
    picture = picture - 0.13 * trunk * step(0.86 - np.abs(x), 0.2)
    picture = picture - chest.lung * body.air * (0.42 - 0.06 * (y + 0.2))
    picture = picture + 0.14 * step(np.abs(x) - 0.13, 0.14) * trunk
    picture = picture + 0.05 * _vertebrae(x, y) * body.bones
    picture = np.maximum(picture, picture + chest.heart * (0.78 - picture))
    below = sum(
        step(dome - y, 0.03) * step(-side * x, 0.06)
        for side, dome in zip(SIDES, chest.domes, strict=True)
    )
    picture = picture + 0.12 * trunk * np.clip(below, 0, 1) * step(np.abs(x) - 0.8, 0.2)
    picture = picture + _vessels(chest, rng)
    picture = picture + body.bones * (_ribs(chest) + _clavicles(x, y))
    # the windpipe, and a stomach's bubble of air under the patient's left dome
    picture = picture - 0.10 * step(np.abs(x) - 0.05, 0.05) * step(y + 0.32, 0.15)
    bubble = np.hypot((x - 0.33) / 1.5, y - body.domes[1] - 0.17) - 0.075
    return picture - 0.16 * step(bubble, 0.06)


def exposed(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn brightness into the grey values of a film: contrast, grain, unequal exposure.

    Args:
        picture: brightness, about 0 to 1, shape (size, size).
        rng: random numbers.

    Returns:
        numpy.ndarray: uint8, shape (size, size).
    """
    slope = 1 + rng.uniform(-0.06, 0.06) * np.linspace(-1, 1, len(picture), dtype=np.float32)
    grain = 0.012 * rng.standard_normal(picture.shape, np.float32)
    value = np.clip(picture * slope + grain, 0, 1) ** rng.uniform(0.9, 1.12)
    return np.round(255 * value * rng.uniform(0.92, 1.04)).clip(0, 255).astype(np.uint8)


def _lung(
    body: Anatomy, side: int, dome: float, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    out = side * x
    # outwards the chest is round; inwards the middle of the chest is in the way
    height = np.clip((dome + 0.25 - y) / (dome + 0.25 - body.lung_top), 0, 1)
    outer = 0.12 + 2 * body.lung_width * np.sqrt(np.clip(1 - height**3.2, 0, 1))
    inner = 0.12 + 0.03 * np.clip(y, -0.5, 1)
    curve = (1 - body.flatness) * 1.5
    lower = dome + curve * (out - 0.12 - 0.75 * body.lung_width) ** 2
    distance = np.maximum(np.maximum(out - outer, inner - out), y - lower)
    return np.maximum(distance, body.lung_top - y), lower


def _heart(body: Anatomy, x: np.ndarray, y: np.ndarray, tip: float) -> np.ndarray:
    # an egg with its tip to the patient's left, the right heart, and the great vessels above
    c, s = math.cos(0.5), math.sin(0.5)
    u, v = x - 0.42 * body.heart, y - tip + 0.27
    u, v = c * u + s * v, c * v - s * u
    egg = np.hypot(u / (1.05 * body.heart), v / (0.11 + 0.44 * body.heart)) - 1
    right = np.hypot((x + 0.3 * body.heart) / (0.55 * body.heart), (y - tip + 0.2) / 0.26) - 1
    stem = np.maximum(np.abs(x - 0.01) - 0.14, np.abs(y + 0.1) - 0.3)
    knob = np.hypot(x - 0.13, y + 0.3) - 0.09
    return np.minimum(np.minimum(egg, right) * body.heart * 0.8, np.minimum(stem, knob))


def _vertebrae(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return step(np.abs(x) - 0.09, 0.04) * np.sign(np.sin(38 * y)) * 0.5


def _ribs(chest: Chest) -> np.ndarray:
    x, y, body = chest.x, chest.y, chest.body
    total = np.zeros_like(x)
    inside = step(np.abs(x) - 0.88, 0.08)
    for rib in range(body.ribs):
        start = body.lung_top + 0.05 + rib * 1.22 / body.ribs
        out = np.abs(x)
        # behind it falls outwards; in front it comes back down and inwards
        back = start - 0.06 + 0.42 * np.clip(out - 0.1, 0, 1) ** 2 - 0.12 * out
        front = start + 0.42 - 0.30 * out
        total = total + 0.085 * _line(y - back, 0.022) * step(0.1 - out, 0.05)
        total = total + 0.035 * _line(y - front, 0.02) * step(0.42 - out, 0.2) * (y < 0.45)
    return total * inside * (0.35 + 0.65 * chest.lung)


def _clavicles(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.abs(x)
    bow = -0.60 - 0.22 * (out - 0.1) + 0.05 * np.sin(7 * out)
    return 0.12 * _line(y - bow, 0.032) * step(0.1 - out, 0.05) * step(out - 0.8, 0.1)


def _vessels(chest: Chest, rng: np.random.Generator) -> np.ndarray:
    total = np.zeros_like(chest.x)
    for side, lung in zip(SIDES, chest.lungs, strict=True):
        # only where the lung is: this is most of the work
        where = np.s_[:, np.flatnonzero(lung.any(0))[0] : np.flatnonzero(lung.any(0))[-1] + 1]
        lung = (lung * (1 - chest.heart))[where]
        u, v = side * chest.x[where] - 0.14, chest.y[where] + 0.02
        radius, direction = np.hypot(u, v), np.arctan2(v, u)
        seen = 0.12 * lung * step(np.hypot(u / 0.8, v / 1.4) - 0.1, 0.25)
        fading = 0.09 * lung * step(radius - 0.5, 0.35) * step(0.06 - radius, 0.1)
        width = 0.018 * np.clip(1 - radius / 0.65, 0.2, 1)
        for number in range(11):
            angle = -1.3 + 0.27 * number + rng.uniform(-0.1, 0.1)
            bend, wave = rng.uniform(-0.8, 0.8), rng.uniform(0, 6)
            course = angle + bend * (radius - 0.1) + 0.07 * np.sin(9 * radius + wave)
            seen += fading * _line(radius * (direction - course), width)
        total[where] += seen
    return total


def _line(distance: np.ndarray, width: float) -> np.ndarray:
    square = np.square(distance / width)
    return np.exp(-np.square(square))
