"""The samples of a data set divided among the ranks, in whatever form the data is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dlguide.data.sharding import epoch_batches
from dlguide.distributed.world import rank, size
from dlguide.errors import require, require_count


def shard(*data: Any, batch_size: int, shuffle: bool = True, seed: int = 0, **options: Any) -> Any:
    """Return this rank's batches of a data set: over all ranks each sample exactly once an epoch.

    Global batch s of an epoch is the same on any number of ranks, and in the last, shorter one the
    ranks' parts differ by at most one sample, which `DistributedOptimizer` takes into account; so
    p ranks with `batch_size` train as one process with p times as much. All ranks must call it with
    the same arguments.

    Args:
        data: arrays of equally many samples, such as images and labels; or one of
            `keras.utils.PyDataset` (its batches are divided among the ranks), a `torch` Dataset or
            DataLoader of known length, or a `tf.data.Dataset` of single samples and known length.
        batch_size: samples of each rank in a step (count).
        shuffle: another order in each epoch, the same on all ranks; False keeps that of the data.
            The order of a `tf.data.Dataset` is its own: its shuffle must be seeded.
        seed: of the order.

    Returns:
        keras.utils.PyDataset, or a `tf.data.Dataset` for one: what `model.fit` takes; `x` alone
        where one array was given.

    Raises:
        ValueError: when the numbers of samples differ, are unknown, or are too few for the ranks.
        TypeError: when the data is of another kind.
    """
    require_count(batch_size, "batch_size")
    require(bool(data), "data", "be arrays or a data set", data)
    first = data[0]
    kind = {base.__module__.split(".")[0] for base in type(first).__mro__}
    if "tensorflow" in kind and hasattr(first, "take"):
        return _tf_dataset(first, batch_size)
    if len(data) == 1 and hasattr(first, "__getitem__") and not hasattr(first, "shape"):
        return _Batches(_Samples(first), batch_size, shuffle, seed, options)
    if len(data) == 1 and hasattr(first, "dataset") and hasattr(first, "batch_size"):
        return _Batches(_Samples(first.dataset), batch_size, shuffle, seed, options)
    if not all(hasattr(each, "shape") for each in data):
        raise TypeError(
            "`data` must be arrays, a `keras.utils.PyDataset`, a `torch` Dataset or DataLoader, or "
            f"a `tf.data.Dataset`, got {', '.join(type(each).__name__ for each in data)}."
        )
    lengths = {len(each) for each in data}
    require(len(lengths) == 1, "data", "have equally many samples in each array", sorted(lengths))
    return _Batches(_Arrays(data), batch_size, shuffle, seed, options)


class _Arrays:
    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def batch(self, indices: np.ndarray) -> Any:
        parts = tuple(np.asarray(each[indices]) for each in self.arrays)
        return parts if len(parts) > 1 else parts[0]


class _Samples:
    """A data set whose items are single samples."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: np.ndarray) -> Any:
        import keras

        items = [self.samples[int(i)] for i in indices]
        return keras.tree.map_structure(lambda *each: np.stack([*map(np.asarray, each)]), *items)


def _Batches(source: Any, batch_size: int, shuffle: bool, seed: int, options: dict) -> Any:
    import keras

    from dlguide.distributed import hooks

    hooks.install()

    class Batches(keras.utils.PyDataset):
        """This rank's batches, one epoch after the other, in the order of all ranks."""

        keeps_order = True

        def __init__(self) -> None:
            super().__init__(**options)
            self.epoch = 0
            self._deal()

        def _deal(self) -> None:
            self.shards = epoch_batches(
                len(source), batch_size, rank(), size(), self.epoch, seed, shuffle
            )

        def __len__(self) -> int:
            return len(self.shards)

        def __getitem__(self, step: int) -> Any:
            return source.batch(self.shards[step].indices)

        def on_epoch_end(self) -> None:
            self.epoch += 1
            self._deal()

    return Batches()


def _tf_dataset(data: Any, batch_size: int) -> Any:
    """Return every p-th block of a data set: rank r has the r-th part of each global batch."""
    samples = int(data.cardinality())
    then = "Set it: `data.apply(tf.data.experimental.assert_cardinality(samples))`."
    require(samples >= 0, "data", "be of known length", samples, then)
    shards = epoch_batches(samples, batch_size, rank(), size(), shuffle=False)

    def batches() -> Iterator[tuple[int, int]]:
        return ((int(s.indices[0]) if len(s.indices) else 0, len(s.indices)) for s in shards)

    import tensorflow as tf

    starts, counts = np.array(list(batches()), np.int64).T
    sizes = np.array([s.global_size for s in shards], np.int64)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    plan = tf.data.Dataset.from_tensor_slices((starts - begins, counts))
    # A window is a global batch; of it this rank takes its part.
    windows = data.batch(batch_size * size())

    def part(window: Any, of: Any) -> Any:
        start, count = of
        return tf.nest.map_structure(lambda each: each[start : start + count], window)

    mine = tf.data.Dataset.zip((windows, plan)).map(part)
    return mine.prefetch(1)
