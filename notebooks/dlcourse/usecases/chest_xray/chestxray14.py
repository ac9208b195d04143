"""NIH ChestX-ray14 as published: `Data_Entry_2017.csv`, two lists, and folders of images.

The images are delivered in twelve archives. Unpacked in one place they give one folder `images`,
unpacked each on its own `images_001/images` to `images_012/images`; both are read. The lists divide
the radiographs by patient. Some of the published files have four channels; all are read as grey.

Source: Wang et al., ChestX-ray8, CVPR 2017, and the published files.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dlcourse.readers.image_files import file_sample, read_image, read_lines
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlguide.data.formats.sample import Sample
from dlguide.errors import DataError, MissingComponentError

TABLE = "Data_Entry_2017.csv"
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}
ORIGIN = "nihcc.app.box.com/v/ChestXray-NIHCC gives it out."
# What `dlguide data verify` needs: a file at the top of the folder, parts, what is not checked.
MARKS = (TABLE,)


class Row(NamedTuple):
    """One radiograph: its file, its patient, and zeros and ones for the 14 findings."""

    path: Path
    patient: int
    labels: tuple[int, ...]


class Radiographs(Sequence):
    """The radiographs of a split; an index decodes the image."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> np.ndarray:
        return read_image(self.rows[index].path, "L")[0]

    def samples(self) -> Iterator[Sample]:
        """Yield the files unchanged, each decoded once as a check that it is complete."""
        for path, _, labels in self.rows:
            yield file_sample(path, labels, path.name)


def unchecked(folder: Path) -> tuple[str, ...]:
    """What cannot be checked with these files."""
    return ("changed bytes of an image that can still be decoded: it has no checksum",)


def parts(folder: Path) -> list[dict[str, str]]:
    """The arguments of `read` for each split."""
    return [{"split": split} for split in LISTS]


def read(folder: str | os.PathLike, split: str = "train") -> Radiographs:
    """Read table and lists and find the images of a split, "train" or "test", in the list's order.

    Raises:
        MissingComponentError: if the table, a list or the images are not there.
        DataError: if a radiograph is missing or labelled with none of the findings, or a patient
            is in both lists; names file and line.
    """
    base = Path(folder)
    table = {}
    rows = csv.DictReader(read_lines(base / TABLE, "table of ChestX-ray14", ORIGIN))
    for line, row in enumerate(rows, start=2):
        table[row.get("Image Index")] = _row(row, f"{base / TABLE}, line {line}")
    names = {part: read_lines(base / file, "list of ChestX-ray14", ORIGIN)
             for part, file in LISTS.items()}  # fmt: skip
    for part, file in LISTS.items():
        for line, name in enumerate(names[part], start=1):
            if name not in table:
                raise DataError(f"{base / file}, line {line}: {name!r} is not in {TABLE}.")
    both = set.intersection(*({table[name][0] for name in part} for part in names.values()))
    if both:
        raise DataError(f"{base / LISTS['test']}: patient {min(both)} is also in the train list.")
    images = {path.name: path for where in ("images", "images_*/images")
              for path in base.glob(f"{where}/*.png")}  # fmt: skip
    if not images:
        raise MissingComponentError(
            f"There are no images of ChestX-ray14 at {base / 'images'}, nor at "
            f"{base / 'images_001/images'}. {ORIGIN}"
        )
    missing = [name for name in names[split] if name not in images]
    if missing:
        raise DataError(
            f"{base}: {len(missing)} of the {len(names[split])} radiographs of {LISTS[split]} have "
            f"no image, the first is {missing[0]}. Unpack all twelve archives."
        )
    return Radiographs([Row(images[name], *table[name]) for name in names[split]])


def _row(row: dict[str, str], where: str) -> tuple[int, tuple[int, ...]]:
    """The patient and the labels of a line of the table."""
    labels, patient = row.get("Finding Labels") or "", row.get("Patient ID") or ""
    found = [] if labels == "No Finding" else labels.split("|")
    for label in found:
        if label not in FINDINGS:
            raise DataError(f"{where}: {label!r} is none of the 14 findings nor 'No Finding'.")
    if not patient.isdigit():
        raise DataError(f"{where}: the patient must be a number, got {patient!r}.")
    return int(patient), tuple(int(one in found) for one in FINDINGS)
