"""Shapes by their signed distance and textures by their brightness, over a grid of places."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Grid = np.ndarray


def turned(x: Grid, y: Grid, angle: float) -> tuple[Grid, Grid]:
    """Turn places about the origin."""
    c, s = math.cos(angle), math.sin(angle)
    return c * x + s * y, c * y - s * x


def _disc(x: Grid, y: Grid) -> Grid:
    return np.hypot(x, y) - 0.9


def _box(x: Grid, y: Grid) -> Grid:
    return np.maximum(np.abs(x), np.abs(y)) - 0.78


def _triangle(x: Grid, y: Grid) -> Grid:
    return np.maximum(np.abs(x) * 0.866 - y * 0.5, y) - 0.5


def _ring(x: Grid, y: Grid) -> Grid:
    return np.abs(np.hypot(x, y) - 0.68) - 0.26


def _cross(x: Grid, y: Grid) -> Grid:
    ax, ay = np.abs(x), np.abs(y)
    return np.minimum(np.maximum(ax - 0.95, ay - 0.32), np.maximum(ay - 0.95, ax - 0.32))


def _star(x: Grid, y: Grid) -> Grid:
    # one edge, from a point at radius 1 to a dent at 0.42, folded over all ten
    half = math.pi / 5
    angle = np.abs((np.arctan2(x, -y) + half) % (2 * half) - half)
    radius = np.hypot(x, y)
    across, along = 1 - 0.42 * math.cos(half), 0.42 * math.sin(half)
    length = math.hypot(across, along)
    across, along = across / length, along / length
    return (radius * np.cos(angle) - 1) * along + radius * np.sin(angle) * across


def _crescent(x: Grid, y: Grid) -> Grid:
    return np.maximum(np.hypot(x, y) - 0.95, 0.75 - np.hypot(x - 0.45, y))


SHAPES: tuple[Callable[[Grid, Grid], Grid], ...] = (
    _disc,
    _box,
    _triangle,
    _ring,
    _cross,
    _star,
    _crescent,
)


def _plain(x: Grid, y: Grid) -> Grid:
    return np.zeros(np.broadcast_shapes(x.shape, y.shape), np.float32)


def _stripes(x: Grid, y: Grid) -> Grid:
    return np.sin(9 * x) + 0 * y


def _checks(x: Grid, y: Grid) -> Grid:
    return np.sign(np.sin(7 * x) * np.sin(7 * y))


def _dots(x: Grid, y: Grid) -> Grid:
    return np.clip(4 * (np.cos(8 * x) + np.cos(8 * y) - 0.9), -1, 1)


def _waves(x: Grid, y: Grid) -> Grid:
    return np.sin(11 * y + 2 * np.sin(5 * x))


def _rings(x: Grid, y: Grid) -> Grid:
    return np.sin(14 * np.hypot(x, y))


TEXTURES: tuple[Callable[[Grid, Grid], Grid], ...] = (
    _plain,
    _stripes,
    _checks,
    _dots,
    _waves,
    _rings,
)
