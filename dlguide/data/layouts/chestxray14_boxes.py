"""ChestX-ray14's list of bounding boxes, `BBox_List_2017.csv`.

About a thousand boxes for 8 of the 14 findings. Each line has the file's name, the finding and x,
y, width and height in pixels of the published images of 1024 x 1024; three empty columns end it.
The list says "Infiltrate" for what the table calls Infiltration.

Source: Wang et al., ChestX-ray8, CVPR 2017 (boxes for 8 findings), and the published file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dlguide.data.layouts.files import DAMAGE, FORMATS, read_table
from dlguide.errors import DataError, require_known

ORIGIN = "nihcc.app.box.com/v/ChestXray-NIHCC gives it out."
HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"
FINDINGS = (
    *("Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"),
    "Pneumothorax",
)
_COLUMNS, _EMPTY = 6, 3
_IN_LIST = {"Infiltration": "Infiltrate"}
_IN_TABLE = {listed: name for name, listed in _IN_LIST.items()}
# Boxes reach to the last pixel's middle or its end.
_BORDER = 1.0


@dataclass(frozen=True)
class Box:
    """A bounding box."""

    name: str
    finding: str
    left: float
    top: float
    width: float
    height: float


def write(path: Path, boxes: Iterable[Box]) -> None:
    """Write a list of boxes.

    Args:
        path: the new file.
        boxes: what to write.

    Raises:
        ValueError: when a finding is none of the eight.
    """
    with path.open("x") as file:
        file.write(HEADER + "\n")
        for box in boxes:
            finding = require_known(box.finding, FINDINGS, "finding")
            cells = (box.name, _IN_LIST.get(finding, finding), box.left, box.top)
            cells += (box.width, box.height, "", "", "")
            file.write(",".join(map(str, cells)) + "\n")


def read(path: Path, names: set[str], images: dict[str, Path]) -> dict[str, tuple[Box, ...]]:
    """Read a list of boxes and hold each against its image.

    Args:
        path: the file.
        names: file names that stand in the table.
        images: image files by their names; a box is held against those that are there.

    Returns:
        dict: by file name its boxes.

    Raises:
        MissingComponentError: when the list is not there.
        DataError: when a line is not as it must be, stands there twice, or its box is not in
            the image; names file and line.
    """
    found: dict[str, tuple[Box, ...]] = {}
    for where, cells in read_table(path, "list of ChestX-ray14's boxes", HEADER, ORIGIN):
        box = _box(cells, where)
        if box.name not in names:
            raise DataError(f"{where}: {box.name!r} does not stand in the table.")
        if box in found.get(box.name, ()):
            raise DataError(f"{where}: this box stands in the list twice.")
        if box.name in images:
            columns, rows = _size(images[box.name])
            right, bottom = box.left + box.width, box.top + box.height
            if right > columns + _BORDER or bottom > rows + _BORDER:
                raise DataError(
                    f"{where}: the box ends at ({right:g}, {bottom:g}), outside of {box.name} with "
                    f"{columns} x {rows} pixels."
                )
        found[box.name] = (*found.get(box.name, ()), box)
    return found


def _box(cells: list[str], where: str) -> Box:
    if len(cells) != _COLUMNS and (len(cells) != _COLUMNS + _EMPTY or any(cells[_COLUMNS:])):
        raise DataError(
            f"{where}: {len(cells)} columns, must be {_COLUMNS} and {_EMPTY} empty ones."
        )
    name, label = cells[:2]
    finding = _IN_TABLE.get(label, label)
    if finding not in FINDINGS:
        raise DataError(f"{where}: {label!r} is none of the 8 findings that have boxes.")
    try:
        left, top, width, height = map(float, cells[2:_COLUMNS])
    except ValueError as error:
        raise DataError(f"{where}: {error}.") from None
    finite = all(map(math.isfinite, (left, top, width, height)))
    if not (finite and left >= 0 and top >= 0 and width > 0 and height > 0):
        raise DataError(f"{where}: the box must be x, y, width, height, got {cells[2:_COLUMNS]}.")
    return Box(name, finding, left, top, width, height)


def _size(path: Path) -> tuple[int, int]:
    try:
        with Image.open(path, formats=FORMATS) as image:
            return image.size
    except DAMAGE as error:
        raise DataError(f"{path}: no image that can be read: {error}") from error
