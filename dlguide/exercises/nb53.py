"""Checks of the exercises of notebook 53: buckets, layouts, unequal parts, causes of symptoms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

# The gradients of "mnist_cnn" in the order in which they become ready (bytes).
MNIST_CNN = [40, 5120, 512, 524288, 204800, 256, 3200, 128]
CAUSES = {
    "images/s": (
        "C",
        "Its first batch took twice as long as that of its rival, and no later one did.",
    ),
    "hangs": ("E", "The addresses that it reads were written by processes that no longer live."),
    "last step": ("A", "Which mean does DistributedDataParallel take?"),
    "memory": ("F", "What does one GPU keep there that the helpers do not?"),
    "early": ("B", "When may a bucket leave?"),
    "loader": ("D", "Divide before you compare: how many processes read for one GPU?"),
}


def exercise_53_1(buckets: Callable[..., Any]) -> str:
    """Check the prediction of DistributedDataParallel's buckets.

    Args:
        buckets: called with the bytes of the gradients in the order of readiness and the cap
            (bytes), returns the bytes of each bucket.

    Returns:
        str: what it means.
    """
    expect_function(buckets)
    cases = {
        "five equal gradients and a cap of two of them": ([10] * 5, 20),
        "a cap between two sizes": ([40, 40, 40, 200, 8], 100),
        "a cap above everything": ([10, 20, 30], 1000),
        "a cap that every gradient exceeds": ([10, 20, 30], 1),
        "a first gradient larger than the cap": ([300, 10, 10], 100),
        "the net of this lesson": (MNIST_CNN, 200_000),
    }
    for name, (nbytes, cap) in cases.items():
        right = _buckets(nbytes, cap)
        came = answered(buckets(list(nbytes), cap))
        sequence = isinstance(came, list | tuple | np.ndarray)
        expect(sequence, f"a list of sizes for {name}", came, "One number for each bucket.")
        whole = sum(came) == sum(nbytes)
        hint = "The last bucket leaves too, however little it holds."
        expect(whole, f"{sum(nbytes)} bytes in all for {name}", sum(came), hint)
        hint = "A bucket is closed once it holds *at least* the cap; it may be larger, not smaller."
        if 0 in came:
            hint = "No bucket is empty."
        elif list(came) == right[::-1]:
            hint = "In the order of sending: what is ready first leaves first."
        expect(list(came) == right, f"the buckets of {name}", list(came), hint)
    return (
        f"With a cap of 200000 bytes this net sends {len(right)} messages; the first holds "
        f"{right[0] / sum(MNIST_CNN):.0%} of all bytes, so nothing smaller can begin before it."
    )


def _buckets(nbytes: list[int], cap: int) -> list[int]:
    found, held = [], 0
    for size in nbytes:
        held += size
        if held >= cap:
            found.append(held)
            held = 0
    return [*found, held] if held else found


def exercise_53_2(to_pytorch: Callable[..., Any]) -> str:
    """Check that the kernel behind a Flatten layer is carried over pixel by pixel.

    Args:
        to_pytorch: called with a Keras kernel of shape (height * width * channels, outputs) and
            the height, width and channels of what is flattened; returns the PyTorch one.

    Returns:
        str: what it means.
    """
    expect_function(to_pytorch)
    random = np.random.default_rng(53)
    for height, width, channels, outputs in ((2, 3, 4, 5), (4, 4, 64, 7), (1, 1, 6, 2)):
        kernel = random.normal(size=(height * width * channels, outputs))
        image = random.normal(size=(height, width, channels))
        came = answered(to_pytorch(kernel.copy(), height, width, channels))
        case = f"{height} x {width} pixels of {channels} channels"
        shape = (outputs, height * width * channels)
        hint = "PyTorch keeps a dense kernel as outputs x inputs."
        expect(np.shape(came) == shape, f"shape {shape} for {case}", np.shape(came), hint)
        right = image.ravel() @ kernel
        made = np.asarray(came, float) @ image.transpose(2, 0, 1).ravel()
        hint = "Turn the rows into height x width x channels first; then move the channels."
        if np.array_equal(came, kernel.T):
            hint = "A transpose alone leaves the inputs in Keras' order, channels fastest."
        elif np.allclose(np.asarray(came, float) @ image.transpose(2, 1, 0).ravel(), right):
            hint = "Height and width have changed places."
        expect_close(made, right, f"the outputs of the Keras layer for {case}", hint, 1e-9)
    return (
        "With 1 x 1 pixels a transpose is enough: a test with that case alone would prove little."
    )


def exercise_53_3(corrected: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that a mean over ranks becomes the mean of all samples.

    Args:
        corrected: called with the communicator, this rank's gradients (one row a sample, perhaps
            none) and a function that averages an array over ranks, as DistributedDataParallel
            does; returns the mean of all samples' gradients.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(corrected)
    ranks = cluster.ranks
    random = np.random.default_rng(54)
    for name, counts in (
        ("equal parts", [4] * ranks),
        ("unequal parts", [3 + 4 * rank for rank in range(ranks)]),
        ("a rank without samples", [0] * (ranks > 1) + [5] * (ranks - (ranks > 1))),
    ):
        rows = [random.normal(1.0 + rank, 1.0, (count, 3)) for rank, count in enumerate(counts)]
        both = results(cluster, _with_average, [(corrected, each) for each in rows])
        calls = [calls for _, calls in both]
        hint = "All ranks must call `average` equally often, here once, or the others wait."
        expect(calls == [1] * ranks, f"one call of `average` on each rank for {name}", calls, hint)
        right = np.concatenate(rows).mean(axis=0)
        for rank, (came, _) in enumerate(both):
            naive = np.mean([r.mean(axis=0) if len(r) else np.zeros(3) for r in rows], axis=0)
            hint = "Add up your rows; multiply by the ranks, divide by the samples of *all* ranks."
            if (
                np.shape(came) == (3,)
                and np.allclose(came, naive)
                and not np.allclose(naive, right)
            ):
                hint = (
                    "That is the mean of the ranks' means: a rank with few samples weighs too much."
                )
            elif np.shape(came) == (3,) and ranks > 1 and np.allclose(came, right / ranks):
                hint = "`average` divides by the ranks: your part must be that much larger."
            expect_close(
                came, right, f"the mean of all samples for {name}, rank {rank}", hint, 1e-9
            )
    return "So the loss is scaled before the backward pass, and no program after it has to know."


def _with_average(comm: Any, corrected: Callable[..., Any], rows: np.ndarray) -> Any:
    """Call the learner's function on this rank and count its calls of `average`."""
    calls = []

    def average(array: Any) -> np.ndarray:
        calls.append(1)
        return np.sum(comm.allgather(np.asarray(array, float)), axis=0) / comm.size

    came = corrected(comm, rows, average)
    return came if came is Ellipsis else (came, len(calls))


def exercise_53_4(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which symptom of distributed training with PyTorch.

    Args:
        causes: for each symptom a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "Three of them stand in the thesis' scripts and logs, and none of these is the exchange."
