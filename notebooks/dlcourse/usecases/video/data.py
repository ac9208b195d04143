"""The clips of this case: drives that are drawn, or KITTI's, as squares of few pixels.

Clips of one drive show the same street, so drives are held out, never clips.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from dlcourse.usecases.video import kitti_tracking
from dlcourse.usecases.video.kitti_tracking import clips
from dlcourse.usecases.video.street_scenes import (
    KITTI_COLUMNS,
    KITTI_ROWS,
    Camera,
    Frame,
    draw,
    vehicles,
)
from dlguide.collectives.communicator import Communicator, SingleProcess
from dlguide.errors import DataError, require, require_count

# Frames that the nets see and predict, as in the guide's Table 2.
BEFORE = AFTER = 6
# Numbers of the drives of one seed; those that are held out come from the upper half.
_DRIVES = 10_000
_HELD_OUT = 4  # of KITTI's sequences every fourth


@dataclass(frozen=True, eq=False)
class Drive(Sequence):
    """A drive that is drawn frame by frame, without the vehicles' boxes."""

    frames: int
    size: int
    seed: int

    def __len__(self) -> int:
        return self.frames

    def __getitem__(self, index: int) -> Frame:
        number = range(self.frames)[index]
        camera = Camera(self.size, round(self.size * KITTI_COLUMNS / KITTI_ROWS))
        return Frame(number, (), draw(self.seed, number, vehicles(self.seed, number), camera))


@dataclass(frozen=True, eq=False)
class Squares(Sequence):
    """The square in the middle of each frame, where road and horizon are."""

    frames: Sequence[Frame]
    size: int

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Frame:
        frame = self.frames[index]
        rows, columns = frame.pixels.shape[:2]
        side = min(rows, columns)
        top, left = (rows - side) // 2, (columns - side) // 2
        square = frame.pixels[top : top + side, left : left + side]
        if side != self.size:
            image = Image.fromarray(square).resize((self.size,) * 2, Image.Resampling.BOX)
            square = np.asarray(image)
        return Frame(frame.index, (), square)


@dataclass(frozen=True, eq=False)
class Scenes:
    """Clips of the drives to learn from and of those that are held out."""

    name: str
    size: int
    past: np.ndarray = field(repr=False)
    future: np.ndarray = field(repr=False)
    test_past: np.ndarray = field(repr=False)
    test_future: np.ndarray = field(repr=False)
    drives: tuple[int, int]


def load(
    real: str | os.PathLike | None = None,
    size: int = 32,
    drives: int = 32,
    held_out: int = 8,
    frames: int = 48,
    step: int = 3,
    seed: int = 0,
    comm: Communicator | None = None,
) -> Scenes:
    """Draw or read all clips; each rank makes its part of the frames, then all have all.

    All ranks must call, with the same arguments. Every frame moves to every rank once.

    Args:
        real: folder of KITTI tracking that holds `image_02`, or its parent; None for drawn drives.
        size: height and width of a frame (pixels), at least 32 for drawn ones.
        drives: drawn drives to learn from.
        held_out: drawn drives that are held out.
        frames: of each drawn drive.
        step: frames from the start of a training clip to that of the next; held-out clips do not
            overlap.
        seed: of the drawn drives.
        comm: the ranks; None for this process alone.

    Raises:
        ValueError: if a value is out of range, or no drive is long enough for a clip.
        MissingComponentError: if the real data is not there; with what was looked for, and where.
        DataError: if it is incomplete, or another data set.
    """
    comm = SingleProcess() if comm is None else comm
    with comm.agree_or_raise({"real": None if real is None else os.fspath(real), "size": size}):
        require_count(step, "step")
        if real is None:
            learn, test = drawn(size, drives, held_out, frames, seed)
        else:
            learn, test = kitti(real, size)
        places = clips(learn, BEFORE, AFTER, step).places, clips(test, BEFORE, AFTER).places
    # with another copy of the data a rank would wait indefinitely, or silently use other frames
    with comm.agree_or_raise({"frames": [len(one) for one in (*learn, *test)]}):
        pass
    videos = _shared([*learn, *test], comm)
    parts = _cut(videos[: len(learn)], places[0]) + _cut(videos[len(learn) :], places[1])
    name = "drawn drives" if real is None else f"KITTI tracking in {real}"
    return Scenes(name, size, *parts, (len(learn), len(test)))


def drawn(
    size: int, drives: int, held_out: int, frames: int, seed: int
) -> tuple[list[Squares], list[Squares]]:
    """Return drives to learn from and held-out ones; frames are drawn when they are read."""
    require_count(size, "size", least=32)
    require_count(seed, "seed", least=0)
    require_count(frames, "frames", least=BEFORE + AFTER)
    for name, count in (("drives", drives), ("held_out", held_out)):
        require(require_count(count, name) <= _DRIVES // 2, name, "be at most 5000", count)
    first = _DRIVES * seed
    return tuple(
        [Squares(Drive(frames, size, begin + number), size) for number in range(count)]
        for begin, count in ((first, drives), (first + _DRIVES // 2, held_out))
    )


def kitti(folder: str | os.PathLike, size: int) -> tuple[list[Squares], list[Squares]]:
    """Find and check KITTI's sequences; every fourth one is held out.

    Labels are optional; they show whether frames are missing at the end.
    """
    require_count(size, "size")
    folder = Path(folder).expanduser()
    if folder.is_file():
        raise DataError(f"{folder} is a file. Unpack it and name the folder that holds "
                        f"`{kitti_tracking.IMAGES}`. {kitti_tracking.ORIGIN}")  # fmt: skip
    inner = folder / "training"
    base = inner if (inner / kitti_tracking.IMAGES).is_dir() else folder
    found = []
    for name in kitti_tracking.names(base):
        labelled = (base / kitti_tracking.LABELS / f"{name}.txt").is_file()
        found.append(kitti_tracking.read(base, name, labels=labelled))
    long = [Squares(one, size) for one in found if len(one) >= BEFORE + AFTER]
    if len(long) < 2:
        raise DataError(
            f"{base / kitti_tracking.IMAGES}: {len(long)} of {len(found)} sequences have the "
            f"{BEFORE + AFTER} frames of a clip; two are needed, one to learn from and one to be "
            f"judged by. KITTI's training part has 21. {kitti_tracking.ORIGIN}"
        )
    out = min(_HELD_OUT, len(long))
    test = long[out - 1 :: out]
    return [one for one in long if one not in test], test


def _shared(videos: Sequence[Squares], comm: Communicator) -> list[np.ndarray]:
    """Make each rank's part of the frames, and return all of them on all ranks."""
    places = [(video, frame) for video, one in enumerate(videos) for frame in range(len(one))]
    with comm.agree_or_raise():
        mine = [videos[video][frame].pixels for video, frame in places[comm.rank :: comm.size]]
        part = np.ascontiguousarray(mine, np.uint8)
    size = videos[0].size
    whole = np.empty((len(places), size, size, 3), np.uint8)
    for rank, data in enumerate(comm.allgather_bytes(part.tobytes())):
        held = np.frombuffer(data, np.uint8)
        whole[rank :: comm.size] = held.reshape(-1, size, size, 3)
    ends = np.cumsum([len(one) for one in videos])
    return np.split(whole, ends[:-1])


def _cut(
    videos: Sequence[np.ndarray], places: Sequence[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    whole = [videos[video][first : first + BEFORE + AFTER] for video, first in places]
    stacked = np.stack(whole)
    return stacked[:, :BEFORE], stacked[:, BEFORE:]
