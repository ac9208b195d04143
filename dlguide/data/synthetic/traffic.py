"""Where the vehicles of a driving scene are, frame by frame, and how the camera sees them.

Axes as KITTI has them: x to the right, y down, z ahead, in metres from the camera, which moves
along. Each lane's vehicles keep their distances, so none meets another, and any frame follows
from the seed and its number alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlguide.data.synthetic.samples import random

# KITTI's left colour camera: size of its images (pixels), focal length and centre (pixels).
KITTI_COLUMNS, KITTI_ROWS = 1242, 375
_FOCAL, _CENTER_X, _CENTER_Y = 721.5377, 609.5593, 172.854
CAMERA_HEIGHT = 1.65
LANE = 3.5
NEAREST, FARTHEST = 5.0, 75.0
# Height, width and length (m), how often, by the names that KITTI uses.
TYPES = {
    "Car": ((1.50, 1.70, 4.1), 0.7),
    "Van": ((2.05, 1.90, 5.0), 0.2),
    "Truck": ((3.25, 2.45, 8.5), 0.1),
}
_ONCOMING, _OWN, _RIGHT = range(3)


@dataclass(frozen=True)
class Camera:
    """A camera like KITTI's, for pictures of any size."""

    rows: int
    columns: int

    @property
    def focal(self) -> float:
        """Focal length (pixels)."""
        return _FOCAL * self.rows / KITTI_ROWS

    def project(self, x: float, y: float, z: float) -> tuple[float, float]:
        """Give the place in the picture of a point in space."""
        scale = self.rows / KITTI_ROWS
        return _CENTER_X * scale + self.focal * x / z, _CENTER_Y * scale + self.focal * y / z


@dataclass(frozen=True)
class Vehicle:
    """A vehicle in one frame."""

    track: int
    kind: str
    x: float
    z: float
    size: tuple[float, float, float]
    oncoming: bool
    hue: float
    bright: float

    def corners(self) -> list[tuple[float, float, float]]:
        """List the corners of the box around it, the near ones first."""
        height, width, length = self.size
        return [
            (self.x + a * width / 2, CAMERA_HEIGHT - b * height, self.z + c * length / 2)
            for c in (-1, 1)
            for b in (0, 1)
            for a in (-1, 1)
        ]


@dataclass(frozen=True)
class Label:
    """One line of a label file of KITTI tracking, 17 columns in its order.

    Args:
        frame: number of the frame.
        track: number of the vehicle.
        kind: "Car", "Van" or "Truck".
        truncated: how much lies outside the picture: 0 nothing, 1 some, 2 most.
        occluded: how much others hide: 0 nothing, 1 some, 2 most.
        alpha: angle under which the camera sees it (radians).
        left: of its box in the picture (pixels).
        top: of its box (pixels).
        right: of its box (pixels).
        bottom: of its box (pixels).
        height: of the vehicle (m).
        width: of the vehicle (m).
        length: of the vehicle (m).
        x: middle of its floor, to the right (m).
        y: middle of its floor, down (m).
        z: middle of its floor, ahead (m).
        rotation: about the vertical axis (radians).
    """

    frame: int
    track: int
    kind: str
    truncated: int
    occluded: int
    alpha: float
    left: float
    top: float
    right: float
    bottom: float
    height: float
    width: float
    length: float
    x: float
    y: float
    z: float
    rotation: float

    def line(self) -> str:
        """Write the label as KITTI's files have it.

        Returns:
            str: 17 columns with one space between.
        """
        first = f"{self.frame} {self.track} {self.kind} {self.truncated} {self.occluded}"
        numbers = (self.alpha, self.left, self.top, self.right, self.bottom, self.height)
        numbers += (self.width, self.length, self.x, self.y, self.z, self.rotation)
        return " ".join((first, *(f"{number:.6f}" for number in numbers)))


def vehicles(seed: int, frame: int) -> list[Vehicle]:
    """List the vehicles ahead in a frame."""
    found = []
    for lane in (_ONCOMING, _OWN, _RIGHT):
        rng = random(seed, "scene", lane)
        if lane == _OWN:
            swing = math.sin(2 * math.pi * (frame / rng.uniform(150, 300) + rng.random()))
            found.append(_vehicle(seed, lane, 0, rng.uniform(22, 30) + 8 * swing))
            continue
        spacing = rng.uniform(22, 32)
        speed = rng.uniform(-2.8, -2.0) if lane == _ONCOMING else rng.uniform(-0.7, 0.7)
        moved = rng.uniform(0, spacing) + speed * frame
        first, last = (math.floor((end - moved) / spacing) for end in (NEAREST, FARTHEST))
        for number in range(first, last + 2):
            jitter = random(seed, "vehicle", lane, _natural(number), 1).uniform(-0.2, 0.2)
            found.append(_vehicle(seed, lane, number, moved + (number + jitter) * spacing))
    seen = [one for one in found if one.z - one.size[2] / 2 > NEAREST and one.z < FARTHEST]
    return sorted(seen, key=lambda one: -one.z)


def label(vehicle: Vehicle, frame: int, camera: Camera, visible: float) -> Label | None:
    """Describe a vehicle as a label file does."""
    points = np.array([camera.project(*corner) for corner in vehicle.corners()])
    (left, top), (right, bottom) = points.min(0), points.max(0)
    whole = (right - left) * (bottom - top)
    # a KITTI box ends at the middle of the last pixel
    left, right = np.clip((left, right), 0, camera.columns - 1)
    top, bottom = np.clip((top, bottom), 0, camera.rows - 1)
    inside = (right - left) * (bottom - top) / whole
    if inside <= 0.02 or visible <= 0.02:
        return None
    rotation = math.pi / 2 if vehicle.oncoming else -math.pi / 2
    return Label(
        frame,
        vehicle.track,
        vehicle.kind,
        _degree(inside),
        _degree(visible),
        rotation - math.atan2(vehicle.x, vehicle.z),
        float(left),
        float(top),
        float(right),
        float(bottom),
        *vehicle.size,
        vehicle.x,
        CAMERA_HEIGHT,
        vehicle.z,
        rotation,
    )


def _degree(left_over: float) -> int:
    return 0 if left_over > 0.97 else 1 if left_over > 0.5 else 2


def _natural(number: int) -> int:
    """Number the whole numbers, also those below 0, from 0 up: 0, -1, 1, -2, 2 and so on."""
    return 2 * number if number >= 0 else -2 * number - 1


def _vehicle(seed: int, lane: int, number: int, z: float) -> Vehicle:
    rng = random(seed, "vehicle", lane, _natural(number), 0)
    kind = str(rng.choice(list(TYPES), p=[often for _, often in TYPES.values()]))
    scale = rng.uniform(0.94, 1.06)
    return Vehicle(
        track=3 * _natural(number) + lane,
        kind=kind,
        x=(lane - _OWN) * LANE + rng.uniform(-0.3, 0.3),
        z=z,
        size=tuple(round(float(scale * length), 3) for length in TYPES[kind][0]),
        oncoming=lane == _ONCOMING,
        hue=rng.random(),
        bright=rng.uniform(0.35, 0.95),
    )
