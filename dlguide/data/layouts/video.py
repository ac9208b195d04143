"""Videos cut into clips: the frames that a net sees, and those that it shall predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from dlguide.data.synthetic import Frame, Samples
from dlguide.errors import DataError, require, require_count


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames in a row out of one video."""

    video: int
    first: int
    past: np.ndarray = field(repr=False)
    future: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Clips(Sequence):
    """The clips of several videos; each is read when it is asked for."""

    videos: tuple[Sequence[Frame], ...] = field(repr=False)
    places: tuple[tuple[int, int], ...] = field(repr=False)
    before: int
    after: int
    size: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int | slice) -> Clip | Samples:
        if isinstance(index, slice):
            return Samples(range(len(self))[index], self.__getitem__)
        video, first = self.places[index]
        frames: list[np.ndarray] = []
        for number in range(first, first + self.before + self.after):
            pixels = self._resized(self.videos[video][number].pixels)
            if frames and pixels.shape != frames[0].shape:
                raise DataError(
                    f"{self.videos[video]}: frame {number} has the shape {pixels.shape}, frame "
                    f"{first} {frames[0].shape}. Give `size`, or take frames of one camera."
                )
            frames.append(pixels)
        return Clip(video, first, np.stack(frames[: self.before]), np.stack(frames[self.before :]))

    def _resized(self, pixels: np.ndarray) -> np.ndarray:
        if self.size is None or pixels.shape[:2] == self.size:
            return pixels
        rows, columns = self.size
        image = Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BILINEAR)
        return np.asarray(image)


def clips(
    videos: Sequence[Sequence[Frame]],
    before: int = 6,
    after: int = 6,
    step: int | None = None,
    size: tuple[int, int] | None = None,
) -> Clips:
    """Cut videos into clips; none goes over the end of a video.

    Clips of one video show the same street: divide into training and test by video, not by clip.
    KITTI's sequences have slightly different sizes; with `size` they fit into one batch.

    Args:
        videos: for example `[kitti_tracking.read(folder, name) for name in names]`, or
            `[synthetic.driving(...)]`.
        before: frames that the net sees (count).
        after: frames that it shall predict (count).
        step: frames from the begin of a clip to that of the next (count); None for
            `before + after`, so that no frame is in two clips.
        size: rows and columns to bring the frames to (pixels); None keeps those of the files.

    Returns:
        Clips: a sequence of `Clip`.

    Raises:
        ValueError: when a number is out of range, or no video is long enough for one clip.

    >>> from dlguide.data import synthetic
    >>> found = clips([synthetic.driving(frames=30, size=32, seed=1)])
    >>> [clip.first for clip in found], found[0].past.shape
    ([0, 12], (6, 32, 106, 3))
    """
    length = require_count(before, "before") + require_count(after, "after")
    step = length if step is None else require_count(step, "step")
    if size is not None:
        require(len(size) == 2, "size", "be rows and columns", size)
        size = tuple(require_count(side, "size") for side in size)
    places = tuple(
        (video, first)
        for video, frames in enumerate(videos)
        for first in range(0, len(frames) - length + 1, step)
    )
    longest = max((len(frames) for frames in videos), default=0)
    enough = f"hold one of at least {length} frames for clips of {before} + {after}"
    require(len(places) > 0, "videos", enough, longest)
    return Clips(tuple(videos), places, before, after, size)
