"""KITTI tracking: `image_02/0000/000000.png` frame by frame, `label_02/0000.txt` a sequence.

`training` has 21 sequences with labels, `testing` 29 without. Frames come ten times a second. The
labels are checked, since they show whether frames are missing at the end; the case needs none.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlcourse.usecases.video.street_scenes import Frame
from dlguide.data.formats.sample import Sample
from dlguide.data.readers.image_files import file_sample, read_image, read_lines, require_existing
from dlguide.errors import DataError

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


@dataclass(frozen=True)
class Drive(Sequence):
    """One sequence; each frame is read and checked when it is indexed.

    `boxes` has for each frame the line in the label file, right end and bottom of its boxes.
    """

    images: Path
    boxes: tuple[tuple[tuple[int, float, float], ...], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.boxes)

    def __getitem__(self, index: int) -> Frame:
        number = range(len(self))[index]
        path = self.images / f"{number:06d}.png"
        pixels, _ = read_image(path, "RGB")
        rows, columns = pixels.shape[:2]
        for line, right, bottom in self.boxes[number]:
            if right > columns or bottom > rows:  # boxes reach to the last pixel's middle or end
                raise DataError(
                    f"{_label_file(self.images)}, line {line}: the box ends at ({right}, "
                    f"{bottom}), outside of {path.name} with {columns} x {rows} pixels."
                )
        return Frame(number, pixels)

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
    """List the sequences in the folder that holds `image_02`; all have names of four digits."""
    base = require_existing(Path(folder) / IMAGES, "folder of KITTI's left colour images", ORIGIN)
    found = sorted(os.listdir(base))
    for name in found:
        if not re.fullmatch(r"\d{4}", name) or not (base / name).is_dir():
            raise DataError(f"{base / name}: no sequence, which is a folder called by 4 digits.")
    return tuple(found)


def read(folder: str | os.PathLike, name: str, labels: bool = True) -> Drive:
    """List the frames of a sequence and check its labels, if it has any, against them."""
    images = require_existing(Path(folder) / IMAGES / name, f"sequence {name!r}", ORIGIN)
    found = sorted(os.listdir(images))
    for number, file in enumerate(found):
        if file != f"{number:06d}.png":
            raise DataError(f"{images}: frame {number:06d}.png is missing, got {file!r} there.")
    if not found:
        raise DataError(f"{images}: has no frames.")
    boxes: list[list[tuple[int, float, float]]] = [[] for _ in found]
    path, seen = _label_file(images), set()
    lines = read_lines(path, "label file", ORIGIN) if labels else []
    for number, line in enumerate(lines, start=1):
        frame, track, right, bottom = _label(line, f"{path}, line {number}", len(found))
        if track is not None and (frame, track) in seen:
            raise DataError(f"{path}, line {number}: track {track} is twice in frame {frame}.")
        seen.add((frame, track))
        boxes[frame].append((number, right, bottom))
    return Drive(images, tuple(map(tuple, boxes)))


def _label_file(images: Path) -> Path:
    return images.parent.parent / LABELS / f"{images.name}.txt"


def _label(line: str, where: str, frames: int) -> tuple[int, int | None, float, float]:
    """Check a label; return its frame, its track if it is an object, right end and bottom."""
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
    left, top, right, bottom = numbers[1:5]
    if not 0 <= left <= right or not 0 <= top <= bottom:
        raise DataError(f"{where}: the box {numbers[1:5]} must be left, top, right, bottom.")
    if kind == DONT_CARE:
        return frame, None, right, bottom
    if not (track >= 0 and truncated in range(3) and occluded in range(4)):
        raise DataError(
            f"{where}: track must be at least 0, truncated 0 to 2 and occluded 0 to 3, got "
            f"{track}, {truncated} and {occluded}."
        )
    return frame, track, right, bottom
