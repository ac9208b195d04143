"""ImageNet as TFRecord shards: `train-00000-of-01024`, `validation-00000-of-00128`.

This is what the usual conversion writes: each record a `tf.train.Example` with the JPEG as it
was (`image/encoded`), the class from 1 to 1000 (`image/class/label`; 0 stands for "background",
which no picture has), WordNet's name of it, height, width, file name and bounding boxes in shares
of the picture. Labels are given from 0 here, as `imagenet.read` gives them.

Source: TensorFlow models, research/inception/inception/data/build_imagenet_data.py (what the
fields mean, how many shards); Russakovsky et al., arXiv:1409.0575 (numbers of pictures).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.framing import FRAMINGS
from dlguide.data.formats.manifest import crc32c
from dlguide.data.formats.sample import Sample
from dlguide.data.layouts.example import encode_features
from dlguide.data.layouts.files import whole_folder
from dlguide.data.layouts.imagenet import ORIGIN, synset
from dlguide.data.layouts.imagenet_record import BOX_FIELDS, Box, Record, parse
from dlguide.data.layouts.record_index import RecordIndex, index_records
from dlguide.data.synthetic import Picture, Samples
from dlguide.errors import MissingComponentError, require, require_count, require_known

SPLITS = ("train", "validation")
PUBLISHED_SHARDS = {"train": 1024, "validation": 128}
PUBLISHED_PICTURES = {"train": 1_281_167, "validation": 50_000}
CLASSES = 1000
_TWO_CONVERSIONS = "These are shards of two conversions: take all of them from one."
_NAME = re.compile(r"-(\d{5})-of-(\d{5})")


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
    with whole_folder(folder) as partial:
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
        pictures: records that there must be; None where nobody knows.
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
    found: dict[int, set[int]] = {}
    for name in sorted(os.listdir(folder)) if folder.is_dir() else []:
        match = _NAME.fullmatch(name.removeprefix(split)) if name.startswith(split) else None
        if match:
            found.setdefault(int(match[2]), set()).add(int(match[1]))
    if not found:
        first = f"{split}-00000-of-{PUBLISHED_SHARDS[split]:05d}"
        raise MissingComponentError(
            f"There are no shards of ImageNet like {first} in {folder}. {ORIGIN} Give the folder "
            "that holds the shards, for ones copied from another machine, or write synthetic ones "
            "with `imagenet_shards.write`, which needs no network."
        )
    if len(found) > 1:
        what = f"holds shards of {split} out of {' and out of '.join(map(str, sorted(found)))}"
        then = "Leave those of one conversion there, and move the others away."
        raise DamageError(Damage(str(folder), what), then)
    ((count, there),) = found.items()
    missing = sorted(set(range(count)) - there)
    if missing or len(there) != count:
        strange = f"{split}-{(missing or [max(there)])[0]:05d}-of-{count:05d}"
        what = f"{len(missing)} of {count} shards are missing, the first is {strange}"
        what = what if missing else f"there is a {strange}, out of {count}"
        raise DamageError(Damage(str(folder), what), "Copy the shards again from their source.")
    return [folder / f"{split}-{number:05d}-of-{count:05d}" for number in range(count)]


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
