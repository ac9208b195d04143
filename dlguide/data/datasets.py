"""Data sets that come with the course, and which sample belongs to which rank.

Shards are cut from one order that every rank computes for itself from (seed, epoch). Shuffling
on each rank and then taking every p-th sample, the usual mistake, cannot be written with it: on 2
ranks that leaves a quarter of the samples unseen in an epoch and uses another quarter twice.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from dlguide.checks import require, require_count, require_known
from dlguide.data.idx import DataError, read_idx
from dlguide.folders import data_folder

__all__ = [
    "DataError",
    "Dataset",
    "Step",
    "epoch_batches",
    "load",
    "names",
    "shard",
]

# The four files as first published: SHA-256 and shape.
_MNIST = {
    "train-images-idx3-ubyte.gz": (
        "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
        (60000, 28, 28),
    ),
    "train-labels-idx1-ubyte.gz": (
        "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
        (60000,),
    ),
    "t10k-images-idx3-ubyte.gz": (
        "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
        (10000, 28, 28),
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
        (10000,),
    ),
}


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled images, split for training and testing.

    Args:
        name: name of the data set.
        train_images: float32 in [0, 1], shape (samples, rows, columns, channels).
        train_labels: int32 class numbers, shape (samples,).
        test_images: as train_images, other samples.
        test_labels: as train_labels.
        classes: number of classes (count).
    """

    name: str
    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: int = 10

    def __repr__(self) -> str:
        shape = " x ".join(str(length) for length in self.train_images.shape[1:])
        return (
            f"{self.name}: {len(self.train_images)} training and {len(self.test_images)} test "
            f"images of {shape}, {self.classes} classes"
        )

    def first(self, train: int, test: int | None = None) -> Dataset:
        """Take the first samples only, for a lesson that must be quick.

        No shuffling: the same samples on every rank and in every run. The arrays are views.

        Args:
            train: number of training samples to keep (count).
            test: number of test samples to keep (count); None keeps all.

        Returns:
            Dataset: the smaller data set.

        Raises:
            ValueError: when there are not that many samples.
        """
        test = len(self.test_images) if test is None else test
        for name, wanted, there in (
            ("train", train, len(self.train_images)),
            ("test", test, len(self.test_images)),
        ):
            require_count(wanted, name)
            require(wanted <= there, name, f"be at most the {there} samples there are", wanted)
        return Dataset(
            self.name,
            self.train_images[:train],
            self.train_labels[:train],
            self.test_images[:test],
            self.test_labels[:test],
            self.classes,
        )


@dataclass(frozen=True, eq=False)
class Step:
    """One rank's part of one training step.

    A rank without samples in the last step still takes the step, with a gradient of zero:
    the others wait for it in the allreduce. The mean over the global batch is the sum over all
    ranks divided by `global_size`.

    Args:
        indices: samples of this rank in this step, int64, shape (0 to batch,).
        global_size: samples of all ranks together in this step (count).
    """

    indices: np.ndarray
    global_size: int


def names() -> tuple[str, ...]:
    """List the data sets there are.

    Returns:
        tuple: names that `load` takes.
    """
    return ("mnist",)


def load(name: str = "mnist", folder: str | os.PathLike | None = None) -> Dataset:
    """Read a data set from the files that come with the course.

    Each file is held against its SHA-256 checksum before it is used, so that a damaged or
    truncated one is never trained on. Nothing is downloaded.

    Args:
        name: one of `names()`.
        folder: the data folder that holds `mnist/`; None takes $DLGUIDE_DATA or the
            repository's `data`.

    Returns:
        Dataset: for "mnist" images (60000, 28, 28, 1) and (10000, 28, 28, 1).

    Raises:
        ValueError: when there is no such data set; the message lists those there are.
        DataError: when a file is missing or damaged; the message names the file, the expected
            and the found checksum and how to restore it.
        MissingComponentError: when the data folder does not exist.

    Source:
        LeCun, Cortes, Burges: The MNIST database of handwritten digits (1998).
    """
    require_known(name, names(), "name")
    place = data_folder(folder) / name
    parts = [read_idx(place / file, *facts) for file, facts in _MNIST.items()]
    train_images, train_labels, test_images, test_labels = parts
    return Dataset(
        name,
        _as_images(train_images),
        train_labels.astype(np.int32),
        _as_images(test_images),
        test_labels.astype(np.int32),
    )


def epoch_batches(
    samples: int,
    batch: int,
    rank: int = 0,
    ranks: int = 1,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
) -> list[Step]:
    """Divide one epoch among ranks: which samples this rank uses in which step.

    All samples are put in one order, a permutation that depends on (seed, epoch) only. Global
    batch s is the slice [s * batch * ranks, (s + 1) * batch * ranks) of it, and rank r takes the
    r-th part of the slice; in the last, shorter one the parts differ by at most one sample. So
    over all ranks every sample is used exactly once an epoch, all ranks take
    ceil(samples / (batch * ranks)) steps, and step s uses the same samples as step s of a single
    process with the batch `batch * ranks`.

    Calls are independent and cost no communication; every rank must call it with the same
    arguments except `rank`.

    Args:
        samples: samples in the whole data set (count).
        batch: samples per rank and step (count).
        rank: this rank, 0 to ranks - 1.
        ranks: number of ranks (count).
        epoch: number of the epoch, from 0; another epoch has another order.
        seed: seed of the run, at least 0, the same on every rank.
        shuffle: False keeps the order of the data set.

    Returns:
        list: one `Step` per step, equally many on every rank.

    Raises:
        ValueError: when an argument is out of range, or batch exceeds one rank's shard,
            samples // ranks.
    """
    _require_rank(samples, rank, ranks)
    require_count(batch, "batch")
    require_count(epoch, "epoch", least=0)
    require_count(seed, "seed", least=0)
    largest = samples // ranks
    require(
        batch <= largest,
        "batch",
        f"be at most the {largest} samples of one rank's shard",
        batch,
        f"{samples} samples are shared by {ranks} ranks." if ranks > 1 else "",
    )
    if shuffle:
        order = np.random.default_rng([seed, epoch]).permutation(samples)
    else:
        order = np.arange(samples)
    order = order.astype(np.int64, copy=False)
    steps = math.ceil(samples / (batch * ranks))
    slices = (order[s * batch * ranks : (s + 1) * batch * ranks] for s in range(steps))
    return [Step(part[shard(len(part), rank, ranks)], len(part)) for part in slices]


def shard(samples: int, rank: int, ranks: int) -> slice:
    """Give the contiguous part of the samples that one rank evaluates.

    Rank r has the samples from floor(r samples / ranks) to floor((r + 1) samples / ranks). The
    parts are disjoint, cover all samples and differ by at most one; with fewer samples than
    ranks some are empty. For training take `epoch_batches`: here ranks may take different
    numbers of steps.

    Args:
        samples: samples in the whole data set (count, 0 allowed).
        rank: this rank, 0 to ranks - 1.
        ranks: number of ranks (count).

    Returns:
        slice: to index images and labels with.

    Raises:
        ValueError: when an argument is out of range.

    >>> [shard(10, rank, 4) for rank in range(4)]
    [slice(0, 2, None), slice(2, 5, None), slice(5, 7, None), slice(7, 10, None)]
    """
    require_count(samples, "samples", least=0)
    require_count(ranks, "ranks")
    require_count(rank, "rank", least=0)
    require(rank < ranks, "rank", f"be at most {ranks - 1}, the last of {ranks} ranks", rank)
    return slice(rank * samples // ranks, (rank + 1) * samples // ranks)


def _require_rank(samples: int, rank: int, ranks: int) -> None:
    require_count(samples, "samples")
    shard(samples, rank, ranks)
    require(ranks <= samples, "ranks", f"be at most the {samples} samples there are", ranks)


def _as_images(pixels: np.ndarray) -> np.ndarray:
    images = pixels.astype(np.float32)[..., np.newaxis]
    images /= 255
    return images
