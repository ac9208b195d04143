"""Building a pipeline from what a user has: arrays, a folder, a list of files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from dlguide.data.datasets import Dataset
from dlguide.data.input_pipeline.augment import Operation
from dlguide.data.input_pipeline.order import Runs
from dlguide.data.input_pipeline.pipeline import CACHES, Pipeline
from dlguide.data.input_pipeline.reading import Cache
from dlguide.data.input_pipeline.sources import ArraySource, FileSource, Source
from dlguide.data.input_pipeline.stored import FormatSource
from dlguide.errors import require, require_known


def build(
    source: Any,
    batch: int = 100,
    rank: int = 0,
    ranks: int = 1,
    seed: int = 0,
    shuffle: bool = True,
    channels: int = 3,
    raw: tuple[int, int, int] | None = None,
    augment: tuple[Operation, ...] = (),
    cache: str = "none",
    order: str | Runs = "global",
    readers: int = 1,
    threads: int = 1,
    prefetch: int = 2,
    throttle: Any = None,
    name: str | None = None,
    samples: int | None = None,
    part: str = "train",
) -> Pipeline:
    """Put a pipeline together: read, decode, crop, batch, augment, and prefetch last.

    Which rank gets which sample in which step is the rule of `datasets.epoch_batches`; nothing
    else decides about the content of a batch, neither threads nor cache nor prefetching.

    Leaves out a cache in files: stage the data set to the node's own disk.

    Args:
        source: what `as_source` takes: a Dataset, the folder of a data set in a format
            of the house, a list of (path, label), or a layout.
        batch: images per rank and step (count).
        rank: this rank.
        ranks: number of ranks (count).
        seed: of the order and of the augmentation, the same on every rank.
        shuffle: whether each epoch takes the samples in an order of its own.
        channels: 1 or 3, of the decoded images.
        raw: (rows, columns, channels) where samples are uint8 pixels and not image files.
        augment: operations, in their order.
        cache: "none", "bytes" (as stored) or "decoded" (pixels), in memory; for a source that
            is not in memory already.
        order: "global", or `Runs` for nearly sequential reading of packed files.
        readers: threads that read, and that decode what a cache of decoded pixels lacks; waiting
            for a slow storage overlaps between them (count).
        threads: threads that decode, without such a cache, and augment (count).
        prefetch: batches that are made ready ahead (count, 0 for none).
        throttle: a `scaling.storage.Throttle` that makes reading slow; None for none.
        name: of the data in records; None for the source's own.
        samples: how many to use, the first ones (count); None for all.
        part: "train" or "test", of a Dataset; no other source has parts.

    Returns:
        Pipeline: nothing is read yet but what describes the data set.

    Raises:
        ValueError: when an argument is out of range, or the batch larger than a rank's shard.
        DataError: when the data set is damaged where it is described.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 5.5.2 (prefetch last).
    """
    listed = isinstance(augment, tuple | list)
    then = "Write `augment=(Flip(),)` for one."
    require(listed, "augment", "be a tuple of operations", augment, then)
    found = as_source(source, part)
    return Pipeline(
        found, batch, rank, ranks, seed, shuffle, channels, raw, tuple(augment), order, readers,
        threads, prefetch, throttle, found.name if name is None else name,
        found.count if samples is None else samples,
        Cache(require_known(cache, CACHES, "cache")),
    )  # fmt: skip


def as_source(source: Any, part: str = "train") -> Source:
    """Make a source of what a pipeline can read."""
    require_known(part, ("test", "train"), "part")
    must, then = "be train unless `source` is a Dataset", "Give the test set's own folder or files."
    require(part == "train" or isinstance(source, Dataset), "part", must, part, then)
    if isinstance(source, Source):
        return source
    if isinstance(source, Dataset):
        name = source.name if part == "train" else f"{source.name} ({part})"
        images = source.train_images if part == "train" else source.test_images
        labels = source.train_labels if part == "train" else source.test_labels
        return ArraySource(name, images, labels)
    if isinstance(source, str | os.PathLike):
        return FormatSource(source)
    if hasattr(source, "items") and not isinstance(source, dict):
        return FileSource(source.items(), "files")
    listed = isinstance(source, Sequence) and all(
        isinstance(one, tuple | list) and len(one) == 2 for one in source
    )
    must = "be a Dataset, the folder of a data set, a list of (path, label) or a layout"
    require(listed, "source", must, type(source).__name__)
    return FileSource(source, "files")
