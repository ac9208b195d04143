"""KITTI tracking: `image_02/0000/000000.png` frame by frame, `label_02/0000.txt` a sequence; clips.

`training` has 21 sequences with labels, `testing` 29 without. Frames come ten times a second;
`clips` cuts them into what a net that predicts video learns from.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dlcourse.readers.image_files import (
    file_sample,
    read_image,
    read_lines,
    require_existing,
)
from dlcourse.synthetic import Samples
from dlcourse.usecases.video.street_scenes import Frame, Label
from dlguide.data.formats.sample import Sample
from dlguide.errors import DataError, require, require_count

IMAGES, LABELS = "image_02", "label_02"
ORIGIN = (
    "cvlibs.net/datasets/kitti gives it out after registration: data_tracking_image_2.zip, "
    "data_tracking_label_2.zip."
)
COLUMNS = 17
DONT_CARE = "DontCare"
# As the labels have them; "Person" is what the readme calls Person_sitting.
TYPES = (
    *("Car", "Van", "Truck", "Pedestrian", "Person", "Person_sitting", "Cyclist", "Tram", "Misc"),
    DONT_CARE,
)
_SEQUENCE = re.compile(r"\d{4}")
# Boxes reach to the last pixel's middle or its end.
_BORDER = 1.0


@dataclass(frozen=True)
class Drive(Sequence):
    """One sequence; each frame is read and checked when it is indexed."""

    images: Path
    labels: tuple[tuple[Label, ...], ...] = field(repr=False)
    lines: tuple[tuple[int, ...], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice) -> Frame | Samples:
        if isinstance(index, slice):
            return Samples(range(len(self))[index], self.__getitem__)
        number = range(len(self))[index]
        path = self.images / f"{number:06d}.png"
        pixels, _ = read_image(path, "RGB")
        rows, columns = pixels.shape[:2]
        for label, line in zip(self.labels[number], self.lines[number], strict=True):
            if label.right > columns - 1 + _BORDER or label.bottom > rows - 1 + _BORDER:
                place = _label_file(self.images)
                raise DataError(
                    f"{place}, line {line}: the box ends at ({label.right}, {label.bottom}), "
                    f"outside of {path.name} with {columns} x {rows} pixels."
                )
        return Frame(number, self.labels[number], pixels)

    def items(self) -> list[tuple[Path, int]]:
        """Return the files with their numbers, for a reader that decodes them itself."""
        return [(self.images / f"{number:06d}.png", number) for number in range(len(self))]

    def samples(self) -> Iterator[Sample]:
        """Yield the files unchanged, each decoded once as a check that it is complete."""
        for path, number in self.items():
            key = f"{self.images.name}/{path.name}"
            yield file_sample(path, (int(self.images.name), number), key)


# What `verification.verify` needs: files at the top of the folder, the parts, what is not checked.
MARKS = (IMAGES, LABELS)


def parts(folder: Path) -> list[dict[str, Any]]:
    """The arguments of `read` for each sequence."""
    labels = (folder / LABELS).exists()
    return [{"name": name, "labels": labels} for name in names(folder)]


def unchecked(folder: Path) -> tuple[str, ...]:
    """What cannot be checked with these files."""
    found = ("changed bytes of an image that can still be decoded: it has no checksum",)
    if not (folder / LABELS).exists():
        found += (f"labels: there is no {LABELS}, as in the published `testing`",)
    return found


def names(folder: str | os.PathLike) -> tuple[str, ...]:
    """List the sequences.

    Args:
        folder: the folder that holds `image_02` and `label_02`.

    Returns:
        tuple: names of four digits, in order.

    Raises:
        MissingComponentError: when `image_02` is not there.
        DataError: when something in it is no sequence.
    """
    base = require_existing(Path(folder) / IMAGES, "folder of KITTI's left colour images", ORIGIN)
    found = sorted(os.listdir(base))
    for name in found:
        if not _SEQUENCE.fullmatch(name) or not (base / name).is_dir():
            raise DataError(f"{base / name}: no sequence, which is a folder called by 4 digits.")
    return tuple(found)


def read(folder: str | os.PathLike, name: str, labels: bool = True) -> Drive:
    """Read the labels of a sequence and check them against its frames.

    Args:
        folder: the folder that holds `image_02` and `label_02`.
        name: of the sequence, for example "0000".
        labels: False reads the frames only, as for the sequences that have no labels.

    Returns:
        Drive: the frames, each image read when it is indexed.

    Raises:
        MissingComponentError: when the images or the labels are not there.
        DataError: when a frame is missing or a label is not as it must be; names file and line.
    """
    images = require_existing(Path(folder) / IMAGES / name, f"sequence {name!r}", ORIGIN)
    found = sorted(os.listdir(images))
    for number, file in enumerate(found):
        if file != f"{number:06d}.png":
            raise DataError(f"{images}: frame {number:06d}.png is missing, got {file!r} there.")
    if not found:
        raise DataError(f"{images}: has no frames.")
    if not labels:
        nothing = ((),) * len(found)
        return Drive(images, nothing, nothing)
    path = _label_file(images)
    boxes: list[list[Label]] = [[] for _ in found]
    lines: list[list[int]] = [[] for _ in found]
    seen = set()
    for number, line in enumerate(read_lines(path, "label file", ORIGIN), start=1):
        label = _label(line, f"{path}, line {number}", len(found))
        if label.kind != DONT_CARE and (label.frame, label.track) in seen:
            raise DataError(
                f"{path}, line {number}: track {label.track} is twice in frame {label.frame}."
            )
        seen.add((label.frame, label.track))
        boxes[label.frame].append(label)
        lines[label.frame].append(number)
    return Drive(images, tuple(map(tuple, boxes)), tuple(map(tuple, lines)))


def _label_file(images: Path) -> Path:
    return images.parent.parent / LABELS / f"{images.name}.txt"


def _label(line: str, where: str, frames: int) -> Label:
    cells = line.split()
    if len(cells) != COLUMNS:
        raise DataError(f"{where}: {len(cells)} columns, must be {COLUMNS}.")
    try:
        frame, track, truncated, occluded = (int(cells[place]) for place in (0, 1, 3, 4))
        numbers = [float(cell) for cell in cells[5:]]
    except ValueError as error:
        raise DataError(f"{where}: {error}.") from None
    if not all(map(math.isfinite, numbers)):
        raise DataError(f"{where}: every number must be finite, got {cells[5:]}.")
    kind = cells[2]
    if kind not in TYPES:
        raise DataError(f"{where}: type must be one of {', '.join(TYPES)}, got {kind!r}.")
    if not 0 <= frame < frames:
        raise DataError(f"{where}: frame {frame} of a sequence with {frames}.")
    label = Label(frame, track, kind, truncated, occluded, *numbers)
    if not 0 <= label.left <= label.right or not 0 <= label.top <= label.bottom:
        raise DataError(f"{where}: the box {numbers[1:5]} must be left, top, right, bottom.")
    if kind != DONT_CARE and not (track >= 0 and truncated in range(3) and occluded in range(4)):
        raise DataError(
            f"{where}: track must be at least 0, truncated 0 to 2 and occluded 0 to 3, got "
            f"{track}, {truncated} and {occluded}."
        )
    return label


@dataclass(frozen=True, eq=False)
class Clip:
    """Frames in a row out of one video."""

    video: int
    first: int
    past: np.ndarray = field(repr=False)
    future: np.ndarray = field(repr=False)


@dataclass(frozen=True, eq=False)
class Clips(Sequence):
    """The clips of several videos; each is read when it is indexed."""

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
            `[street_scenes.driving(...)]`.
        before: frames that the net sees (count).
        after: frames that it shall predict (count).
        step: frames from the begin of a clip to that of the next (count); None for
            `before + after`, so that no frame is in two clips.
        size: rows and columns to bring the frames to (pixels); None keeps those of the files.

    Returns:
        Clips: a sequence of `Clip`.

    Raises:
        ValueError: when a number is out of range, or no video is long enough for one clip.

    >>> from dlcourse.usecases.video.street_scenes import driving
    >>> found = clips([driving(frames=30, size=32, seed=1)])
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
