"""Checks of notebook 25's exercises: rate, warmup, momentum, last batch, training on ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

IMAGENET = 1_281_167  # training images of ILSVRC 2012

# The sentences of 25-4 that do not hold.
SPEAKS_AGAINST = {
    "A": "What does u <- m u + g keep of a gradient in the next step?",
    "B": "0.9 of it is left after a step. And after fifty of them?",
    "C": "Keras and PyTorch leave it out only when they are told to.",
}


def exercise_25_1(rate: Callable[..., Any]) -> str:
    """Check the linear scaling rule.

    Args:
        rate: called with the rate and the global batch it was found for, the number of workers
            and the images of one worker in a step, returns the rate to train with.

    Returns:
        str: what it means.
    """
    expect_function(rate)
    for base_rate, base_batch, workers, batch in (
        (0.1, 256, 32, 128),
        (0.1, 256, 24, 128),
        (0.1, 256, 32, 32),
        (0.1, 256, 1, 128),
        (0.05, 32, 16, 32),
    ):
        came = answered(rate(base_rate, base_batch, workers, batch))
        times = workers * batch / base_batch
        case = f"the rate for {workers} x {batch} images, {base_rate:g} for {base_batch}"
        hint = "The global batch counts, all workers together, against the one of the old rate."
        if _is(came, base_rate * workers):
            hint = "The workers alone do not count: a worker may take more or fewer images."
        elif _is(came, base_rate * batch / base_batch):
            hint = "All workers share one step: multiply by them, too."
        elif _is(came, base_rate * math.sqrt(times)):
            hint = "The root is a rule for Adam; for gradient descent it is linear."
        elif _is(came, base_rate / times):
            hint = "Upside down: a larger batch wants a larger rate."
        expect_close(came, base_rate * times, case, hint, 1e-6)
    return (
        "The thesis trains with these. Its appendix 9 prints 1.4 for 24 workers and the code of "
        "appendix 11 would give 1.6 for batches of 32: recompute what you copy."
    )


def exercise_25_2(warmup: Callable[..., Any]) -> str:
    """Check the rates of the three warmups, step by step.

    Args:
        warmup: called with the kind, the first rate, the rate after the warmup, its length in
            epochs and the steps of an epoch, returns the rates of its steps (array).

    Returns:
        str: what it means.
    """
    expect_function(warmup)
    for kind in ("constant", "stepping", "gradual"):
        for start, rate, epochs, steps in ((0.05, 0.8, 3, 20), (0.1, 1.6, 5, 4), (0.2, 0.4, 1, 6)):
            came = answered(warmup(kind, start, rate, epochs, steps))
            right = _warmup(kind, start, rate, epochs, steps)
            case = f"the rates of a {kind} warmup, {epochs} epochs of {steps} steps"
            expect_close(came, right, case, _warmup_hint(kind, came, start, rate, epochs, steps))
    return (
        "Goyal et al. warm up gradually, at every step. What the guide calls constant is this "
        "stepping, and what the thesis calls gradual rises once an epoch only."
    )


def exercise_25_3(step: Callable[..., Any]) -> str:
    """Check a step of momentum whose velocity holds the rate, when the rate changes.

    Args:
        step: called with weights, velocity, gradient (arrays), the rate, the rate of the step
            before and the momentum, returns the new weights and the new velocity.

    Returns:
        str: what it means.
    """
    expect_function(step)
    random = np.random.default_rng(25)
    momentum, rates = 0.9, (0.1, 0.1, 0.2, 0.8, 0.8, 0.08)
    weights, velocity, before = random.normal(size=(3, 4)), np.zeros((3, 4)), rates[0]
    walked, plain = weights.copy(), np.zeros((3, 4))
    for number, rate in enumerate(rates, start=1):
        gradient = random.normal(size=(3, 4))
        given = weights.copy(), velocity.copy(), gradient.copy(), rate, before, momentum
        came = answered(step(*given))
        two = isinstance(came, tuple | list | np.ndarray) and len(came) == 2
        expect(two, "two arrays: the new weights and the new velocity", came)
        old, times = velocity, rate / before
        plain = momentum * plain + gradient
        walked = walked - rate * plain
        hint = "v <- m (new rate / old rate) v - new rate x gradient."
        if np.allclose(came[1], momentum * old - rate * gradient):
            hint = "The steps in the velocity were made with the old rate: correct them."
        elif np.allclose(came[1], momentum / times * old - rate * gradient):
            hint = "Upside down: after a rise of the rate the old steps are too short."
        elif np.allclose(came[1], times * (momentum * old - rate * gradient)):
            hint = "Correct the old velocity only: the gradient has the new rate already."
        case = f"step {number}, where the rate goes from {before:g} to {rate:g}"
        expect_close(came[1], -rate * plain, f"the velocity, {case}", hint, 1e-9)
        expect_close(came[0], walked, f"the weights, {case}", "w <- w + v.", 1e-9)
        weights, velocity, before = np.array(came[0]), np.array(came[1]), rate
    return (
        "These are the weights of u <- m u + g, w <- w - rate u, which needs no correction: "
        "`optimizers.momentum_sgd` is of that form."
    )


def exercise_25_4(times_too_large: Callable[..., Any], why: Any) -> str:
    """Check how much too large the rate is for the last batch, and how long that is felt.

    Args:
        times_too_large: called with the training images, the images of a worker in a step and
            the workers, returns by how much.
        why: the letter of the sentence that holds.

    Returns:
        str: what it means.
    """
    expect_function(times_too_large)
    cases = [(IMAGENET, 128, workers) for workers in (1, 8, 16, 24, 32)]
    for samples, batch, workers in (*cases, (IMAGENET, 32, 32), (1024, 32, 8), (100, 10, 4)):
        came = answered(times_too_large(samples, batch, workers))
        own = -(-samples // workers)
        last = own % batch or batch
        case = f"the factor for {samples} images, {workers} x {batch} a step"
        hint = "Images of a worker in a full step, over those in its last one."
        if own % batch == 0:
            hint = "Here the last batch is full, and the rate is right for it: 1."
        elif _is(came, last / batch):
            hint = "Upside down: the last batch is the smaller one."
        elif _is(came, last):
            hint = "These are the images of the last step; how much too large is the rate?"
        elif _is(came, batch / (samples // workers % batch or batch)):
            hint = "Nobody leaves an image out: each worker has its share rounded up."
        expect_close(came, batch / last, case, hint, 1e-6)
    expect_reason(answered(why), "D", SPEAKS_AGAINST, "how long the last step is felt")
    return (
        "With 24 workers the rate of 1.2 is 21 times too large for the last step, more than for "
        "any other number of workers in the thesis, and validation comes directly after it."
    )


def exercise_25_5(train: Callable[..., Any], cluster: Any) -> str:
    """Check a large-batch training on the ranks of a cluster.

    Args:
        train: called with the communicator, weights (array), a function that gives the mean
            gradient of some samples, this rank's samples (array), the samples of a step, the
            rate of one rank, the steps of the warmup and the momentum, returns the weights.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(train)
    ranks, batch, rate, momentum = cluster.ranks, 4, 0.02, 0.9
    random = np.random.default_rng(25)
    start = random.normal(size=3)
    # the last step has another number of samples on each rank
    samples = [random.normal(rank, 1 + rank, (4 * batch + 1 + rank, 3)) for rank in range(ranks)]
    for warmup in (1, 4):
        inputs = [(start, _mean_gradient, own, batch, rate, warmup, momentum) for own in samples]
        came = results(cluster, train, inputs)
        right = _serial(start, samples, batch, rate, warmup, momentum)
        case = f"warmup of {warmup} steps, {ranks} ranks"
        for rank, weights in enumerate(came):
            hint = "Mean gradient of all ranks' samples, velocity, rate of this step."
            for fault, words in _FAULTS.items():
                other = _serial(start, samples, batch, rate, warmup, momentum, fault)
                if near(weights, other, 1e-5) and not near(other, right, 1e-5):
                    hint = words
            expect_close(weights, right, f"the weights of rank {rank}, {case}", hint, 1e-9)
    return (
        "One process with the global batch, the scaled rate and this warmup has the same "
        "weights: the ranks have changed nothing but the time."
    )


_FAULTS = {
    "unscaled": "The rate leads up to ranks x the rate of one rank.",
    "cold": "In step t < warmup the rate is t / warmup of its way from the one to the other.",
    "mean of means": "Ranks hold unequal numbers of samples in the last step: weigh by them.",
    "sum": "The sum of all ranks' gradients must be divided by all their samples.",
    "inside": "With the rate in the velocity a change of the rate must be corrected.",
}


def _serial(
    weights: np.ndarray,
    samples: Sequence[np.ndarray],
    batch: int,
    rate: float,
    warmup: int,
    momentum: float,
    fault: str = "",
) -> np.ndarray:
    """Train one process with the samples that all ranks take in each step."""
    velocity, ranks = np.zeros_like(weights), len(samples)
    for step in range(math.ceil(len(samples[0]) / batch)):
        taken = [own[step * batch : (step + 1) * batch] for own in samples]
        counts = np.array([len(one) for one in taken], float)
        weighing = np.ones(ranks) / ranks if fault == "mean of means" else counts / counts.sum()
        weighing = np.ones(ranks) if fault == "sum" else weighing
        each = [_mean_gradient(weights, one) for one in taken]
        gradient = sum(w * one for w, one in zip(weighing, each, strict=True))
        done = 1.0 if fault == "cold" else min(1.0, step / warmup)
        times = 1.0 if fault == "unscaled" else 1 + (ranks - 1) * done
        inside = rate * times if fault == "inside" else 1.0
        velocity = momentum * velocity + inside * gradient
        weights = weights - (velocity if fault == "inside" else rate * times * velocity)
    return weights


def _mean_gradient(weights: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """Give the mean gradient of |weights - sample|^2 / 2 + a term that differs in each weight."""
    return (weights - samples).mean(0) + 0.1 * np.arange(len(weights)) * weights


def _warmup(kind: str, start: float, rate: float, epochs: int, steps: int) -> np.ndarray:
    step = np.arange(epochs * steps)
    if kind == "constant":
        return np.full(len(step), start)
    if kind == "stepping":
        return rate * (step // steps + 1) / (epochs + 1)
    return start + (rate - start) * step / len(step)


def _warmup_hint(kind: str, came: Any, start: float, rate: float, epochs: int, steps: int) -> str:
    step = np.arange(epochs * steps)
    stairs = step // steps
    if kind == "constant":
        if near(came, start + (rate - start) * stairs / epochs, 1e-5) or near(
            came, _warmup("stepping", start, rate, epochs, steps), 1e-5
        ):
            return "It rises nowhere: it holds the first rate, and jumps when the warmup is over."
        return "The first rate, all the time."
    if kind == "stepping":
        if near(came, rate * (stairs + 1) / epochs, 1e-5):
            return "The last stair is one below the rate: there are epochs + 1 stairs."
        if near(came, rate * stairs / epochs, 1e-5):
            return "It begins one stair above 0, at rate / (epochs + 1)."
        return "One stair an epoch: rate x 1, 2, ... over (epochs + 1)."
    if near(came, start + (rate - start) * stairs / epochs, 1e-5):
        return "This rises once an epoch: Goyal's rises at every step."
    if near(came, np.linspace(start, rate, len(step)), 1e-5):
        return "The full rate belongs to the first step after the warmup."
    return "A straight line: start + (rate - start) x step / all steps of the warmup."


def _is(came: Any, value: float) -> bool:
    return isinstance(came, int | float | np.number) and bool(np.isclose(float(came), value))
