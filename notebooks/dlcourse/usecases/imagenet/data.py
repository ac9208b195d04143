"""The pictures: made up, or ImageNet as class folders or TFRecord shards."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse import synthetic
from dlcourse.readers import imagenet, imagenet_shards
from dlcourse.usecases.imagenet.recipe import DEVIATION, MEAN, TrainingRecipe
from dlguide.data import input_pipeline
from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import DataError, MissingComponentError

FOLDERS, SHARDS = "class folders", "TFRecord shards"
_LOOKED = (
    "class folders (train/n01440764/*.JPEG and val alike) or TFRecord shards "
    "(train-00000-of-01024, validation-00000-of-00128)"
)
_PART = "Finish the download, or use `subset=True` if this is meant to be a part of ImageNet."


@dataclass(frozen=True, eq=False)
class Found:
    """ImageNet, or a part of it; `classes` is the number of values a label can have."""

    form: str
    train: Sequence[Any]
    test: Sequence[Any]
    classes: int


def find(real: str | os.PathLike, subset: bool = False) -> Found:
    """Find ImageNet in a folder, as class folders or shards, and check that it is complete.

    Reads names of files, and the head of each record of shards; no picture. With `subset` a part
    of ImageNet is accepted, with the classes that are there.
    """
    folder = Path(real)
    if any((folder / split).is_dir() for split in imagenet.SPLITS):
        train, test = (imagenet.read(folder, split) for split in imagenet.SPLITS)
        form, classes = FOLDERS, len(train.synsets)
    elif next(folder.glob("*-?????-of-?????"), None):
        train, test = (imagenet_shards.read(folder, split) for split in imagenet_shards.SPLITS)
        form, classes = SHARDS, imagenet_shards.CLASSES
    else:
        raise MissingComponentError(
            f"There is no ImageNet in {folder}: looked for {_LOOKED}. {imagenet.ORIGIN}"
        )
    found = {"classes": classes, "pictures to train": len(train), "pictures to test": len(test)}
    wanted = imagenet_shards.CLASSES, *imagenet_shards.PUBLISHED_PICTURES.values()
    for (what, count), whole in zip(found.items(), wanted, strict=True):
        if count != whole and not subset:
            raise DataError(f"{folder}: looked for {whole} {what}, found {count}. {_PART}")
    return Found(form, train, test, classes)


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
        options |= {"name": f"ImageNet ({data.form})", "readers": 4}
        train, test = Pipeline(data.train, batch, **options), Pipeline(data.test, few, **options)
    return train, test.without_augmentation()
