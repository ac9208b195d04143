"""An input pipeline: stages that follow one another, each of which can be measured alone."""

from __future__ import annotations

import dataclasses
from dataclasses import InitVar, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from dlguide.data.datasets import BlockShuffle, RankShard, epoch_batches
from dlguide.data.input_pipeline.augment import Operation, in_unit_range, without_randomness
from dlguide.data.input_pipeline.epoch import Cache, Epoch, Reader, with_threads
from dlguide.data.input_pipeline.sources import ArraySource, as_source
from dlguide.errors import require, require_count, require_known

CACHES = ("none", "bytes", "decoded")


@dataclass(frozen=True, eq=False)
class Pipeline:
    """How samples become batches: read, decode, crop, batch, augment, and prefetch last.

    Which rank gets which sample in which step is the rule of `datasets.epoch_batches`; nothing
    else decides about the content of a batch, neither threads nor cache nor prefetching. Nothing
    is read yet but what describes the data set.

    Leaves out a cache in files: stage the data set to the node's own disk.

    Args:
        source: a Dataset, the folder of a data set that `formats` wrote, a list of (path, label),
            what a reader of `dlguide.data.readers` found, or a `Source`.
        batch_per_rank: images per rank and step (count).
        rank: this rank.
        ranks: number of ranks (count).
        seed: of the order and of the augmentation, the same on every rank.
        shuffle: whether each epoch takes the samples in a new order.
        channels: 1 or 3, of the decoded images.
        raw: (rows, columns, channels) where samples are uint8 pixels and not image files.
        augment: operations, in their order.
        cache: "none", "bytes" (as stored) or "decoded" (pixels), in memory; for a source that
            is not in memory already.
        order: "global", or `BlockShuffle` for nearly sequential reading of packed files.
        readers: threads that read, and that decode what a cache of decoded pixels lacks; waiting
            for a slow storage overlaps between them (count).
        threads: threads that decode, without such a cache, and augment (count).
        prefetch: batches that are made ready ahead (count, 0 for none).
        throttle: a `scaling.storage.Throttle` that makes reading slow; None for none.
        name: of the data in records; None for the source's own.
        samples: how many to use, the first ones (count); None for all.
        part: "train" or "test", of a Dataset; no other source has parts.

    Raises:
        ValueError: when an argument is out of range, or the batch larger than a rank's shard.
        DataError: when the data set is damaged where it is described.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 5.5.2 (prefetch last).
    """

    source: Any
    batch_per_rank: int = 100
    rank: int = 0
    ranks: int = 1
    seed: int = 0
    shuffle: bool = True
    channels: int = 3
    raw: tuple[int, int, int] | None = None
    augment: tuple[Operation, ...] = ()
    cache: str | Cache = field(default="none", repr=False)
    order: str | BlockShuffle = "global"
    readers: int = 1
    threads: int = 1
    prefetch: int = 2
    throttle: Any = None
    name: str | None = None
    samples: int | None = None
    part: InitVar[str] = "train"

    def __post_init__(self, part: str) -> None:
        source, cache, then = self.source, self.cache, "Write `augment=(Flip(),)` for one."
        listed = isinstance(self.augment, tuple | list)
        require(listed, "augment", "be a tuple of operations", self.augment, then)
        for one in self.augment:
            require(isinstance(one, Operation), "augment", "hold operations", type(one).__name__)
        source = as_source(source, part)
        if not isinstance(cache, Cache):
            cache = Cache(require_known(cache, CACHES, "cache"))
        samples = source.count if self.samples is None else self.samples
        for key, value in (
            ("source", source), ("cache", cache), ("augment", tuple(self.augment)),
            ("name", source.name if self.name is None else self.name), ("samples", samples),
        ):  # fmt: skip
            object.__setattr__(self, key, value)
        require_count(self.readers, "readers")
        require_count(self.threads, "threads")
        require_count(self.prefetch, "prefetch", least=0)
        require(self.channels in (1, 3), "channels", "be 1 or 3", self.channels)
        self.steps()  # refuses what `epoch_batches` does
        must = f"be at most the {source.count} there are"
        require(samples <= source.count, "samples", must, samples)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages in their order: those that this pipeline has."""
        decode = () if self._arrays else ("decode",)
        crop = ("crop",) if self._crops else ()
        batch = ("batch",) if decode or crop else ()
        return ("read", *decode, *crop, *batch, "augment")

    @property
    def cached_nbytes(self) -> int:
        """Bytes that the cache holds now (bytes)."""
        return self.cache.nbytes

    def replace(self, **changes: Any) -> Pipeline:
        """Make a pipeline that differs in a few arguments and shares source and cache.

        Args:
            changes: fields and their new values; `cache` by its name begins an empty one.

        Returns:
            Pipeline: the changed one.

        Raises:
            ValueError: when an argument is unknown or out of range.
        """
        for name in changes:
            require_known(name, [one.name for one in dataclasses.fields(self)], "changes")
        if changes.keys() & {"channels", "raw", "source"}:
            changes.setdefault("cache", self.cache.kind)
        return dataclasses.replace(self, **changes)

    def without_augmentation(self) -> Pipeline:
        """Give the same pipeline with nothing random in its images: for evaluation.

        Flips are left out, and padded crops of images that have the crop's size already; of
        others, and of files, whose images can have any size, the middle is cut out. A
        `ResizedCrop` becomes the middle of the image, of the same size, cut from one whose
        shorter side is 8/7 of it (224 from 256 pixels).

        Returns:
            Pipeline: of the same samples in the same order.

        Raises:
            ValueError: when it has a random operation of another kind, or a padded crop that is
                known to be larger than the image.

        Source:
            Goyal et al., arXiv:1706.02677, section 5.1 (the middle of the image).
        """
        size = None if self.raw is None else self.raw[:2]
        if isinstance(self.source, ArraySource):
            size = self.source.images.shape[1:3]
        return self.replace(augment=without_randomness(self.augment, size))

    def fingerprint(self) -> dict[str, Any]:
        """Describe what a pipeline gives, apart from who takes how much of it and how fast.

        Left out are batch, rank, ranks, seed and shuffle, which a training sets, and threads,
        cache, prefetch and throttle, which change no sample. A folder is known by its manifest
        or by the names of its files, not by its place: each node may have its own copy.

        Returns:
            dict: JSON-able; equal for pipelines that give the same samples.
        """
        return {
            "name": self.name,
            "samples": self.samples,
            "order": repr(self.order),
            "augment": repr(self.augment),
            "channels": self.channels,
            "raw": None if self.raw is None else list(self.raw),
            "source": f"{self.source.count} samples, {self.source.checksum():08x}",
        }

    def steps(self, epoch: int = 0) -> list[RankShard]:
        """Say which samples this rank uses in which step.

        Args:
            epoch: number of the epoch, from 0.

        Returns:
            list: one `RankShard` per step, equally many on every rank.
        """
        return epoch_batches(
            self.samples, self.batch_per_rank, self.rank, self.ranks, epoch, self.seed,
            self.shuffle, self.order,
        )  # fmt: skip

    def epoch(self, epoch: int = 0, first_step: int = 0, until: str | None = None) -> Epoch:
        """Iterate over an epoch's batches, or over what one of the stages gives.

        The rest of an epoch is what a whole one would have given from that step on; the samples
        of the steps before are not read.

        Args:
            epoch: number of the epoch, from 0.
            first_step: step to begin with, from 0.
            until: name of the last stage; None for all, and the prefetching.

        Returns:
            Epoch: an iterator, to be closed or used in a `with` where it is not read to its end.

        Raises:
            ValueError: when there is no such step or stage.
        """
        steps = self.steps(epoch)
        require_count(first_step, "first_step", least=0)
        must = f"be at most the {len(steps)} steps of an epoch"
        require(first_step <= len(steps), "first_step", must, first_step)
        reader = self._reader(steps[first_step:], epoch, first_step)
        last = self.stages[-1] if until is None else require_known(until, self.stages, "until")
        dataset = None
        for stage in self.stages[: self.stages.index(last) + 1]:
            dataset = getattr(self, f"_{stage}")(dataset, reader)
        if until is None and self.prefetch:
            dataset = dataset.prefetch(self.prefetch)
        return Epoch(self, dataset, reader, steps[first_step:], until)

    def apply(self, stage: str, dataset: Any = None, epoch: int = 0) -> Any:
        """Give one stage alone, as a transformation of what the stage before it gives.

        Args:
            stage: one of `stages`.
            dataset: a `tf.data.Dataset` of such elements; None for "read".
            epoch: which one is read, from 0.

        Returns:
            tf.data.Dataset: with this pipeline's thread settings.

        Raises:
            ValueError: when there is no such stage.
        """
        require_known(stage, self.stages, "stage")
        if stage == "read":
            require(dataset is None, "dataset", "be None for the first stage", "a dataset")
        reader = self._reader(self.steps(epoch), epoch)
        return with_threads(getattr(self, f"_{stage}")(dataset, reader), self)

    def decoder(self, data: Any) -> Any:
        """Decode one sample's bytes."""
        import tensorflow as tf

        if self.raw is not None:
            return tf.reshape(tf.io.decode_raw(data, tf.uint8), self.raw)
        # Reads PNG too, and GIF of one frame in 3 channels; others decode JPEG with this method.
        return tf.io.decode_jpeg(data, self.channels, dct_method="INTEGER_ACCURATE")

    def augmented(self, image: Any, draws: Any, augment: tuple[Operation, ...]) -> Any:
        """Apply operations to a single image."""
        at = 0
        for one in augment:
            mine = draws[at : at + one.draws]
            at += one.draws
            image = one.apply(image, mine) if one.sizes else one.apply(image[None], mine[None])[0]
        return image

    @property
    def _arrays(self) -> bool:
        """Whether reading gives arrays of pixels, so that no stage takes image by image."""
        one_by_one = self._crops or isinstance(self.order, BlockShuffle)
        return not self.source.encoded or (self.cache.kind == "decoded" and not one_by_one)

    @property
    def _crops(self) -> tuple[Operation, ...]:
        """Operations that go image by image: all up to the last that gives them a size."""
        return self.augment[
            : max((at for at, one in enumerate(self.augment, 1) if one.sizes), default=0)
        ]

    def _reader(self, steps: list[RankShard], epoch: int, first_step: int = 0) -> Reader:
        numbers = np.concatenate([np.zeros(0, np.int64), *(step.indices for step in steps)])
        at_once = self.batch_per_rank
        if isinstance(self.order, BlockShuffle) and self.source.encoded:
            at_once = self.order.window  # samples are mixed within it, so no run goes beyond it
        first = at_once - first_step * self.batch_per_rank % at_once
        edges = [0, *range(first, len(numbers), at_once), len(numbers)]
        return Reader(self, [numbers[a:b] for a, b in pairwise(edges) if b > a], epoch)

    def _read(self, dataset: Any, reader: Reader) -> Any:
        import tensorflow as tf

        if not self._arrays:
            types = [tf.string, tf.int32, tf.int32, tf.float32]
            shapes: list = [[None], [None, 3]]
        elif self.source.encoded:
            types = [tf.uint8, tf.int32, tf.float32]
            shapes = [[None, *(self.raw or (None, None, self.channels))]]
        else:
            images, _ = self.source.read(np.zeros(1, np.int64))
            types = [tf.as_dtype(images.dtype), tf.int32, tf.float32]
            shapes = [[None, *images.shape[1:]]]
        shapes += [[None, *self.source.label_shape], [None, reader.draws]]

        @tf.autograph.experimental.do_not_convert
        def read(piece: Any) -> Any:
            parts = tf.numpy_function(reader.read, [piece], types)
            return tuple(tf.ensure_shape(*one) for one in zip(parts, shapes, strict=True))

        pieces = tf.data.Dataset.range(len(reader.pieces))
        return pieces.map(read, self.readers, deterministic=True)

    def _decode(self, dataset: Any, reader: Reader) -> Any:
        import tensorflow as tf

        size = self.raw or (None, None, self.channels)

        def decode(data: Any, shape: Any, labels: Any, draws: Any) -> Any:
            if self.cache.kind == "decoded":
                image = tf.reshape(tf.io.decode_raw(data, tf.uint8), shape)
            else:
                image = self.decoder(data)
            return tf.ensure_shape(image, size), labels, draws

        return dataset.unbatch().map(decode, self.threads, deterministic=True)

    def _crop(self, dataset: Any, reader: Reader) -> Any:
        def crop(image: Any, labels: Any, draws: Any) -> Any:
            return self.augmented(image, draws, self._crops), labels, draws

        images = dataset.unbatch() if self._arrays else dataset
        return images.map(crop, self.threads, deterministic=True)

    def _batch(self, dataset: Any, reader: Reader) -> Any:
        return dataset.batch(self.batch_per_rank)

    def _augment(self, dataset: Any, reader: Reader) -> Any:
        done = sum(one.draws for one in self._crops)

        def augment(images: Any, labels: Any, draws: Any) -> Any:
            at = done
            for one in self.augment[len(self._crops) :]:
                images = one.apply(images, draws[:, at : at + one.draws])
                at += one.draws
            return in_unit_range(images), labels

        return dataset.map(augment, self.threads, deterministic=True)
