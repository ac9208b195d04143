"""NIH ChestX-ray14: `images_001/images/00000001_000.png`, `Data_Entry_2017.csv`, lists, boxes.

The images are delivered in twelve archives. Unpacked in one place they give one folder `images`,
unpacked each on its own `images_001/images` to `images_012/images`; both are read. The lists divide
the radiographs by patient, so that none is trained and tested on the same one. Some of the
published files have four channels; all are read as grey.

Source: Wang et al., ChestX-ray8, CVPR 2017, and the published files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dlcourse.readers.image_files import file_sample, read_image, read_lines, read_table
from dlcourse.usecases.chest_xray.phantoms import FINDINGS, Radiograph
from dlguide.data.formats.sample import Sample
from dlguide.errors import DataError, MissingComponentError, require_known

TABLE = "Data_Entry_2017.csv"
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}
# As published: the brackets hold a comma, so each counts as two columns, and the line ends in one.
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
_COLUMNS = len(HEADER.rstrip(",").split(","))
_NAME = re.compile(r"(\d{8})_(\d{3})\.png")
_NUMBER = re.compile(r"\d{1,8}")
# An early release has 058Y, and M or D for months and days.
_AGE = re.compile(r"0*(\d{1,3})([YMD]?)")
_SIZE = re.compile(r"0*[1-9]\d*(\.\d+)?|0*\.\d*[1-9]\d*")
ORIGIN = "nihcc.app.box.com/v/ChestXray-NIHCC gives it out."


@dataclass(frozen=True)
class Radiographs(Sequence):
    """The radiographs of a split: `rows` have no pixels; each is read when it is indexed."""

    rows: tuple[Radiograph, ...] = field(repr=False)
    paths: tuple[Path, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Radiograph:
        index = range(len(self))[index]
        pixels, _ = read_image(self.paths[index], "L")
        return replace(self.rows[index], index=index, pixels=pixels)

    def items(self) -> list[tuple[Path, tuple[int, ...]]]:
        """Return the files with their labels, for a reader that decodes them itself."""
        return [(path, tuple(int(one) for one in row.labels))
                for path, row in zip(self.paths, self.rows, strict=True)]  # fmt: skip

    def samples(self) -> Iterator[Sample]:
        """Yield the files unchanged, each decoded once as a check that it is complete."""
        for path, labels in self.items():
            yield file_sample(path, labels, path.name)


# What `verification.verify` needs: files at the top of the folder, the parts, what is not checked.
MARKS = (TABLE,)


def unchecked(folder: Path) -> tuple[str, ...]:
    """What cannot be checked with these files."""
    return ("changed bytes of an image that can still be decoded: it has no checksum",)


def parts(folder: Path) -> list[dict[str, str]]:
    """The arguments of `read` for each split."""
    return [{"split": split} for split in LISTS]


def read(folder: str | os.PathLike, split: str = "train") -> Radiographs:
    """Read the table and the lists, and check them against each other.

    Args:
        folder: the folder that holds the table, the lists and `images`.
        split: "train" or "test".
    """
    require_known(split, LISTS, "split")
    base = Path(folder)
    images = _images(base)
    table = _table(base / TABLE)
    names = {one: _list(base / file, table) for one, file in LISTS.items()}
    patients = [{table[name].patient for name in part} for part in names.values()]
    both = set.intersection(*patients)
    if both:
        raise DataError(f"{base / LISTS['test']}: patient {min(both)} also stands in train.")
    missing = [name for name in names[split] if name not in images]
    if missing:
        raise DataError(
            f"{base}: {len(missing)} of the {len(names[split])} radiographs of {LISTS[split]} have "
            f"no image, the first is {missing[0]}. Unpack all twelve archives, or take the names "
            "off the list."
        )
    rows, paths = (tuple(one[name] for name in names[split]) for one in (table, images))
    return Radiographs(rows, paths)


def _images(base: Path) -> dict[str, Path]:
    """Find the image files by their names, in one folder or in the twelve."""
    folders = [base / "images", *sorted(base.glob("images_[0-9][0-9][0-9]/images"))]
    found: dict[str, Path] = {}
    for one in folders:
        for name in sorted(os.listdir(one)) if one.is_dir() else []:
            if name in found and name.endswith(".png"):
                raise DataError(f"{one / name}: this image is also in {found[name].parent}.")
            found[name] = one / name
    if not any(one.is_dir() for one in folders):
        raise MissingComponentError(
            f"There is no folder of ChestX-ray14's images at {base / 'images'}, nor at "
            f"{base / 'images_001/images'}. {ORIGIN} Give the folder that holds the data set; "
            "it may be copied from another machine."
        )
    return found


def _table(path: Path) -> dict[str, Radiograph]:
    rows: dict[str, Radiograph] = {}
    for where, cells in read_table(path, "table of ChestX-ray14", HEADER, ORIGIN):
        row = _row(cells, where)
        if row.name in rows:
            raise DataError(f"{where}: {row.name} stands in the table twice.")
        rows[row.name] = row
    return rows


def _row(cells: list[str], where: str) -> Radiograph:
    if len(cells) == _COLUMNS + 1 and not cells[-1]:
        cells = cells[:-1]  # the published lines end in a comma
    if len(cells) != _COLUMNS:
        raise DataError(f"{where}: {len(cells)} columns, must be {_COLUMNS}.")
    name, labels, follow_up, patient, age, gender, view = cells[:7]
    parts, years = _NAME.fullmatch(name), _AGE.fullmatch(age)
    if parts is None:
        raise DataError(f"{where}: image must be called like 00000001_000.png, got {name!r}.")
    if not all(map(_NUMBER.fullmatch, (follow_up, patient))) or years is None:
        raise DataError(f"{where}: follow-up, patient and age must be numbers, got {cells[2:5]}.")
    if int(patient) != int(parts[1]):
        raise DataError(f"{where}: patient {patient} with an image called {name}.")
    if gender not in ("F", "M") or view not in ("PA", "AP"):
        raise DataError(f"{where}: must be F or M and PA or AP, got {gender!r} and {view!r}.")
    if not all(_SIZE.fullmatch(cell) for cell in cells[7:]):
        raise DataError(f"{where}: size and spacing must be positive numbers, got {cells[7:]}.")
    found = [] if labels == "No Finding" else labels.split("|")
    for label in found:
        if label not in FINDINGS:
            raise DataError(f"{where}: {label!r} is none of the 14 findings nor 'No Finding'.")
    ordered = tuple(one for one in FINDINGS if one in found)
    whole_years = int(years[1]) if years[2] in ("", "Y") else 0
    return Radiograph(0, int(patient), int(parts[2]), whole_years, gender, view, ordered)


def _list(path: Path, table: dict[str, Radiograph]) -> list[str]:
    names: dict[str, None] = {}  # in order
    for number, line in enumerate(read_lines(path, "list of ChestX-ray14", ORIGIN), start=1):
        name = line.strip()
        if name not in table:
            raise DataError(f"{path}, line {number}: {name!r} does not stand in {TABLE}.")
        if name in names:
            raise DataError(f"{path}, line {number}: {name} stands in the list twice.")
        names[name] = None
    return list(names)
