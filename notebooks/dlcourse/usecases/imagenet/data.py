"""The pictures: made up, or ImageNet as class folders or TFRecord shards.

Folders are `train/n01440764/n01440764_10026.JPEG` and `val` alike; classes are numbered in the
order of their names. Real files are not all what they are called: some are grey, some CMYK, one is
a PNG. All are read as RGB. Shards are `train-00000-of-01024` and `validation-00000-of-00128`, each
record a `tf.train.Example` with a JPEG and its class, from 1 to 1000.

Source: Russakovsky et al., arXiv:1409.0575 (numbers of pictures); TensorFlow models,
research/inception/inception/data/build_imagenet_data.py (fields and names of shards).
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse import synthetic
from dlcourse.readers import NO_CHECKSUM, ImageFiles, Layout, decode_image, require_existing
from dlcourse.usecases.imagenet.recipe import DEVIATION, MEAN, TrainingRecipe
from dlguide.data import input_pipeline
from dlguide.data.datasets import Dataset
from dlguide.data.formats.dataset import Damage, DamageError, crc32c
from dlguide.data.formats.records import AGAIN, FRAMINGS, declared_nbytes
from dlguide.data.formats.sample import MalformedError, features
from dlguide.data.input_pipeline import Pipeline, Source
from dlguide.data.input_pipeline.sources import requests
from dlguide.errors import DataError, MissingComponentError

SPLITS = ("train", "val")
SHARDS = {split: f"{split}-{'[0-9]' * 5}-of-{'[0-9]' * 5}" for split in ("train", "validation")}
PUBLISHED = {"classes": 1000, "pictures to train": 1_281_167, "pictures to test": 50_000}
ORIGIN = (
    "image-net.org gives it out after registration: ILSVRC2012_img_train.tar, "
    "ILSVRC2012_img_val.tar; dlcourse.synthetic makes pictures without a network."
)
_FRAMING = FRAMINGS["tfrecord"]
_BEFORE, _AFTER = _FRAMING.before_nbytes, _FRAMING.after_nbytes
_ROW = np.dtype([("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("check", "<u4")])


@dataclass(frozen=True, eq=False)
class Found:
    """ImageNet, or a part of it; `classes` is the number of values a label can have."""

    train: ImageFiles
    test: ImageFiles
    classes: int


def find(real: str | os.PathLike, subset: bool = False) -> Found:
    """Find ImageNet's class folders, and check that they are complete; reads no picture.

    With `subset` a part of ImageNet is accepted, with the classes that are there.
    """
    train, test = (read(real, split) for split in SPLITS)
    found = Found(train, test, train.files[-1][1] + 1)
    counts = (found.classes, len(train), len(test))
    for (what, whole), count in zip(PUBLISHED.items(), counts, strict=True):
        if count != whole and not subset:
            raise DataError(
                f"{real}: looked for {whole} {what}, found {count}. Finish the download, or use "
                "`subset=True` if this is meant to be a part of ImageNet."
            )
    return found


def read(folder: str | os.PathLike, split: str = "train") -> ImageFiles:
    """List the pictures of a split, "train" or "val", class by class.

    Raises:
        MissingComponentError: when the split's folder is not there.
        DataError: for a folder that is no class, a file of another kind, an empty class of `train`,
            or a class of `val` that `train` does not have; names it.
    """
    base = require_existing(Path(folder) / split, f"folder {split!r} of ImageNet", ORIGIN)
    # validation alone would number the classes otherwise when it lacks one
    numbered = Path(folder) / "train" if (Path(folder) / "train").is_dir() else base
    names, files = sorted(os.listdir(numbered)), []
    for name in sorted({*names, *os.listdir(base)}):
        if not re.fullmatch(r"n\d{8}", name):
            raise DataError(f"{base / name}: no folder of a class, which is called n and 8 digits.")
        if name not in names:
            raise DataError(f"{base / name}: a class that {numbered} does not have.")
        found = sorted((base / name).glob("*"))
        for path in found:
            if path.suffix.lower() not in (".jpeg", ".jpg"):
                raise DataError(f"{path}: no .JPEG file, in a folder of pictures.")
        if not found and split == "train":
            raise DataError(f"{base / name}: the class has no pictures.")
        label = names.index(name)
        files += [(path, label) for path in found]
    return ImageFiles(files)


class Shards(Source):
    """The pictures of a split in TFRecord shards; an index decodes one.

    Each record is checked when it is read. `table` has its file, first byte, length and checksum.
    """

    def __init__(self, split: str, paths: list[Path], table: np.ndarray) -> None:
        self.name, self.count = f"ImageNet ({split})", len(table)
        self.paths, self.table = paths, table
        self._synsets: dict[int, str] = {}
        self._labels: dict[str, int] = {}

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> np.ndarray:
        encoded, _ = self._record(number)
        path = self.paths[self.table[number]["file"]]
        return decode_image(encoded, "RGB", f"{path}: record {number}")

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        records = [self._record(number) for number in numbers.tolist()]
        if throttle is not None:
            for encoded, _ in records:
                throttle.take(1, requests(len(encoded)), len(encoded))
        return [encoded for encoded, _ in records], np.array([one for _, one in records], np.int32)

    def damaged(self, number: int, what: str) -> DamageError:
        file, offset, *_ = self.table[number].tolist()
        return DamageError(Damage(str(self.paths[file]), what, number, offset - _BEFORE), AGAIN)

    def checksum(self) -> int:
        names = " ".join(path.name for path in self.paths)
        return zlib.crc32(self.table.tobytes(), zlib.crc32(names.encode()))

    def _record(self, number: int) -> tuple[bytes, int]:
        """Read a record; return the JPEG and the label from 0."""
        file, offset, nbytes, check = self.table[number].tolist()
        try:
            with self.paths[file].open("rb", 0) as opened:
                contents = os.pread(opened.fileno(), nbytes, offset)
        except OSError as error:
            raise self.damaged(number, f"cannot be read: {error.strerror}") from error
        after = _FRAMING.frame(nbytes, crc32c(contents))[1]
        if len(contents) != nbytes or after != check.to_bytes(_AFTER, "little"):
            raise self.damaged(number, "its bytes do not fit their checksum")
        try:
            found = features(contents)
        except MalformedError as error:
            raise self.damaged(number, str(error)) from error
        values = []
        for name, kind in (("encoded", bytes), ("class/label", int), ("class/synset", bytes)):
            value = found.get(f"image/{name}", [])
            if len(value) != 1 or not isinstance(value[0], kind):
                raise self.damaged(number, f"its feature image/{name} is not one {kind.__name__}")
            values.append(value[0])
        encoded, label, synset = values[0], values[1], values[2].decode(errors="replace")
        if not 1 <= label <= PUBLISHED["classes"]:
            raise self.damaged(number, f"label {label} must be 1 to {PUBLISHED['classes']}")
        # Several threads are here at once. Looking first, a wrong record leaves nothing behind.
        known = self._synsets.get(label, synset), self._labels.get(synset, label)
        if known == (synset, label):
            known = self._synsets.setdefault(label, synset), self._labels.setdefault(synset, label)
        if known != (synset, label):
            elsewhere = f"it is {known[0]}" if known[0] != synset else f"{synset} is {known[1]}"
            raise self.damaged(number, f"label {label} is {synset} here; elsewhere {elsewhere}")
        return encoded, label - 1


def read_shards(folder: str | os.PathLike, split: str = "train") -> Shards:
    """Find the shards of a split, "train" or "validation", and where each record is in them.

    Reads what is around the records (16 bytes each), not the pictures.

    Raises:
        MissingComponentError: when there are no shards of this split.
        DataError: when a shard is missing, damaged or cut within a record; names file and place.
    """
    paths = sorted(Path(folder).glob(SHARDS[split]))
    if not paths:
        raise MissingComponentError(f"There are no shards {split}-*-of-* in {folder}. {ORIGIN}")
    count = int(paths[0].name[-5:])
    wanted = {f"{split}-{number:05d}-of-{count:05d}" for number in range(count)}
    wrong = min(wanted ^ {path.name for path in paths}, default=None)
    if wrong:
        what = f"is {'missing among' if wrong in wanted else 'none of'} {count} shards"
        raise DamageError(Damage(str(Path(folder) / wrong), what), AGAIN)
    rows: list[tuple[int, ...]] = []
    for file, path in enumerate(paths):
        rows += [(file, *row) for row in _rows(path, len(rows))]
    return Shards(split, paths, np.array(rows, _ROW))


def _rows(path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Go from header to header, all checked; yield first byte, length and checksum of records."""
    try:
        with path.open("rb", 0) as file:
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
        raise DamageError(Damage(str(path), f"cannot be read: {error.strerror}"), AGAIN) from error


# For `dlguide data verify`.
IMAGENET = Layout(
    SPLITS, lambda folder: [{"split": split} for split in SPLITS if (folder / split).exists()],
    read, (NO_CHECKSUM,),
)  # fmt: skip
IMAGENET_SHARDS = Layout(
    tuple(SHARDS.values()),
    lambda folder: [{"split": split} for split in SHARDS if next(folder.glob(SHARDS[split]), None)],
    read_shards, ("whether a shard lost records at its end: one cut there is a shorter one",),
)  # fmt: skip


def recipe_for(recipe: TrainingRecipe, found: Found) -> TrainingRecipe:
    """Return the recipe with the counts of the data."""
    counts = {"samples": len(found.train), "test_samples": len(found.test)}
    return replace(recipe, classes=found.classes, stored=0, tested=None, **counts)


def augmentation(recipe: TrainingRecipe) -> tuple[input_pipeline.Operation, ...]:
    """Return the operations of part 1 on a picture, as in the guide.

    A part of random area (0.08 to 1) and aspect, resized; mirrored every other time; mean and
    scale. The guide's Caffe resizes with a cubic curve, this pipeline linearly.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.6, `transform_param`.
    """
    ratio = (recipe.ratio, 1 / recipe.ratio)
    return (
        input_pipeline.ResizedCrop(recipe.image, recipe.image, (recipe.area, 1.0), ratio),
        input_pipeline.Flip(),
        input_pipeline.Normalise(MEAN, DEVIATION),
    )


def pictures(recipe: TrainingRecipe, seed: int) -> Dataset:
    """Draw made-up pictures to train with, and others of the same classes to test with."""
    parts = []
    for number, count in enumerate((recipe.samples, recipe.test_samples)):
        made = list(synthetic.images(recipe.classes, recipe.stored, count, 2 * seed + number))
        parts += [np.stack([one.pixels for one in made])]
        parts += [np.array([one.label for one in made], np.int32)]
    name = f"{recipe.classes} kinds of made-up pictures, seed {seed}"
    return Dataset(name, *parts)


def pipelines(
    recipe: TrainingRecipe, data: Dataset | Found, threads: int = 1
) -> tuple[Pipeline, Pipeline]:
    """Build the pipelines of training and test; the test's has nothing random."""
    options: dict[str, Any] = {"augment": augmentation(recipe), "threads": threads, "channels": 3}
    batch, few = recipe.batch_per_worker, min(recipe.batch_per_worker, recipe.test_samples)
    if isinstance(data, Dataset):
        train, test = Pipeline(data, batch, **options), Pipeline(data, few, part="test", **options)
    else:
        options |= {"name": "ImageNet", "readers": 4}
        train, test = Pipeline(data.train, batch, **options), Pipeline(data.test, few, **options)
    return train, test.without_augmentation()
