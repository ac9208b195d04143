"""ImageNet as TFRecord shards: `train-00000-of-01024`, `validation-00000-of-00128`.

This is what the usual conversion writes: each record a `tf.train.Example` with the JPEG as it
was (`image/encoded`), the class from 1 to 1000 (`image/class/label`; 0 is "background",
which no picture has), WordNet's name of it, height, width, file name and bounding boxes in shares
of the picture. Labels are given from 0 here, as `imagenet.read` gives them.

Source: TensorFlow models, research/inception/inception/data/build_imagenet_data.py (what the
fields mean, how many shards); Russakovsky et al., arXiv:1409.0575 (numbers of pictures).
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from dlguide.data.formats.dataset import Damage, DamageError, crc32c
from dlguide.data.formats.records import FRAMINGS, declared_nbytes, require_one_set
from dlguide.data.formats.sample import MalformedError, Sample, encode_features, features
from dlguide.data.readers.image_files import DAMAGE, decode_image
from dlguide.data.readers.imagenet import ORIGIN, synset
from dlguide.data.synthetic import Picture, Samples
from dlguide.errors import MissingComponentError, require, require_count, require_known
from dlguide.files import new_folder

__all__ = [
    "Box",
    "Record",
    "RecordIndex",
    "Shards",
    "parts",
    "read",
    "unchecked",
    "write",
]

SPLITS = ("train", "validation")
PUBLISHED_SHARDS = {"train": 1024, "validation": 128}
PUBLISHED_PICTURES = {"train": 1_281_167, "validation": 50_000}
CLASSES = 1000
_TWO_CONVERSIONS = "These are shards of two conversions: take all of them from one."


@dataclass(frozen=True, eq=False)
class Shards(Sequence):
    """The pictures of a split; each record is read and checked when it is asked for."""

    split: str
    classes: int
    index: RecordIndex
    synsets: dict[int, str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, place: int | slice) -> Record | Samples:
        if isinstance(place, slice):
            return Samples(range(len(self))[place], self.__getitem__)
        number = range(len(self))[place]
        contents = self.index.read(number)
        try:
            found = parse(number, contents, self.split, self.classes)
        except ValueError as error:
            then = "Repeat the conversion of this picture, or give `classes` if there are more."
            raise self.index.damaged(number, str(error), then) from error
        known = self.synsets.get(found.label)
        if known is None:
            known = self.synsets[found.label] = found.synset
            others = [label for label, name in self.synsets.items() if name == known]
            if len(others) > 1:
                del self.synsets[found.label]
                what = f"{known} has label {found.label + 1} here and {others[0] + 1} elsewhere"
                raise self.index.damaged(number, what, _TWO_CONVERSIONS)
        if known != found.synset:
            what = f"label {found.label + 1} is {found.synset} here and {known} elsewhere"
            raise self.index.damaged(number, what, _TWO_CONVERSIONS)
        return found

    def samples(self) -> Iterator[Sample]:
        """Give the JPEGs as they are, with labels from 0."""
        for found in self:
            yield Sample(found.encoded, (found.label,), f"{self.split}/{found.name}")


def write(
    folder: str | os.PathLike,
    train: Sequence[Picture],
    validation: Sequence[Picture],
    shards: tuple[int, int] = (4, 2),
    boxes: Callable[[Picture], Sequence[Box]] | None = None,
) -> Path:
    """Write pictures as TFRecord shards, in their order.

    Shard i of s has the pictures from floor(i n / s) to floor((i + 1) n / s), so that any two
    differ by at most one. The real conversion shuffles the pictures first, with a fixed seed.

    Args:
        folder: the new folder.
        train: pictures to train with.
        validation: pictures to test with.
        shards: files for each of the two (count).
        boxes: gives the bounding boxes of a training picture; None for none.

    Returns:
        pathlib.Path: the folder.

    Raises:
        ValueError: when the folder exists, a picture is no JPEG or there are more shards than
            pictures.
    """
    with new_folder(folder) as partial:
        for split, pictures, count in zip(SPLITS, (train, validation), shards, strict=True):
            require_count(count, "shards")
            fits = f"be at most the {len(pictures)} pictures of {split}"
            require(count <= len(pictures), "shards", fits, count)
            for number in range(count):
                first, last = (place * len(pictures) // count for place in (number, number + 1))
                with (partial / f"{split}-{number:05d}-of-{count:05d}").open("wb") as file:
                    for picture in pictures[first:last]:
                        drawn = boxes(picture) if boxes and split == "train" else ()
                        record = _encoded(picture, split, drawn)
                        before, after = FRAMINGS["tfrecord"].frame(len(record), crc32c(record))
                        file.write(before + record + after)
    return Path(folder)


# What `verification.verify` needs: files at the top of the folder, the parts, what is not checked.
MARKS = tuple(f"{split}-?????-of-?????" for split in SPLITS)


def parts(folder: Path) -> list[dict[str, str]]:
    """Name the arguments of `read` for each split that is there.

    Returns:
        list: arguments by name, for each split.
    """
    marks = zip(SPLITS, MARKS, strict=True)
    return [{"split": split} for split, mark in marks if next(folder.glob(mark), None)]


def unchecked(folder: Path) -> tuple[str, ...]:
    """Say what these files give no means to check.

    Returns:
        tuple: one sentence for each.
    """
    return (
        "whether a record decodes to a picture: it is checked against its checksum only",
        "whether a shard lost one record, or the last shard some, at its end",
    )


def read(
    folder: str | os.PathLike,
    split: str = "train",
    classes: int = CLASSES,
    pictures: int | None = None,
    even: bool = True,
) -> Shards:
    """Find the shards of a split and where each record stands in them.

    Reads the header of every record (16 bytes), not the pictures. A TFRecord file that was cut
    between two records looks like a shorter file; the conversion shares the pictures evenly, so
    that a shard with fewer than the others tells. One record less in one shard is only seen
    with `pictures`, as in `read(folder, pictures=PUBLISHED_PICTURES["train"])`.

    Args:
        folder: the folder of the shards.
        split: "train" or "validation".
        classes: labels go from 1 to this number (count).
        pictures: records that there must be; None where it is not known.
        even: whether to refuse shards of uneven length; the last may be shorter.

    Returns:
        Shards: a sequence of `Record`, each checked when asked for.

    Raises:
        ValueError: when an argument is out of range.
        MissingComponentError: when there are no shards of this split.
        DataError: when a shard is missing, empty, damaged or cut, or a record stands there
            twice; names the file.
    """
    require_known(split, SPLITS, "split")
    require_count(classes, "classes")
    index = index_records(_shard_paths(Path(folder), split))
    counts = index.counts()
    most = max(counts)
    for path, count in zip(index.paths[:-1], counts[:-1], strict=True):
        if even and count < most - 1:
            what = f"holds {count} records where others hold {most}: it may have been cut"
            then = "Get it again, or use `even=False` if the pictures were shared unevenly."
            raise DamageError(Damage(str(path), what), then)
    if pictures is not None and len(index) != require_count(pictures, "pictures"):
        what = f"the {len(counts)} shards of {split} hold {len(index)} records, not {pictures}"
        raise DamageError(Damage(str(folder), what), "Get the shards again from their source.")
    twice = index.repeated()
    if twice:
        one, other = twice
        what = f"is a copy of record {one}, which stands in {index.path_of(one).name}"
        raise index.damaged(other, what)
    return Shards(split, classes, index)


def _shard_paths(folder: Path, split: str) -> list[Path]:
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    names = [name for name in names if re.fullmatch(split + r"-\d{5}-of-\d{5}", name)]
    if not names:
        first = f"{split}-00000-of-{PUBLISHED_SHARDS[split]:05d}"
        raise MissingComponentError(
            f"There are no shards of ImageNet like {first} in {folder}. {ORIGIN} Give the folder "
            "that holds the shards, for ones copied from another machine."
        )
    require_one_set(folder, names, f"{split}*")
    return [folder / name for name in names]


def _encoded(picture: Picture, split: str, boxes: Sequence[Box]) -> bytes:
    require(picture.kind == "jpeg", "kind", "be 'jpeg' as in ImageNet", picture.kind)
    rows, columns, channels = picture.pixels.shape
    name = synset(picture.label)
    file = f"{name}_{picture.index}" if split == "train" else _validation(picture.index)
    corners = np.array(boxes, float).reshape(-1, 4).T.tolist()
    return encode_features(
        {
            "image/height": [rows],
            "image/width": [columns],
            "image/colorspace": [b"RGB"],
            "image/channels": [channels],
            "image/class/label": [picture.label + 1],
            "image/class/synset": [name.encode()],
            "image/class/text": [f"made-up class {picture.label}".encode()],
            **{f"image/object/bbox/{side}": corners[k] for k, side in enumerate(BOX_FIELDS)},
            "image/object/bbox/label": [picture.label + 1] * len(boxes),
            "image/format": [b"JPEG"],
            "image/filename": [f"{file}.JPEG".encode()],
            "image/encoded": [picture.encoded()],
        }
    )


def _validation(index: int) -> str:
    return f"ILSVRC2012_val_{index + 1:08d}"


_FRAMING = FRAMINGS["tfrecord"]
_BEFORE, _AFTER = _FRAMING.before_nbytes, _FRAMING.after_nbytes
_ROW = np.dtype([("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("check", "<u4")])
_THEN = "Get the file again from its source, or repeat the conversion."


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """The records of several files, numbered through all of them."""

    paths: tuple[Path, ...]
    table: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.table)

    def counts(self) -> list[int]:
        """Count the records of each file."""
        return np.bincount(self.table["file"], minlength=len(self.paths)).tolist()

    def read(self, number: int) -> bytes:
        """Read a record and hold it against its checksum."""
        _, offset, nbytes, check = self.table[number].tolist()
        try:
            with self.path_of(number).open("rb") as file:
                contents = os.pread(file.fileno(), nbytes, offset)
        except OSError as error:
            raise self.damaged(number, f"cannot be read: {error.strerror}") from error
        after = _FRAMING.frame(nbytes, crc32c(contents))[1]
        if len(contents) != nbytes or after != check.to_bytes(_AFTER, "little"):
            raise self.damaged(number, "its bytes do not fit their checksum")
        return contents

    def damaged(self, number: int, what: str, then: str = _THEN) -> DamageError:
        """Make the error for a record that is wrong."""
        offset = int(self.table[number]["offset"])
        return DamageError(Damage(str(self.path_of(number)), what, number, offset), then)

    def repeated(self) -> tuple[int, int] | None:
        """Find two records with the same bytes, as there are when a file was copied twice."""
        order = np.lexsort((self.table["check"], self.table["nbytes"]))
        ordered = self.table[order]
        alike = (ordered["check"][1:] == ordered["check"][:-1]) & (
            ordered["nbytes"][1:] == ordered["nbytes"][:-1]
        )
        for place in np.flatnonzero(alike).tolist():
            # equal checksums happen by chance too, among a million records
            one, other = sorted(order[place : place + 2].tolist())
            if self.read(one) == self.read(other):
                return one, other
        return None

    def path_of(self, number: int) -> Path:
        """Name the file of a record."""
        return self.paths[int(self.table[number]["file"])]


def index_records(paths: list[Path]) -> RecordIndex:
    """Go from header to header through TFRecord files, without reading the records.

    Every length is compared with its checksum and with what is left of the file.
    """
    tables, first = [], 0
    for number, path in enumerate(paths):
        if not path.is_file():
            raise DamageError(Damage(str(path), "is not an ordinary file"), _THEN)
        try:
            with path.open("rb") as file:
                rows = list(_walk(file.fileno(), path, first))
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            raise DamageError(Damage(str(path), what), _THEN) from error
        if not rows:
            raise DamageError(Damage(str(path), "holds no record"), _THEN)
        tables.append(np.array([(number, *row) for row in rows], _ROW))
        first += len(rows)
    return RecordIndex(tuple(paths), np.concatenate(tables))


def _walk(descriptor: int, path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Yield first byte, length and checksum of each record; `number` is that of the first."""
    size, at = os.fstat(descriptor).st_size, 0
    head = os.pread(descriptor, _BEFORE, 0)
    while at < size:
        nbytes = declared_nbytes(_FRAMING, head, size - at, path, number, at, _THEN)
        # the record's checksum and the next header, in one request
        following = os.pread(descriptor, _AFTER + _BEFORE, at + _BEFORE + nbytes)
        check = int.from_bytes(following[:_AFTER], "little")
        yield at + _BEFORE, nbytes, check
        number += 1
        at += _BEFORE + nbytes + _AFTER
        head = following[_AFTER:]


BOX_FIELDS = ("xmin", "ymin", "xmax", "ymax")
_SYNSET = re.compile(r"n\d{8}")
_VALIDATION = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
_JPEG_BEGIN, _JPEG_END = b"\xff\xd8\xff", b"\xff\xd9"


class Box(NamedTuple):
    """A bounding box in shares of the picture, 0 to 1: left, top, right, bottom."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True, eq=False)
class Record:
    """A labelled picture, still encoded."""

    index: int
    label: int
    synset: str
    text: str
    name: str
    rows: int
    columns: int
    boxes: tuple[Box, ...]
    encoded: bytes = field(repr=False)

    @property
    def pixels(self) -> np.ndarray:
        """The picture decoded: uint8 of shape (rows, columns, 3)."""
        return decode_image(self.encoded, "RGB", f"record {self.index}, {self.name}")[0]


def parse(number: int, contents: bytes, split: str, classes: int) -> Record:
    """Read a record and check that its features fit each other.

    Of the JPEG begin, end and size are checked; it is decoded when its pixels are asked for.
    """
    found = features(contents, 0, len(contents))
    encoded = _one(found, "image/encoded", bytes)
    label = _one(found, "image/class/label", int)
    rows, columns = _one(found, "image/height", int), _one(found, "image/width", int)
    synset, name = _text(found, "image/class/synset"), _text(found, "image/filename")
    if not 1 <= label <= classes:
        raise ValueError(f"label {label} must be 1 to {classes}")
    if not _SYNSET.fullmatch(synset):
        raise ValueError(f"the class must be called n and 8 digits, got {synset!r}")
    fits = name.startswith(f"{synset}_") if split == "train" else _VALIDATION.fullmatch(name)
    if not fits:
        raise ValueError(f"a picture called {name!r} among those of {synset} for {split}")
    _require_jpeg(encoded, rows, columns)
    text = _text(found, "image/class/text") if found.get("image/class/text") else ""
    boxes = _boxes(found, label)
    return Record(number, label - 1, synset, text, name, rows, columns, boxes, encoded)


def _require_jpeg(encoded: bytes, rows: int, columns: int) -> None:
    kind = f"begins with {encoded[:8]!r}"
    if encoded.startswith(_JPEG_BEGIN):
        try:
            with Image.open(io.BytesIO(encoded), formats=("JPEG",)) as image:
                size = image.size
        except DAMAGE as error:
            kind = str(error)
        else:
            if size != (columns, rows):
                raise ValueError(f"its JPEG has {size} pixels, the record says {(columns, rows)}")
            if _JPEG_END in encoded:
                return
            kind = "has no end"
    raise ValueError(f"image/encoded is no whole JPEG ({len(encoded)} bytes): {kind}")


def _boxes(found: dict[str, list], label: int) -> tuple[Box, ...]:
    sides = [found.get(f"image/object/bbox/{side}", []) for side in BOX_FIELDS]
    labels = found.get("image/object/bbox/label", [])
    if len({len(side) for side in sides}) > 1:
        raise ValueError(f"its boxes have {[len(side) for side in sides]} sides")
    if labels and labels != [label] * len(sides[0]):
        raise ValueError(f"its {len(sides[0])} boxes have the labels {labels}, it has {label}")
    boxes = tuple(Box(*box) for box in zip(*sides, strict=True))
    for box in boxes:
        if not (0 <= box.left <= box.right <= 1 and 0 <= box.top <= box.bottom <= 1):
            raise ValueError(f"its {box} is not within the picture, 0 to 1")
    return boxes


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
