"""ImageNet as TFRecord shards: `train-00000-of-01024`, `validation-00000-of-00128`.

This is what the usual conversion writes: each record a `tf.train.Example` with the JPEG as it
was (`image/encoded`), the class from 1 to 1000 (`image/class/label`; 0 is "background",
which no picture has), its file name and more. Labels are given from 0 here, as `imagenet.read`
gives them.

Source: TensorFlow models, research/inception/inception/data/build_imagenet_data.py (what the
fields mean, how many shards); Russakovsky et al., arXiv:1409.0575 (numbers of pictures).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse.readers.imagenet import ORIGIN
from dlguide.data.formats.dataset import Damage, DamageError, crc32c
from dlguide.data.formats.records import AGAIN, FRAMINGS, declared_nbytes
from dlguide.data.formats.sample import MalformedError, Sample, features
from dlguide.data.input_pipeline.sources import Source, requests
from dlguide.errors import MissingComponentError

SPLITS = ("train", "validation")
PUBLISHED_SHARDS = {"train": 1024, "validation": 128}
PUBLISHED_PICTURES = {"train": 1_281_167, "validation": 50_000}
CLASSES = 1000
_FRAMING = FRAMINGS["tfrecord"]
_BEFORE, _AFTER = _FRAMING.before_nbytes, _FRAMING.after_nbytes
_ROW = np.dtype([("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("check", "<u4")])


@dataclass(frozen=True, eq=False)
class Record:
    """A labelled picture, still encoded."""

    index: int
    label: int
    name: str
    encoded: bytes = field(repr=False)


class Shards(Source):
    """The pictures of a split, also for an input pipeline; each record is checked when read.

    `table` has a row for each record: file, first byte, length, checksum.
    """

    def __init__(self, split: str, paths: tuple[Path, ...], table: np.ndarray) -> None:
        self.split, self.paths, self.table = split, paths, table
        self.count, self.name = len(table), f"shards of {split}"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Record:
        file, offset, nbytes, check = self.table[number].tolist()
        try:
            with self.paths[file].open("rb") as opened:
                contents = os.pread(opened.fileno(), nbytes, offset)
        except OSError as error:
            raise self.damaged(number, f"cannot be read: {error.strerror}") from error
        after = _FRAMING.frame(nbytes, crc32c(contents))[1]
        if len(contents) != nbytes or after != check.to_bytes(_AFTER, "little"):
            raise self.damaged(number, "its bytes do not fit their checksum")
        try:
            return _parse(number, contents)
        except MalformedError as error:
            raise self.damaged(number, str(error)) from error

    def samples(self) -> Iterator[Sample]:
        """Give the JPEGs as they are, with labels from 0."""
        for found in self:
            yield Sample(found.encoded, (found.label,), f"{self.split}/{found.name}")

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        found = [self[number] for number in numbers.tolist()]
        if throttle is not None:
            for one in found:
                throttle.take(1, requests(len(one.encoded)), len(one.encoded))
        labels = self.labels_of([(one.label,) for one in found], numbers)
        return [one.encoded for one in found], labels

    def checksum(self) -> int:
        names = " ".join(path.name for path in self.paths)
        return zlib.crc32(self.table.tobytes(), zlib.crc32(names.encode()))

    def damaged(self, number: int, what: str) -> DamageError:
        file, offset, *_ = self.table[number].tolist()
        return DamageError(Damage(str(self.paths[file]), what, number, offset), AGAIN)


# What `verification.verify` needs: files at the top of the folder, the parts, what is not checked.
MARKS = tuple(f"{split}-?????-of-?????" for split in SPLITS)


def parts(folder: Path) -> list[dict[str, str]]:
    """Return the arguments of `read` for each split that is there."""
    marks = zip(SPLITS, MARKS, strict=True)
    return [{"split": split} for split, mark in marks if next(folder.glob(mark), None)]


def unchecked(folder: Path) -> tuple[str, ...]:
    """Return what these files give no means to check, a sentence each."""
    return (
        "whether a record decodes to a picture: it is checked against its checksum only",
        "whether a shard lost records at its end: a TFRecord file cut there is a shorter one",
    )


def read(folder: str | os.PathLike, split: str = "train") -> Shards:
    """Find the shards of a split and where each record is in them.

    Reads the header of every record (16 bytes), not the pictures.

    Raises:
        MissingComponentError: when there are no shards of this split.
        DataError: when a shard is missing, damaged or cut within a record; names the file.
    """
    paths = _shard_paths(Path(folder), split)
    rows: list[tuple[int, ...]] = []
    for number, path in enumerate(paths):
        rows += [(number, *row) for row in _rows(path, len(rows))]
    return Shards(split, paths, np.array(rows, _ROW))


def _shard_paths(folder: Path, split: str) -> tuple[Path, ...]:
    """List the files of one data set, of whose shards none is missing."""
    names = sorted(path.name for path in folder.glob(f"{split}-?????-of-?????"))
    if not names:
        first = f"{split}-00000-of-{PUBLISHED_SHARDS[split]:05d}"
        raise MissingComponentError(
            f"There are no shards of ImageNet like {first} in {folder}. {ORIGIN}"
        )
    count = int(names[0][-5:])
    wanted = [f"{split}-{number:05d}-of-{count:05d}" for number in range(count)]
    missing, strange = sorted({*wanted} - {*names}), sorted({*names} - {*wanted})
    if strange:
        what = f"holds {strange[0]}, which is none of {count} shards"
        raise DamageError(Damage(str(folder), what), "Keep the shards of one data set here.")
    if missing:
        what = f"{len(missing)} of {count} shards are missing, the first is {missing[0]}"
        raise DamageError(Damage(str(folder), what), "Copy them from their source.")
    return tuple(folder / name for name in names)


def _rows(path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Go from header to header, all checked; yield first byte, length and checksum of records."""
    try:
        with path.open("rb") as file:
            size, at = os.fstat(file.fileno()).st_size, 0
            head = os.pread(file.fileno(), _BEFORE, 0)
            while at < size:
                nbytes = declared_nbytes(_FRAMING, head, size - at, path, number, at)
                # the record's checksum and the next header, in one request
                following = os.pread(file.fileno(), _AFTER + _BEFORE, at + _BEFORE + nbytes)
                yield at + _BEFORE, nbytes, int.from_bytes(following[:_AFTER], "little")
                number += 1
                at += _BEFORE + nbytes + _AFTER
                head = following[_AFTER:]
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise DamageError(Damage(str(path), what), AGAIN) from error


def _parse(number: int, contents: bytes) -> Record:
    """Read a record and check its label; the JPEG is not yet decoded."""
    found = features(contents)
    encoded = _one(found, "image/encoded", bytes)
    label = _one(found, "image/class/label", int)
    name = _one(found, "image/filename", bytes).decode(errors="replace")
    if not 1 <= label <= CLASSES:
        raise MalformedError(f"label {label} must be 1 to {CLASSES}")
    return Record(number, label - 1, name, encoded)


def _one(found: dict[str, list], name: str, kind: type) -> Any:
    values = found.get(name, [])
    if len(values) != 1 or not isinstance(values[0], kind):
        raise MalformedError(f"its feature {name!r} is not one {kind.__name__}")
    return values[0]
