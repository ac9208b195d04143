"""Checks of the exercises of notebook 80: PSNR, copies through one GPU, one message, causes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

CAUSES = {
    "2.1 GB": ("C", "Divide the bytes by the parameters: how many numbers is that for each?"),
    "15.5 GB": ("A", "What does an optimizer remember, and on which GPU does it stand?"),
    "2.8 times": ("E", "Which part of a step takes longer the more GPUs there are?"),
    "caption": ("B", "Compare the caption with what the columns hold."),
    "blur": ("F", "Which single picture has the smallest error if two futures may come?"),
    "held out": ("D", "What do two clips of one drive have in common?"),
}


def exercise_80_1(psnr: Callable[..., Any]) -> str:
    """Check the peak signal-to-noise ratio of pixels as they come from a file.

    Args:
        psnr: called with two arrays of uint8 of one shape, returns decibels.

    Returns:
        str: what it means.
    """
    expect_function(psnr)
    random = np.random.default_rng(80)
    truth = random.integers(0, 256, (6, 16, 16, 3)).astype(np.uint8)
    for name, spread in (("a small error", 3), ("a large error", 60)):
        noisy = np.clip(truth + random.normal(0, spread, truth.shape), 0, 255).astype(np.uint8)
        error = truth.astype(float) - noisy
        right = 10 * np.log10(255**2 / np.mean(error**2))
        came = answered(psnr(truth.copy(), noisy))
        wrapped = 10 * np.log10(255**2 / np.mean((truth - noisy).astype(float) ** 2))
        squares = 10 * np.log10(255**2 / np.mean((truth - noisy) ** 2))
        hint = "10 log10 of the squared range, 255 * 255, over the mean of the squared error."
        if near(came, wrapped) or near(came, squares):
            hint = "3 - 5 is 254 in uint8: turn the pixels into floats first."
        elif near(came, right * np.log(10)):
            hint = "Decibels are made with the logarithm to base 10."
        elif near(came, right / 2) or near(came, 2 * right):
            hint = "10 log10 of squares, or 20 log10 of their roots, but not both."
        elif near(came, right - 10 * np.log10(255**2)):
            hint = "The range of a pixel is 255 here, not 1."
        elif near(came, -right):
            hint = "The error stands below: a smaller one gives more decibels."
        expect_close(came, right, f"the decibels of {name}", hint, 1e-6)
    return "6 dB more are half the error, whatever the picture; 3 dB are half of its square."


def exercise_80_2(speedups: Callable[..., Any]) -> str:
    """Check the prediction of two ways to train on p GPUs, each with clips of its own.

    Args:
        speedups: called with GPUs p, time of one GPU's step (s), size of weights (and of
            gradients, bytes) and speed of a link (bytes/s); returns the speed-up of throughput
            over one GPU with replicas of GPU 0's nets and with a ring.

    Returns:
        str: what it means.
    """
    expect_function(speedups)
    cases = ((8, 0.5, 848e6, 20e9), (2, 0.1, 1.6e6, 1e9), (1, 0.3, 1e9, 1e9), (64, 0.2, 1e8, 1e10))
    for p, compute_s, nbytes, speed in cases:
        came = answered(speedups(p, compute_s, nbytes, speed))
        pair = isinstance(came, Sequence | np.ndarray) and len(came) == 2
        expect(pair, "two numbers: with replicas, with a ring", came, "Return a pair.")
        lent_s = 2 * (p - 1) * nbytes / speed
        ring_s = lent_s / p
        right = [p * compute_s / (compute_s + each) for each in (lent_s, ring_s)]
        case = f"{p} GPUs"
        hint = "GPU 0 sends its weights to each of p - 1 others, and gets a gradient from each."
        if near(came, right[::-1]) and p > 1:
            hint = "First with replicas, then with a ring."
        elif near(came, [one / p for one in right]) and p > 1:
            hint = "That is the efficiency: p GPUs work on p times as many clips."
        elif near(came[0], p * compute_s / (compute_s + lent_s / 2)) and p > 1:
            hint = "Weights go out and gradients come back: twice."
        elif near(came[0], p * compute_s / (compute_s + 2 * p * nbytes / speed)):
            hint = "GPU 0 needs no copy of its own nets: p - 1."
        expect_close(came[0], right[0], f"the speed-up with replicas of {case}", hint, 1e-6)
        hint = "In a ring every GPU sends 2 (p - 1) / p of the gradients, all at the same time."
        expect_close(came[1], right[1], f"the speed-up with a ring of {case}", hint, 1e-6)
    p, compute_s, nbytes, speed = cases[0]
    lent = p * compute_s / (compute_s + 2 * (p - 1) * nbytes / speed)
    ring = p * compute_s / (compute_s + 2 * (p - 1) / p * nbytes / speed)
    return (
        f"With {1e-6 * nbytes:.0f} MB, {compute_s} s a step and {1e-9 * speed:.0f} GB/s eight "
        f"GPUs reach {lent:.1f} with replicas and {ring:.1f} with a ring."
    )


def exercise_80_3(exchange: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that both nets' gradients become means of all clips in one message.

    Args:
        exchange: called with the communicator, two lists of arrays (gradients of the mean over
            this rank's clips: generator, discriminator), the number of those clips, and a
            function that sums one flat array over all ranks; returns two lists.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(exchange)
    ranks = cluster.ranks
    shapes = ([(3, 2), (4,)], [(5,), (2, 2), (1,)])
    for name, clips in (
        ("equal parts", [4] * ranks),
        ("unequal parts", [2 + 3 * rank for rank in range(ranks)]),
    ):
        random = np.random.default_rng(803)
        inputs = [
            (exchange, *([random.normal(rank, 1, shape) for shape in net] for net in shapes), count)
            for rank, count in enumerate(clips)
        ]
        weights = np.array(clips) / sum(clips)
        rights = [
            [sum(w * one[1 + net][at] for w, one in zip(weights, inputs, strict=True))
             for at in range(len(shapes[net]))]
            for net in (0, 1)
        ]  # fmt: skip
        for rank, (came, sums) in enumerate(results(cluster, _counted, inputs)):
            hint = "Lay all arrays of both lists into one flat array, sum that, and cut it again."
            expect(sums == 1, f"one sum for {name} on rank {rank}", f"{sums} sums", hint)
            pair = isinstance(came, list | tuple) and len(came) == 2
            hint = "Return the generator's list and the discriminator's."
            expect(pair, "two lists of arrays", type(came).__name__, hint)
            for net, title in enumerate(("generator", "discriminator")):
                fits = [np.shape(one) for one in came[net]] == shapes[net]
                hint = "Each array gets back its own shape, in the order of the list."
                shown = [np.shape(one) for one in came[net]]
                expect(fits, f"the shapes of the {title}, {shapes[net]}", shown, hint)
                for got, right, at in zip(came[net], rights[net], range(9), strict=False):
                    plain = np.mean([one[1 + net][at] for one in inputs], axis=0)
                    hint = "Multiply by this rank's clips before the sum."
                    if near(got, plain) and not near(plain, right):
                        hint = "That is the mean of ranks: one with few clips weighs too much."
                    elif near(got, right * sum(clips)):
                        hint = "Divide by the clips of all ranks: sum their number too."
                    elif near(got, right * sum(clips) / ranks) or near(got, right * ranks):
                        hint = "Divide by the clips of all ranks, not by the number of ranks."
                    expect_close(got, right, f"the {title}'s mean for {name}, rank {rank}", hint,
                                 1e-9)  # fmt: skip
    return "One message instead of one an array: the latency is paid once in a step."


def _counted(
    comm: Any,
    exchange: Callable[..., Any],
    generator: list[np.ndarray],
    discriminator: list[np.ndarray],
    clips: int,
) -> Any:
    """Call the learner's function on this rank and count its sums."""
    sums = []

    def total(array: Any) -> np.ndarray:
        sums.append(1)
        return np.sum(comm.allgather(np.asarray(array, float)), axis=0)

    came = exchange(comm, generator, discriminator, clips, total)
    return came if came is Ellipsis else (came, len(sums))


def exercise_80_4(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which observation of the video case.

    Args:
        causes: for each observation a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "Three of them are in the guide's tables; none needs a GPU to be understood."
