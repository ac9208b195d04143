"""Checks of the exercises of notebook 41: speed of a line, buffers, causes, a pipeline, steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

CAUSES = {
    "same crops": ("B", "What did the cache keep: the picture, or one random crop of it?"),
    "never seen": ("A", "Two ranks share one list only if both have the same list."),
    "last step": ("E", "51 and 50 samples in batches of 10: how many steps has each rank?"),
    "prefetch": ("F", "Prefetch gives work to another thread. Who gives that thread a core?"),
    "memory": ("C", "Count bytes: a decoded picture against its JPEG."),
    "two epochs": ("D", "What does the buffer hold when the first epoch has been read to its end?"),
}


def exercise_41_1(speed: Callable[..., Any]) -> str:
    """Check the prediction of a line of stages.

    Args:
        speed: called with the seconds of a sample for read, decode and train, the threads that
            decode, whether there is prefetch, and the cores; returns samples per second.

    Returns:
        str: what it means.
    """
    expect_function(speed)
    for read_s, decode_s, train_s, threads, prefetch, cores in (
        (4e-3, 2e-3, 1e-3, 1, False, 4),
        (4e-3, 2e-3, 1e-3, 1, True, 4),
        (1e-3, 6e-3, 2e-3, 3, True, 16),
        (1e-3, 6e-3, 2e-3, 3, False, 16),
        (1e-3, 4e-3, 4e-3, 2, True, 2),
        (1e-3, 4e-3, 4e-3, 2, True, 1),
    ):
        came = answered(speed(read_s, decode_s, train_s, threads, prefetch, cores))
        stages = (read_s, decode_s / threads, train_s)
        cores_s = (decode_s + train_s) / cores
        case = (
            f"samples/s for read {read_s:g} s, decode {decode_s:g} s on {threads} threads, train "
            f"{train_s:g} s, {cores} cores, {'with' if prefetch else 'without'} prefetch"
        )
        hint = "Seconds of one sample, all stages one after the other; then 1 / seconds."
        if prefetch:
            hint = "The stages run beside each other: the slowest alone counts."
            if cores_s > max(stages):
                hint = "Decode and train must share the cores: they cannot compute more than that."
        seconds = max(*stages, cores_s) if prefetch else sum(stages)
        expect_close(came, 1 / seconds, case, hint, 1e-9)
    return "So prefetch brings at most a factor of 2 for two stages, and nothing on full cores."


def exercise_41_2(mixed: Callable[..., Any]) -> str:
    """Check what a shuffle buffer can mix.

    Args:
        mixed: called with the number of a sample, the samples of a class, the buffer and the
            batch; returns the earliest place where that sample can come out, and the largest
            number of classes in the first batch, of samples written class after class.

    Returns:
        str: what it means.
    """
    expect_function(mixed)
    for sample, per_class, buffer, batch in (
        (0, 10, 1, 4),
        (7, 10, 5, 4),
        (40, 10, 16, 8),
        (2, 3, 100, 8),
        (500, 1000, 1000, 100),
        (999, 100, 50, 52),
    ):
        came = answered(mixed(sample, per_class, buffer, batch))
        expect(np.shape(came) == (2,), "two numbers: place and classes", came)
        case = f"sample {sample}, {per_class} a class, a buffer of {buffer}, a batch of {batch}"
        place = max(0, sample - buffer + 1)
        hint = "At place k the buffer has taken in the samples 0 to k + buffer - 1. Never below 0."
        expect(came[0] == place, f"the earliest place for {case}", came[0], hint)
        reached = batch + buffer - 1
        hint = "When the last sample of the batch is drawn: which samples have been taken in?"
        classes = min(batch, -(-reached // per_class))
        if came[1] > batch:
            hint = "A batch cannot hold more classes than samples."
        expect(came[1] == classes, f"the classes for {case}", came[1], hint)
    return (
        "ImageNet in class folders has about 1300 images a class: with a buffer of 1000 the first "
        "batch of 256 has a single class. Mix once when you write, or shuffle the numbers."
    )


def exercise_41_3(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which symptom.

    Args:
        causes: for each of the six symptoms a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "Four of the six raise no error: only counting samples, bytes and steps shows them."


def exercise_41_4(mended: Callable[..., Any]) -> str:
    """Check a `tf.data` pipeline that shares an epoch among ranks.

    Args:
        mended: called with rank, ranks, samples, batch, seed and epoch; returns a dataset of the
            batches of sample numbers that this rank takes.

    Returns:
        str: what it means.
    """
    expect_function(mended)
    for samples, ranks, batch in ((101, 2, 10), (64, 4, 8), (30, 3, 7), (12, 1, 5)):
        everyone = [_batches(mended, rank, ranks, samples, batch, 3, 0) for rank in range(ranks)]
        case = f"{samples} samples, {ranks} ranks, a batch of {batch}"
        largest = max(len(one) for mine in everyone for one in mine)
        expect(largest <= batch, f"batches of at most {batch}", f"one of {largest}", case)
        taken = sorted(number for mine in everyone for one in mine for number in one)
        missing, twice = set(range(samples)) - set(taken), len(taken) - len(set(taken))
        came = f"{len(missing)} samples never, {twice} once too often ({case})"
        hint = "Is a rest dropped?"
        if twice:
            hint = "Do all ranks cut the same order? A shuffle needs the same seed everywhere."
        expect(not missing and not twice, "every sample once an epoch", came, hint)
        steps = sorted({len(mine) for mine in everyone})
        hint = "Cut global batches of `batch * ranks` first; then each rank takes its part of each."
        expect(len(steps) == 1, "equally many steps on all ranks", f"{steps} ({case})", hint)
    _expect_order(mended)
    return "A rank with nothing in the last step still takes it: the others wait for it."


def _expect_order(mended: Callable[..., Any]) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return [number for one in _batches(mended, 0, 1, 200, 10, seed, epoch) for number in one]

    first = order(3, 0)
    hint = "A run that goes on from a checkpoint must find the order it had: seed the shuffle."
    expect(first == order(3, 0), "the same order for the same seed and epoch", "two orders", hint)
    hint = "Shuffle with a buffer that holds all samples."
    expect(max(first[:20]) > 100, "samples from everywhere at the front", first[:20], hint)
    hint = "Let the epoch take part in the seed."
    expect(first != order(3, 1), "another order in another epoch", "the same order", hint)
    hint = "Let the run's seed take part."
    expect(first != order(4, 0), "another order for another seed", "the same order", hint)


def _batches(mended: Callable[..., Any], *arguments: int) -> list[list[int]]:
    came = answered(mended(*arguments))
    iterates = hasattr(came, "as_numpy_iterator")
    expect(iterates, "a tf.data.Dataset of batches", came, "Return the dataset.")
    found = []
    for one in came.as_numpy_iterator():
        array = np.asarray(one)
        expect(array.ndim == 1, "batches: one row of numbers each", f"shape {array.shape}")
        found.append(array.tolist())
        expect(len(found) <= 1000, "an epoch that ends", "more than 1000 batches", "No `repeat`.")
    return found


def exercise_41_5(equal_steps: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that all take equally many steps although their samples differ.

    Args:
        equal_steps: called with the communicator, the numbers of this rank's samples and the
            batch; returns the list of its batches.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(equal_steps)
    batch, ranks = 4, cluster.ranks
    given = [list(range(100 * rank, 100 * rank + 7 + 6 * rank)) for rank in range(ranks)]
    came = results(cluster, equal_steps, [(mine, batch) for mine in given])
    for rank, (mine, batches) in enumerate(zip(given, came, strict=True)):
        try:
            lists = [[int(number) for number in one] for one in batches]
        except TypeError:
            lists = None
        expect(lists is not None, "a list of lists of numbers", batches, "Return all batches.")
        taken = [number for one in lists for number in one]
        hint = "Do not cut to the shortest rank: pad the others with empty batches."
        said = f"{len(taken)} of {len(mine)} samples on rank {rank}"
        expect(sorted(taken) == mine, "every sample once", said, hint)
        fits = all(len(one) <= batch for one in lists)
        expect(fits, f"at most {batch} samples a batch", batches, "The last one is shorter.")
    steps = [len(batches) for batches in came]
    most = -(-len(given[-1]) // batch)
    hint = "Ask the others: `comm.allreduce(mine, op=MPI.MAX)` gives the largest count."
    expect(len(set(steps)) == 1, "equally many steps on all ranks", f"{steps}", hint)
    expect(steps[0] == most, "no more steps than the longest rank needs", steps[0], "Round up.")
    if ranks == 1:
        return "One rank has nobody to wait for: try it on two."
    return f"{ranks} ranks with {[len(mine) for mine in given]} samples: {most} steps each."
