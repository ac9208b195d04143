"""Checks of the exercises of notebook 20: rates and steps, small batches, speed, faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

IMAGENET, PARAMETERS = 1_281_167, 25_557_032  # training images; weights of ResNet-50
RATE, BATCH, STEPS = 0.05, 5, 4
# 20-4, for each faulty line: what it alone would show, and what speaks against the rest
_STAY = "Section 4 has three curves. Which one belongs to a missing broadcast?"
_LONG = "A sum of two gradients in place of their mean: which way does the step go, how far?"
_SHARE = "Every rank goes through all of `order`. How many steps are that, and whose images?"
SEEN = {
    "weights": ("A", dict.fromkeys("BCDE", _STAY)),
    "mine": ("B", dict.fromkeys("ACDE", _SHARE)),
    "step": ("C", dict.fromkeys("ABDE", _LONG)),
}


def exercise_20_1(adapt: Callable[..., Any]) -> str:
    """Check how learning rate and steps follow the number of ranks.

    Args:
        adapt: called with ranks, samples, batch and the rate of one rank, returns the rate of
            SGD, the steps of an epoch, and the samples of the last step over all ranks.

    Returns:
        str: what it means.
    """
    expect_function(adapt)
    cases = [(1, 60_000, 100), (2, 60_000, 100), (4, 60_000, 100), (2, 101, 10), (3, 100, 7)]
    for ranks, samples, batch in [*cases, (24, IMAGENET, 128)]:
        came = answered(adapt(ranks, samples, batch, 0.1))
        expect(np.shape(came) == (3,), "three numbers: rate, steps, last samples", came)
        steps = math.ceil(samples / (ranks * batch))
        last = samples - (steps - 1) * ranks * batch
        case = f"for {ranks} ranks, {samples} samples and a batch of {batch} per rank"
        expect_close(came[0], 0.1 * ranks, f"the rate {case}", "The linear rule, for SGD.", 1e-9)
        hint = "How many samples does one step of all ranks use up? The last step may be short."
        expect(came[1] == steps, f"the steps of an epoch {case}", came[1], hint)
        hint = "Take away what all the steps before it used. It is never 0."
        expect(came[2] == last, f"the samples of the last step {case}", came[2], hint)
    return (
        f"On 24 ranks with 128 ImageNet images each, the last step has {last} images in place of "
        f"{24 * 128}, and yet the rate of {24 * 128}."
    )


def exercise_20_2(in_pieces: Callable[..., Any]) -> str:
    """Check that many small batches are added up to one large one.

    Args:
        in_pieces: called with a function (indices -> mean gradient of these samples), the
            number of samples and the largest piece, returns the mean gradient of all samples.

    Returns:
        str: what it means.
    """
    expect_function(in_pieces)
    random = np.random.default_rng(21)
    for samples, piece in ((100, 25), (101, 25), (10, 10), (3, 10), (7, 1)):
        rows = random.normal(np.arange(samples)[:, None], 1.0, (samples, 4))
        seen: list[int] = []

        def gradient(
            indices: Any, rows: np.ndarray = rows, seen: list[int] = seen, piece: int = piece
        ) -> np.ndarray:
            indices = np.asarray(indices)
            fits = 1 <= len(indices) <= piece
            expect(fits, f"pieces of 1 to {piece} samples", f"a piece of {len(indices)}")
            seen.extend(indices.tolist())
            return rows[indices].mean(axis=0)

        came = answered(in_pieces(gradient, samples, piece))
        once = sorted(seen) == list(range(samples))
        hint = f"{samples} samples in pieces of {piece}: the last piece may be shorter."
        if len(seen) > len(set(seen)):
            hint = f"{samples} samples in pieces of {piece}: where does a piece begin?"
        expect(once, "every sample once", f"{len(seen)} samples, {len(set(seen))} of them", hint)
        hint = "Is the last piece as long as the others? Weigh each with its length."
        expect_close(came, rows.mean(axis=0), f"the mean of all {samples} samples", hint, 1e-9)
    return "So a rank with little memory can take part in a large batch: it only needs more time."


def exercise_20_3(images_per_s: Callable[..., Any]) -> str:
    """Check the lesson's model of the throughput for any number of ranks.

    Args:
        images_per_s: called with ranks, the batch of a rank, the seconds of one image on one
            rank, the bytes of the gradient and the bytes per second of the exchange; returns
            the images per second of all ranks.

    Returns:
        str: what it means.
    """
    expect_function(images_per_s)
    speeds = {}
    for ranks in (1, 2, 3, 4, 32):
        for batch, image_s, nbytes, bytes_per_s in (
            (128, 1 / 207.79, 4 * PARAMETERS, 1e9),
            (32, 1 / 207.79, 4 * PARAMETERS, 1e9),
            (50, 1e-3, 738_344, 2e9),
        ):
            came = answered(images_per_s(ranks, batch, image_s, nbytes, bytes_per_s))
            exchange_s = 2 * (ranks - 1) / ranks * nbytes / bytes_per_s
            right = ranks * batch / (batch * image_s + exchange_s)
            speeds[ranks, batch] = right
            hint = "Images of all ranks in one step, divided by the seconds of that step."
            if ranks == 1:
                hint = "One rank exchanges nothing."
            elif near(came, right / ranks):
                hint = "These are the images of one rank. How many do all of them look at?"
            elif near(came, batch / (batch / ranks * image_s + exchange_s)):
                hint = "`batch` is that of one rank here: more ranks do not make it smaller."
            expect_close(came, right, f"the images/s of {ranks} ranks", hint, 1e-9)
    large, small = (speeds[32, batch] / (32 * speeds[1, batch]) for batch in (128, 32))
    return (
        f"ResNet-50 on 32 ranks over a link of 1e9 bytes/s: an efficiency of {large:.0%} with "
        f"batches of 128, and of {small:.0%} with batches of 32."
    )


def exercise_20_4(seen: Mapping[str, str], mended: Callable[..., Any], cluster: Any) -> str:
    """Check what three faults would show, and on real ranks that none is left.

    Args:
        seen: for each faulty line the letter of what one would see.
        mended: called with the communicator, the order of the samples, the batch of a rank, the
            learning rate, a function (weights, indices -> sum of the gradients) and a function
            (seed -> first weights); returns the weights after one epoch.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect(isinstance(seen, Mapping), "a dictionary from line to letter", seen)
    for line, (letter, hints) in SEEN.items():
        expect_reason(answered(seen.get(line)), letter, hints, f"what the line of {line!r} shows")
    expect_function(mended)
    ranks = cluster.ranks
    random = np.random.default_rng(22)
    samples = ranks * BATCH * STEPS
    x, y = random.normal(size=(samples, 3)), random.normal(size=samples)

    def gradient(weights: np.ndarray, indices: Any) -> np.ndarray:
        rows = x[indices]
        return rows.T @ (rows @ weights - y[indices])

    def first_weights(seed: int) -> np.ndarray:
        return np.random.default_rng(seed).normal(size=3)

    def alone(global_batch: int, factor: float) -> np.ndarray:
        weights = first_weights(0)
        for begin in range(0, samples, global_batch):
            part = order[begin : begin + global_batch]
            weights = weights - RATE * factor * gradient(weights, part) / len(part)
        return weights

    order = random.permutation(samples)
    inputs = (order, BATCH, RATE, gradient, first_weights)
    came = [np.asarray(each, float) for each in results(cluster, mended, [inputs] * ranks)]
    hint = "Return the weights, an array of three numbers."
    expect(all(each.shape == (3,) for each in came), "an array of shape (3,)", came, hint)
    spread = max(float(np.abs(each - came[0]).max()) for each in came)
    hint = "Who starts from which weights? They must be those of rank 0 on all ranks."
    expect(spread == 0, "equal weights on all ranks", f"weights {spread:.2g} apart", hint)
    hints = {
        (BATCH, 1.0): "Every rank uses all samples: who takes which ones of `order`?",
        (BATCH, float(ranks)): "Two faults are left: who takes which samples, and a sum or a mean?",
        (ranks * BATCH, float(ranks)): f"The step is {ranks} times too long: a sum, or a mean?",
    }
    for (global_batch, factor), hint in hints.items():
        same = ranks > 1 and np.allclose(came[0], alone(global_batch, factor), rtol=1e-9)
        expect(not same, "the weights of one process with the global batch", came[0], hint)
    right = alone(ranks * BATCH, 1.0)
    hint = "Is the first step right? Start from `first_weights(0)`, take `order` in its order."
    text = f"the weights of one process with the batch {ranks * BATCH}"
    expect_close(came[0], right, text, hint, 1e-9)
    if ranks == 1:
        return "But one rank alone hides all three faults: try it on two."
    return "On one rank none of the three faults would have shown: test on two or more."
