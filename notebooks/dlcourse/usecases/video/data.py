"""The clips of this case: drives that are drawn, or KITTI's, as squares of few pixels.

Clips of one drive show the same street, so drives are held out, never clips.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dlcourse.usecases.video import kitti_tracking, street_scenes
from dlcourse.usecases.video.street_scenes import Frame
from dlguide.collectives.communicator import Communicator
from dlguide.errors import DataError, require, require_count

# Frames that the nets see and predict, as in the guide's Table 2.
BEFORE = AFTER = 6
CLIP = BEFORE + AFTER
# Numbers of the drives of one seed; those that are held out come from the upper half.
_DRIVES = 10_000
_HELD_OUT = 4  # of KITTI's sequences every fourth


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
        return Frame(frame.index, square)


@dataclass(frozen=True, eq=False)
class Scenes:
    """Clips of the drives to learn from and of those that are held out."""

    name: str
    past: np.ndarray = field(repr=False)
    future: np.ndarray = field(repr=False)
    test_past: np.ndarray = field(repr=False)
    test_future: np.ndarray = field(repr=False)
    drives: tuple[int, int]


def load(config: Any, comm: Communicator) -> Scenes:
    """Draw or read all clips of a `VideoConfig`; each rank makes its part, then all have all.

    All ranks must call, with the same arguments. Every frame moves to every rank once. Training
    clips start every `spacing` frames; held-out clips do not overlap.
    """
    with comm.agree_or_raise():
        learn, test = divided(config)
    # with another copy of the data a rank would wait indefinitely, or silently use other frames
    with comm.agree_or_raise({"frames": [len(one) for one in (*learn, *test)]}):
        pass
    videos = _shared([*learn, *test], comm)
    parts = *_cut(videos[: len(learn)], config.spacing), *_cut(videos[len(learn) :], CLIP)
    name = "drawn drives" if config.real is None else f"KITTI tracking in {config.real}"
    return Scenes(name, *parts, (len(learn), len(test)))


def divided(config: Any) -> tuple[list[Squares], list[Squares]]:
    """Return the drives to learn from and those that are held out, real or drawn."""
    if config.real is not None:
        return kitti(config.real, config.size)
    return drawn(config.size, config.drives, config.held_out, config.frames, config.seed)


def drawn(
    size: int, drives: int, held_out: int, frames: int, seed: int
) -> tuple[list[Squares], list[Squares]]:
    """Return drives to learn from and held-out ones; frames are drawn when they are read."""
    require_count(size, "size", least=street_scenes.SMALLEST)
    require_count(seed, "seed", least=0)
    require_count(frames, "frames", least=CLIP)
    for name, count in (("drives", drives), ("held_out", held_out)):
        require(require_count(count, name) <= _DRIVES // 2, name, "be at most 5000", count)
    first = _DRIVES * seed
    return tuple(
        [Squares(street_scenes.driving(frames, size, begin + number), size)
         for number in range(count)]
        for begin, count in ((first, drives), (first + _DRIVES // 2, held_out))
    )  # fmt: skip


def kitti(folder: str | os.PathLike, size: int) -> tuple[list[Squares], list[Squares]]:
    """Find and check KITTI's sequences; every fourth one is held out."""
    require_count(size, "size")
    folder = Path(folder).expanduser()
    if folder.is_file():
        raise DataError(f"{folder} is a file. Unpack it and name the folder that holds "
                        f"`{kitti_tracking.IMAGES}`. {kitti_tracking.ORIGIN}")  # fmt: skip
    inner = folder / "training"
    base = inner if (inner / kitti_tracking.IMAGES).is_dir() else folder
    every = []
    for name in kitti_tracking.names(base):
        labelled = (base / kitti_tracking.LABELS / f"{name}.txt").is_file()
        every.append(kitti_tracking.read(base, name, labels=labelled))
    long = [Squares(one, size) for one in every if len(one) >= CLIP]
    if len(long) < 2:
        raise DataError(
            f"{base / kitti_tracking.IMAGES}: {len(long)} of {len(every)} sequences have the "
            f"{CLIP} frames of a clip; two are needed, one to learn from and one to be "
            f"judged by. KITTI's training part has 21. {kitti_tracking.ORIGIN}"
        )
    out = min(_HELD_OUT, len(long))
    test = long[out - 1 :: out]
    return [one for one in long if one not in test], test


def starts(frames: int, step: int) -> range:
    """First frames of the clips of a video; no clip goes over its end."""
    return range(0, frames - CLIP + 1, step)


def _shared(videos: Sequence[Squares], comm: Communicator) -> list[np.ndarray]:
    """Make each rank's part of the frames, and return all of them on all ranks."""
    places = [(video, frame) for video, one in enumerate(videos) for frame in range(len(one))]
    with comm.agree_or_raise():
        mine = [videos[video][frame].pixels for video, frame in places[comm.rank :: comm.size]]
    size = videos[0].size
    shape = len(places), size, size, 3
    whole = gathered(np.array(mine, np.uint8).reshape(-1, *shape[1:]), shape[0], comm)
    return np.split(whole, np.cumsum([len(one) for one in videos])[:-1])


def gathered(mine: np.ndarray, count: int, comm: Communicator) -> np.ndarray:
    """Return all rows on all ranks, of which each rank has every `comm.size`-th; collective."""
    whole = np.empty((count, *mine.shape[1:]), np.uint8)
    for rank, sent in enumerate(comm.allgather_bytes(np.ascontiguousarray(mine).tobytes())):
        rows = whole[rank :: comm.size]
        rows[:] = np.frombuffer(sent, np.uint8).reshape(-1, *mine.shape[1:])[: len(rows)]
    return whole


def _cut(videos: Sequence[np.ndarray], step: int) -> tuple[np.ndarray, np.ndarray]:
    """Cut videos into past and future of their clips."""
    clips = np.stack([one[at : at + CLIP] for one in videos for at in starts(len(one), step)])
    return clips[:, :BEFORE], clips[:, BEFORE:]
