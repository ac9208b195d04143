"""Exercises of lesson 20: rates and steps, small batches, throughput, faults of a training on ranks."""

from __future__ import annotations

from functools import partial
from math import ceil

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

IMAGENET, PARAMETERS = 1_281_167, 25_557_032  # training images; weights of ResNet-50


def adapt(ranks, samples, batch, rate):
    steps = ceil(samples / (ranks * batch))
    return rate * ranks, steps, samples - (steps - 1) * ranks * batch


def in_pieces(gradient, samples, piece):
    pieces = np.split(np.arange(samples), range(piece, samples, piece))
    return sum(len(part) * gradient(part) for part in pieces) / samples


def call_in_pieces(answer, samples, piece):
    """The answer's mean, the samples that it asked for, and whether each piece was small enough."""
    rows = np.random.default_rng(21).normal(np.arange(samples)[:, None], 1.0, (samples, 4))
    seen, small = [], []

    def gradient(indices):
        indices = np.asarray(indices)
        small.append(1 <= len(indices) <= piece)
        seen.extend(indices.tolist())
        return rows[indices].mean(axis=0)

    return answer(gradient, samples, piece), sorted(seen), all(small)


def each_piece(mean, step=lambda piece: piece, stop=lambda samples, piece: samples):
    """A mistaken `in_pieces`: pieces begin every `step`, before `stop`, and are averaged by `mean`."""

    def mistaken(gradient, samples, piece):
        begins = range(0, stop(samples, piece), max(1, step(piece)))
        return mean([gradient(range(i, min(i + piece, samples))) for i in begins], axis=0)

    return mistaken


def images_per_s(ranks, batch, image_s, nbytes, bytes_per_s):
    exchange_s = 2 * (ranks - 1) / ranks * nbytes / bytes_per_s
    return ranks * batch / (batch * image_s + exchange_s)


SPEEDS = [(128, 1 / 207.79, 4 * PARAMETERS, 1e9), (50, 1e-3, 738_344, 2e9)]


def efficiencies():
    large, small = (
        images_per_s(32, batch, *SPEEDS[0][1:]) * SPEEDS[0][1] / 32 for batch in (128, 32)
    )
    return (
        f"ResNet-50 on 32 ranks over a link of 1e9 bytes/s: an efficiency of {large:.0%} with batches "
        f"of 128, and of {small:.0%} with batches of 32."
    )


def corrected(comm, order, batch, rate, gradient, first_weights):
    from mpi4py import MPI

    weights = first_weights(comm.rank)
    comm.Bcast(weights)
    global_batch = comm.size * batch
    for begin in range(0, len(order), global_batch):
        step = gradient(weights, order[begin : begin + global_batch][comm.rank :: comm.size])
        comm.Allreduce(MPI.IN_PLACE, step)
        weights -= rate * step / global_batch
    return weights


def regression(ranks):
    """One case: the order of the samples, batch, rate, gradient and first weights, equal on all ranks."""
    random = np.random.default_rng(22)
    x, y = random.normal(size=(20 * ranks, 3)), random.normal(size=20 * ranks)

    def gradient(weights, indices):
        return x[indices].T @ (x[indices] @ weights - y[indices])

    def first_weights(seed):
        return np.random.default_rng(seed).normal(size=3)

    return [[(random.permutation(len(y)), 5, 0.05, gradient, first_weights)] * ranks]


def serial(inputs, shards=True, factor=1, first=0):
    """The weights of all ranks, trained in one process; `factor` lengthens the steps."""
    order, batch, rate, gradient, first_weights = inputs[0]
    batch *= len(inputs) if shards else 1
    weights = first_weights(0)
    for begin in range(0, len(order), batch):
        weights = weights - rate * factor * gradient(weights, order[begin : begin + batch]) / batch
    return [weights + first * rank for rank in range(len(inputs))]


EXERCISES = {
    "20-1": Exercise(
        adapt,
        cases=[
            *((1, 60_000, 100, 0.1), (2, 60_000, 100, 0.1), (4, 60_000, 100, 0.1)),
            *((2, 101, 10, 0.1), (3, 100, 7, 0.1), (24, IMAGENET, 128, 0.1)),
        ],
        hint="How many samples does one step of all ranks use up? The last step may be short.",
        mistakes={
            "The linear rule, for SGD.": lambda p, n, b, r: (r, *adapt(p, n, b, r)[1:]),
            "The last step may be short: round up.": lambda p, n, b, r: (r * p, n // (p * b), b * p),
            "These are the steps of one rank alone.": lambda p, n, b, r: (r * p, ceil(n / b), b),
            "Take away what all the steps before it used. It is never 0.": (
                lambda p, n, b, r: (*adapt(p, n, b, r)[:2], n % (p * b))
            ),
        },
        remark=f"On 24 ranks with 128 ImageNet images each, the last step has {adapt(24, IMAGENET, 128, 1)[2]}"
        f" images instead of {24 * 128}, and yet the rate of {24 * 128}.",
    ),
    "20-2": Exercise(
        in_pieces,
        call=call_in_pieces,
        cases=[(100, 25), (101, 25), (10, 10), (3, 10), (7, 1)],
        relative=1e-9,
        hint="Every sample once, in pieces of at most `piece`.",
        mistakes={
            "Is the last piece as long as the others? Weigh each with its length.": each_piece(np.mean),
            "Pieces of at most `piece` samples, please.": lambda g, n, k: g(np.arange(n)),
            "Where does a piece begin? Some samples were used twice.": (
                each_piece(np.mean, lambda piece: piece - 1)
            ),
            "Some samples were never used: the last piece may be shorter.": (
                each_piece(np.mean, stop=lambda n, k: n - k + 1)
            ),
            "Divide by the number of samples: the mean was asked for.": each_piece(np.sum),
        },
        remark="So a rank with little memory can take part in a large batch: it only needs more time.",
    ),
    "20-3": Exercise(
        images_per_s,
        cases=[(ranks, *speed) for ranks in (1, 2, 3, 4, 32) for speed in SPEEDS],
        relative=1e-9,
        hint="Images of all ranks in one step, divided by the seconds of that step.",
        mistakes={
            "These are the images of one rank. How many do all of them process?": (
                lambda p, *rest: images_per_s(p, *rest) / p
            ),
            "`batch` is that of one rank here: more ranks do not make it smaller.": (
                lambda p, b, *rest: images_per_s(p, b / p, *rest)
            ),
            "One rank exchanges nothing, two exchange (p - 1) / p of the gradient, twice.": (
                lambda p, b, s, n, w: p * b / (b * s + n / w)
            ),
            "Each part is sent twice: once to be added, once as the sum.": (
                lambda p, b, s, n, w: images_per_s(p, b, s, n / 2, w)
            ),
        },
        remark=efficiencies,
    ),
    "20-4": [
        Letters(
            {
                "weights": ("A", "Section 4 has three curves. Which one belongs to a missing broadcast?"),
                "mine": ("B", "Every rank goes through all of `order`. How many steps are that?"),
                "step": ("C", "A sum of two gradients instead of their mean: how far is the step?"),
            }
        ),
        Exercise(
            corrected,
            ranks=(2, 3),
            cases=regression,
            serial=serial,
            relative=1e-9,
            hint="Is the first step right? Start from `first_weights(0)` and keep the order of `order`.",
            mistakes={
                "Which weights does each rank start from? All need those of rank 0.": (
                    partial(serial, first=0.1)
                ),
                "Every rank uses all samples: which rank takes which part of `order`?": (
                    partial(serial, shards=False)
                ),
                "The steps are as many times too long as there are ranks: a sum, or a mean?": (
                    lambda inputs: serial(inputs, factor=len(inputs))
                ),
                "Two faults are left: the samples of each rank, and a sum or a mean.": (
                    lambda inputs: serial(inputs, shards=False, factor=len(inputs))
                ),
            },
            remark="On one rank none of the three faults would have shown: test on two or more.",
        ),
    ],
}
