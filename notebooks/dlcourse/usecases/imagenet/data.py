"""The pictures of the road: made up, or ImageNet in either of the forms it is handed around in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse.usecases.imagenet.road import DEVIATION, MEAN, Road
from dlguide.data import input_pipeline, synthetic
from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline import Pipeline
from dlguide.data.readers import imagenet, imagenet_shards
from dlguide.errors import DataError, MissingComponentError

FOLDERS, SHARDS = "class folders", "TFRecord shards"
_LOOKED = (
    "class folders (train/n01440764/*.JPEG and val alike) or TFRecord shards "
    "(train-00000-of-01024, validation-00000-of-00128)"
)
_PART = "Finish the download, or say `subset=True` if this is meant to be a part of ImageNet."


@dataclass(frozen=True, eq=False)
class Found:
    """ImageNet, or a part of it, where it was looked for.

    Args:
        folder: where.
        form: "class folders" or "TFRecord shards".
        train: its pictures to train with.
        test: those to test with.
        classes: numbers that a label can have (count).
    """

    folder: Path
    form: str
    train: Sequence[Any]
    test: Sequence[Any]
    classes: int


def find(real: str | os.PathLike, subset: bool = False) -> Found:
    """Find ImageNet in a folder, and see whether all of it is there.

    Reads names of files, and of shards the head of each record; no picture.

    Args:
        real: the folder: class folders or TFRecord shards, whichever it holds.
        subset: take a part of ImageNet, too, with the classes that are there.

    Returns:
        Found: both splits.

    Raises:
        MissingComponentError: when there is no such folder, a split is not there, or it is
            another data set; says what was looked for and where.
        DataError: when something in it is damaged or of another kind, or, unless `subset`, not
            all is there: says what was looked for, what was found and where.
    """
    folder = Path(real)
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "is not there"
        raise MissingComponentError(
            f"`real` {what}: {folder}. Looked for a folder with {_LOOKED}. {imagenet.ORIGIN}"
        )
    names = sorted(os.listdir(folder))
    if any((folder / split).is_dir() for split in imagenet.SPLITS):
        found = _folders(folder, subset)
    elif any(name.startswith(("train-", "validation-")) for name in names):
        found = _shards(folder, subset)
    else:
        archives = [name for name in names if name.endswith((".tar", ".tar.gz", ".zip"))]
        then = f"Unpack {archives[0]} first." if archives else imagenet.ORIGIN
        there = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise MissingComponentError(
            f"There is no ImageNet in {folder}: looked for {_LOOKED}, found "
            f"{there or 'an empty folder'}. {then}"
        )
    return found


def _folders(folder: Path, subset: bool) -> Found:
    train, test = (imagenet.read(folder, split) for split in imagenet.SPLITS)
    classes = len(train.synsets)
    if not subset:
        wanted = imagenet_shards.CLASSES
        if classes != wanted:
            raise DataError(
                f"{folder / 'train'}: looked for {wanted} classes, found {classes} "
                f"({train.synsets[0]} to {train.synsets[-1]}). {_PART}"
            )
        _require_all(folder / "train", "train", len(train))
        _require_all(folder / "val", "validation", len(test))
    return Found(folder, FOLDERS, train, test, classes)


def _shards(folder: Path, subset: bool) -> Found:
    train, test = (
        imagenet_shards.read(folder, split, even=not subset) for split in imagenet_shards.SPLITS
    )
    if not subset:
        for split, shards in (("train", train), ("validation", test)):
            _require_all(folder, split, len(shards))
    return Found(folder, SHARDS, train, test, imagenet_shards.CLASSES)


def _require_all(where: Path, split: str, count: int) -> None:
    wanted = imagenet_shards.PUBLISHED_PICTURES[split]
    if count != wanted:
        raise DataError(
            f"{where}: looked for {wanted} pictures of {split}, found {count} "
            f"({100 * count / wanted:.1f} %). {_PART}"
        )


def road_of(road: Road, found: Found) -> Road:
    """Give the road with the counts of what was found."""
    return replace(
        road, classes=found.classes, samples=len(found.train), test_samples=len(found.test),
        stored=0, tested=None,
    )  # fmt: skip


def augmentation(road: Road) -> tuple[input_pipeline.Operation, ...]:
    """List what is done to a picture in part 1, as the guide lists it.

    A part of random area (0.08 to 1) and aspect, resized; mirrored every other time; mean and
    scale. The guide's Caffe resizes with a cubic curve, this pipeline in straight lines.

    Args:
        road: has sizes and limits.

    Returns:
        tuple: operations for `input_pipeline.build`; `without_augmentation()` makes them those of
            the last part and of the test.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.6, `transform_param`.
    """
    ratio = (road.ratio, 1 / road.ratio)
    return (
        input_pipeline.ResizedCrop(road.image, road.image, (road.area, 1.0), ratio),
        input_pipeline.Flip(),
        input_pipeline.Normalise(MEAN, DEVIATION),
    )


def pictures(road: Road, seed: int) -> Dataset:
    """Draw the made-up pictures of a seed; others of the same classes to test with.

    Args:
        road: has their sizes and counts.
        seed: of the pictures.

    Returns:
        Dataset: uint8, `road.stored` pixels high and wide.
    """
    parts = []
    for number, count in enumerate((road.samples, road.test_samples)):
        made = synthetic.images(road.classes, road.stored, count, 2 * seed + number)
        parts += [np.stack([one.pixels for one in made])]
        parts += [np.array([one.label for one in made], np.int32)]
    name = f"{road.classes} kinds of made-up pictures, seed {seed}"
    return Dataset(name, *parts)


def pipelines(road: Road, data: Dataset | Found, threads: int = 1) -> tuple[Pipeline, Pipeline]:
    """Build what feeds training and test.

    Args:
        road: says what is done to a picture.
        data: `pictures`, or what `find` found.
        threads: that decode and augment (count).

    Returns:
        tuple: pipelines of both; the test's has nothing random.
    """
    ways: dict[str, Any] = {"augment": augmentation(road), "threads": threads, "channels": 3}
    if isinstance(data, Dataset):
        train, test = (
            input_pipeline.build(data, road.batch, part=part, **ways) for part in ("train", "test")
        )
    else:
        sources = (data.train, data.test)
        if data.form == SHARDS:
            sources = tuple(input_pipeline.ShardSource(one) for one in sources)
        batches = (road.batch, min(road.batch, len(data.test)))
        name = f"ImageNet ({data.form})"
        train, test = (
            input_pipeline.build(one, batch, name=name, readers=4, **ways)
            for one, batch in zip(sources, batches, strict=True)
        )
    return train, test.without_augmentation()
