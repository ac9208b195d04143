"""ImageNet as TFRecord shards: `train-00000-of-01024`, `validation-00000-of-00128`.

This is what the usual conversion writes: each record a `tf.train.Example` with the JPEG as it
was (`image/encoded`), the class from 1 to 1000 (`image/class/label`; 0 is "background",
which no picture has), WordNet's name of it, height, width and file name. Labels are given from 0
here, as `imagenet.read` gives them.

Source: TensorFlow models, research/inception/inception/data/build_imagenet_data.py (what the
fields mean, how many shards); Russakovsky et al., arXiv:1409.0575 (numbers of pictures).
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dlcourse.readers.image_files import DAMAGE, decode_image
from dlcourse.readers.imagenet import ORIGIN
from dlcourse.synthetic import Samples
from dlguide.data.formats.dataset import Damage, DamageError, crc32c
from dlguide.data.formats.records import AGAIN, FRAMINGS, declared_nbytes
from dlguide.data.formats.sample import MalformedError, Sample, features
from dlguide.data.input_pipeline.sources import Source, requests
from dlguide.errors import MissingComponentError, require, require_known

__all__ = ["Record", "ShardSource", "Shards", "parts", "read", "unchecked"]

SPLITS = ("train", "validation")
PUBLISHED_SHARDS = {"train": 1024, "validation": 128}
PUBLISHED_PICTURES = {"train": 1_281_167, "validation": 50_000}
CLASSES = 1000
_FRAMING = FRAMINGS["tfrecord"]
_BEFORE, _AFTER = _FRAMING.before_nbytes, _FRAMING.after_nbytes
_ROW = np.dtype([("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("check", "<u4")])
_SYNSET = re.compile(r"n\d{8}")
_VALIDATION = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")


@dataclass(frozen=True, eq=False)
class Record:
    """A labelled picture, still encoded."""

    index: int
    label: int
    synset: str
    name: str
    encoded: bytes = field(repr=False)

    @property
    def pixels(self) -> np.ndarray:
        """The picture decoded: uint8 of shape (rows, columns, 3)."""
        return decode_image(self.encoded, "RGB", f"record {self.index}, {self.name}")[0]


@dataclass(frozen=True, eq=False)
class Shards(Sequence):
    """The pictures of a split; each record is read and checked when it is asked for.

    `table` has a row for each record: file, first byte, length, checksum.
    """

    split: str
    paths: tuple[Path, ...]
    table: np.ndarray = field(repr=False)
    synsets: dict[int, str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, place: int | slice) -> Record | Samples:
        if isinstance(place, slice):
            return Samples(range(len(self))[place], self.__getitem__)
        number = range(len(self))[place]
        contents = self.read(number)
        try:
            found = _parse(number, contents, self.split)
        except ValueError as error:
            then = "Repeat the conversion of this picture."
            raise self.damaged(number, str(error), then) from error
        known = self.synsets.setdefault(found.label, found.synset)
        labels = [label for label, name in self.synsets.items() if name == known]
        what = ""
        if len(labels) > 1:
            del self.synsets[found.label]
            what = f"{known} has label {found.label + 1} here and {labels[0] + 1} elsewhere"
        elif known != found.synset:
            what = f"label {found.label + 1} is {found.synset} here and {known} elsewhere"
        if what:
            then = "These are shards of two conversions: take all of them from one."
            raise self.damaged(number, what, then)
        return found

    def samples(self) -> Iterator[Sample]:
        """Give the JPEGs as they are, with labels from 0."""
        for found in self:
            yield Sample(found.encoded, (found.label,), f"{self.split}/{found.name}")

    def read(self, number: int) -> bytes:
        """Read a record and compare it with its checksum."""
        file, offset, nbytes, check = self.table[number].tolist()
        try:
            with self.paths[file].open("rb") as opened:
                contents = os.pread(opened.fileno(), nbytes, offset)
        except OSError as error:
            raise self.damaged(number, f"cannot be read: {error.strerror}") from error
        after = _FRAMING.frame(nbytes, crc32c(contents))[1]
        if len(contents) != nbytes or after != check.to_bytes(_AFTER, "little"):
            raise self.damaged(number, "its bytes do not fit their checksum")
        return contents

    def damaged(self, number: int, what: str, then: str = AGAIN) -> DamageError:
        """Make the error for a record that is wrong."""
        file, offset, *_ = self.table[number].tolist()
        return DamageError(Damage(str(self.paths[file]), what, number, offset), then)


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
        "whether a shard lost one record, or the last shard some, at its end",
    )


def read(folder: str | os.PathLike, split: str = "train", even: bool = True) -> Shards:
    """Find the shards of a split and where each record is in them.

    Reads the header of every record (16 bytes), not the pictures. A TFRecord file that was cut
    between two records looks like a shorter file; the conversion shares the pictures evenly, so
    that a shard with fewer than the others shows it. One record less in one shard is only seen
    in the number of all, `PUBLISHED_PICTURES`.

    Args:
        folder: the folder of the shards.
        split: "train" or "validation".
        even: whether to refuse shards of uneven length; the last may be shorter.

    Returns:
        Shards: a sequence of `Record`, each checked when asked for.

    Raises:
        ValueError: when there is no such split.
        MissingComponentError: when there are no shards of this split.
        DataError: when a shard is missing, empty, damaged or cut, or a record is there twice;
            names the file.
    """
    require_known(split, SPLITS, "split")
    paths = _shard_paths(Path(folder), split)
    tables, first = [], 0
    for number, path in enumerate(paths):
        tables.append(np.array([(number, *row) for row in _rows(path, first)], _ROW))
        first += len(tables[-1])
    most = max(map(len, tables))
    for path, table in zip(paths, tables, strict=True):
        if not len(table):
            raise DamageError(Damage(str(path), "holds no record"), AGAIN)
        if even and path != paths[-1] and len(table) < most - 1:
            what = f"holds {len(table)} records where others hold {most}: it may have been cut"
            then = "Get it again, or use `even=False` if the pictures were shared unevenly."
            raise DamageError(Damage(str(path), what), then)
    found = Shards(split, tuple(paths), np.concatenate(tables))
    _require_once(found)
    return found


def _shard_paths(folder: Path, split: str) -> list[Path]:
    """List the files of one data set, of whose shards none is missing."""
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    named = [re.fullmatch(split + r"-(\d{5})-of-(\d{5})", name) for name in names]
    found = [match for match in named if match]
    if not found:
        first = f"{split}-00000-of-{PUBLISHED_SHARDS[split]:05d}"
        raise MissingComponentError(
            f"There are no shards of ImageNet like {first} in {folder}. {ORIGIN} Give the folder "
            "that holds the shards, for ones copied from another machine."
        )
    sets = sorted({match[2] for match in found})
    missing = sorted(set(range(int(sets[0]))) - {int(match[1]) for match in found})
    what, then = "", "Copy them from their source."
    if len(sets) > 1:
        what = ", ".join(f"{split}-*-of-{shards}" for shards in sets[:5])
        what, then = f"holds {len(sets)} data sets: {what}", "Put each into its own folder."
    elif missing:
        first = f"{split}-{missing[0]:05d}-of-{sets[0]}"
        what = f"{len(missing)} of {int(sets[0])} shards are missing, the first is {first}"
    elif len(found) > int(sets[0]):
        what = f"{found[-1][0]} is none of {int(sets[0])} shards"
        then = "Shards are counted from 0: rename them."
    if what:
        raise DamageError(Damage(str(folder), what), then)
    return [folder / match[0] for match in found]


def _rows(path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Go from header to header, all checked; yield first byte, length and checksum of records."""
    if not path.is_file():
        raise DamageError(Damage(str(path), "is not an ordinary file"), AGAIN)
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


def _require_once(found: Shards) -> None:
    """Refuse two records with the same bytes, as there are when a file was copied twice."""
    order = np.lexsort((found.table["check"], found.table["nbytes"]))
    ordered = found.table[["check", "nbytes"]][order]
    for place in np.flatnonzero(ordered[1:] == ordered[:-1]).tolist():
        one, other = sorted(order[place : place + 2].tolist())
        # equal checksums happen by chance too, among a million records
        if found.read(one) == found.read(other):
            where = found.paths[int(found.table[one]["file"])].name
            raise found.damaged(other, f"is a copy of record {one}, which is in {where}")


def _parse(number: int, contents: bytes, split: str) -> Record:
    """Read a record and check that its features fit each other; the JPEG is not yet decoded."""
    found = features(contents)
    encoded = _one(found, "image/encoded", bytes)
    label = _one(found, "image/class/label", int)
    size = _one(found, "image/width", int), _one(found, "image/height", int)
    synset, name = _text(found, "image/class/synset"), _text(found, "image/filename")
    if not 1 <= label <= CLASSES:
        raise ValueError(f"label {label} must be 1 to {CLASSES}")
    if not _SYNSET.fullmatch(synset):
        raise ValueError(f"the class must be called n and 8 digits, got {synset!r}")
    fits = name.startswith(f"{synset}_") if split == "train" else _VALIDATION.fullmatch(name)
    if not fits:
        raise ValueError(f"a picture called {name!r} among those of {synset} for {split}")
    _require_jpeg(encoded, size)
    return Record(number, label - 1, synset, name, encoded)


def _require_jpeg(encoded: bytes, size: tuple[int, int]) -> None:
    kind = f"begins with {encoded[:8]!r}"
    if encoded.startswith(b"\xff\xd8\xff"):
        try:
            with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
                found = image.size
        except DAMAGE as error:
            kind = str(error)
        else:
            if found != size:
                raise ValueError(f"its JPEG has {found} pixels, the record says {size}")
            if b"\xff\xd9" in encoded:
                return
            kind = "has no end"
    raise ValueError(f"image/encoded is no whole JPEG ({len(encoded)} bytes): {kind}")


def _one(found: dict[str, list], name: str, kind: type) -> Any:
    values = found.get(name)
    if values is None:
        raise MalformedError(f"it has no feature {name!r}")
    if len(values) != 1 or not isinstance(values[0], kind):
        raise MalformedError(f"its feature {name!r} is not one {kind.__name__}")
    return values[0]


def _text(found: dict[str, list], name: str) -> str:
    try:
        return _one(found, name, bytes).decode()
    except UnicodeDecodeError:
        raise MalformedError(f"its feature {name!r} is not UTF-8") from None


class ShardSource(Source):
    """The shards that `read` found, for an input pipeline; each record is checked when read."""

    def __init__(self, shards: Shards) -> None:
        require(len(shards) > 0, "shards", "hold at least one record", len(shards))
        self.shards, self.count = shards, len(shards)
        self.name = f"shards of {shards.split}"

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        found = [self.shards[number] for number in numbers.tolist()]
        if throttle is not None:
            for one in found:
                throttle.take(1, requests(len(one.encoded)), len(one.encoded))
        labels = self.labels_of([(one.label,) for one in found], numbers)
        return [one.encoded for one in found], labels

    def damaged(self, number: int, what: str) -> DamageError:
        return self.shards.damaged(number, what)

    def checksum(self) -> int:
        table = self.shards.table
        names = " ".join(path.name for path in self.shards.paths)
        return zlib.crc32(table.tobytes(), zlib.crc32(names.encode()))
