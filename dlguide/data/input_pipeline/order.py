"""In which order an epoch is read, and the random numbers that belong to each of its samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlguide.data.datasets import RankShard, epoch_batches, shard
from dlguide.errors import require, require_count

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class BlockShuffle:
    """An order that reads packed files in runs: nearly sequential, and less well mixed.

    The data set is cut into runs of neighbours, the runs are put in a random order, and samples
    are mixed within windows of a few runs: what `shuffle(buffer)` after shuffled shards does. A
    rank reads its own part of the runs and nothing else.

    What it costs: a batch holds samples of about `window / run` runs only, of twice as many where
    it lies across two windows. Where neighbours are alike (a folder class by class) a batch then
    holds few classes; write such data in random order.

    Args:
        run: neighbours that are read at once (count).
        window: samples in memory that are mixed, at least `run` (count).
    """

    run: int = 64
    window: int = 1024

    def __post_init__(self) -> None:
        require_count(self.run, "run")
        require_count(self.window, "window")
        require(self.window >= self.run, "window", f"hold a run of {self.run}", self.window)


def steps_of(
    order: str | BlockShuffle,
    samples: int,
    batch: int,
    rank: int,
    ranks: int,
    epoch: int,
    seed: int,
    shuffle: bool,
) -> list[RankShard]:
    """Say which samples a rank uses in which step of an epoch.

    Over all ranks every sample stands in it exactly once, and all ranks take equally many steps,
    in both orders. Only with "global" is a step's set of samples that of one process with the
    batch `batch * ranks`.
    """
    steps = epoch_batches(samples, batch, rank, ranks, epoch, seed, shuffle)
    if not isinstance(order, BlockShuffle) or not shuffle:
        return steps
    mine, sizes = _run_order(order, samples, rank, ranks, epoch, seed), []
    for other in range(ranks):
        part = shard(samples, other, ranks)
        left = np.arange(len(steps)) * batch
        sizes.append(np.clip(part.stop - part.start - left, 0, batch))
    together = np.sum(sizes, axis=0).tolist()
    return [RankShard(mine[s * batch : (s + 1) * batch], together[s]) for s in range(len(steps))]


def _run_order(
    order: BlockShuffle, samples: int, rank: int, ranks: int, epoch: int, seed: int
) -> np.ndarray:
    """Put runs in a random order, take this rank's part of it, mix it window by window."""
    runs = -(-samples // order.run)
    generator = np.random.default_rng([seed, epoch])
    first = generator.permutation(runs).astype(np.int64) * order.run
    numbers = (first[:, np.newaxis] + np.arange(order.run)).ravel()
    mine = numbers[numbers < samples][shard(samples, rank, ranks)]
    # Without a zero at the end: to a seed sequence [1, 2, 0] is [1, 2], the runs' own stream.
    mixer = np.random.default_rng([seed, epoch, 2, rank + 1])
    for start in range(0, len(mine), order.window):
        mixer.shuffle(mine[start : start + order.window])
    return mine


def draws(seed: int, epoch: int, numbers: np.ndarray, count: int) -> np.ndarray:
    """Give random numbers that depend on nothing but seed, epoch and the sample's number.

    So a sample is cropped alike on whichever rank, in whichever thread and after whichever
    interruption it is read. The generator is a counter that is mixed: two rounds of SplitMix64,
    the first over the sample's number, the second over the draw's.

    Source:
        Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.
    """
    key = np.random.SeedSequence([seed, epoch, 1]).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        rows = _mixed(key + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(_GAMMA))
        columns = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GAMMA)
        bits = _mixed(rows[:, np.newaxis] + columns)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _mixed(state: np.ndarray) -> np.ndarray:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(_FIRST)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(_SECOND)
    return state ^ (state >> np.uint64(31))
