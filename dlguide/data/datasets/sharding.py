"""Which sample belongs to which rank.

Shards are cut from one order that every rank computes for itself from (seed, epoch). Shuffling
on each rank and then taking every p-th sample, the usual mistake, cannot be written with it: on 2
ranks that leaves a quarter of the samples unseen in an epoch and uses another quarter twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require, require_count


@dataclass(frozen=True, eq=False)
class RankShard:
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


def epoch_batches(
    samples: int,
    batch: int,
    rank: int = 0,
    ranks: int = 1,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
) -> list[RankShard]:
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
        list: one `RankShard` per step, equally many on every rank.

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
    return [RankShard(part[shard(len(part), rank, ranks)], len(part)) for part in slices]


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
