"""Checks of the exercises of notebook 24: bytes, errors, break-even, fusion, meetings on ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_reason
from dlguide.exercises.on_ranks import results

WHOLE_BELOW = 256  # numbers; smaller arrays are sent as they are
MNIST_CNN = ((5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (1024, 128), (128,), (128, 10), (10,))

# The reasons of 24-3 that are wrong.
SPEAKS_AGAINST = {
    "A": "The seconds of coding are the same in your formula, whatever the ranks.",
    "C": "Accuracy does not stand in the formula: it compares two times.",
    "D": "What one link can carry does not depend on how many there are.",
}


def exercise_24_1(nbytes: Callable[..., Any]) -> str:
    """Check the bytes that one rank hands over in a step with top-k.

    Args:
        nbytes: called with a list of shapes of float32 arrays and the fraction k / n, returns
            the bytes of a step.

    Returns:
        str: what it means.
    """
    expect_function(nbytes)
    cases: list[tuple[str, Sequence[tuple[int, ...]], float]] = [
        ("one matrix", [(1024, 128)], 0.01),
        ("an array of which less than one number would be sent", [(20, 20)], 0.001),
        ("a bias", [(128,)], 0.01),
        ("three numbers of four", [(300, 10)], 0.75),
        ("the whole network", MNIST_CNN, 0.01),
        ("the whole network", MNIST_CNN, 0.1),
    ]
    for name, shapes, fraction in cases:
        came = answered(nbytes(list(shapes), fraction))
        right = sum(_top_k_nbytes(math.prod(shape), fraction) for shape in shapes)
        sizes = [math.prod(shape) for shape in shapes]
        values = sum(4 * max(1, round(fraction * size)) for size in sizes)
        hint = "Sum over arrays: 8 bytes for each number sent, 4 for each of an array sent whole."
        if name == "a bias":
            hint = f"Arrays of fewer than {WHOLE_BELOW} numbers are sent whole."
        elif name.startswith("three"):
            hint = "Here the message would be larger than the array: then it is sent whole."
        elif name.startswith("an array"):
            hint = "At least one number is sent, with its place."
        elif came == values:
            hint = "The places travel as well: 4 bytes each."
        expect(came == right, f"the bytes of {name}, {fraction:.1%} sent", came, hint)
    return (
        "1 % of the numbers is 2.1 % of the bytes here: the places cost as much as the numbers, "
        "and the biases go whole."
    )


def exercise_24_2(step: Callable[..., Any]) -> str:
    """Check a step of top-k with error feedback.

    Args:
        step: called with a gradient (array), the error of the steps before (array) and k, returns
            what is sent, an array of the gradient's shape with k numbers and zeros, and the new
            error.

    Returns:
        str: what it means.
    """
    expect_function(step)
    random = np.random.default_rng(24)
    for shape, k in (((12,), 3), ((40,), 1), ((6, 5), 7), ((4,), 4)):
        error, given, sent_all = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        for number in range(1, 5):
            gradient = random.normal(size=shape)
            before = gradient.copy(), error.copy()
            came = answered(step(gradient, error, k))
            two = isinstance(came, tuple | list | np.ndarray) and len(came) == 2
            expect(two, "two arrays: what is sent, and the new error", came)
            kept = np.array_equal(gradient, before[0]) and np.array_equal(error, before[1])
            hint = "Work on a copy: the caller still needs them."
            expect(kept, "gradient and error as they were given", "changed ones", hint)
            sent, error = (np.array(each, float) for each in came)
            total = before[0] + before[1]
            right = _largest(total, k)
            case = f"{k} of {total.size} numbers, step {number}"
            hint = "Choose the largest of gradient + error."
            if np.array_equal(sent, _largest(before[0], k)):
                hint = "Add the error to the gradient first, then choose."
            elif sent.shape == shape and np.count_nonzero(sent) == k:
                hint = "The largest by absolute value: -3 is large."
            expect_close(sent, right, f"what is sent, {case}", hint, 1e-9)
            hint = "All that was not sent stays: gradient + old error - sent."
            if np.allclose(error, before[0] - sent) and number > 1:
                hint = "The old error is lost: it belongs to what was to be sent."
            expect_close(error, total - right, f"the new error, {case}", hint, 1e-9)
            given, sent_all = given + before[0], sent_all + sent
        expect_close(sent_all + error, given, "all that was given", "Something is lost.", 1e-9)
    return "Sent + kept = given, at every step: nothing is lost, it is only late."


def exercise_24_3(break_even: Callable[..., Any], why: Any) -> str:
    """Check below which speed of a link compression pays, and why more ranks end that.

    Args:
        break_even: called with the bytes of the gradient, those of the compressed message, the
            number of ranks and the seconds that coding takes in a step, returns the speed of a
            link (bytes/s) at which both ways are equally fast; 0 where compression never pays.
        why: the letter of the reason.

    Returns:
        str: what it means.
    """
    expect_function(break_even)
    gradient = 4 * 25_557_032
    for message, ranks, coding_s in (
        (0.02 * gradient, 2, 0.1),
        (0.02 * gradient, 16, 0.1),
        (0.02 * gradient, 64, 0.05),
        (0.02 * gradient, 100, 0.1),
        (0.02 * gradient, 256, 0.1),
        (gradient / 32, 8, 0.01),
    ):
        came = answered(break_even(gradient, message, ranks, coding_s))
        expect(isinstance(came, float | int | np.number), "a number", came)
        ring, gathered = 2 * (ranks - 1) / ranks * gradient, (ranks - 1) * message
        right = max(0.0, ring - gathered) / coding_s
        hint = "Equal: ring bytes / speed = gathered bytes / speed + coding. Solve for the speed."
        case = f"for {ranks} ranks, a message of {message / gradient:.1%}, {coding_s} s of coding"
        if right == 0:
            hint = "The others' messages are more than the whole ring: no speed helps. Return 0."
        elif np.isclose(came, (gradient - message) / coding_s):
            hint = "What leaves a rank: 2 (p - 1)/p n for a ring, (p - 1) m for gathered messages."
        elif np.isclose(came, max(0.0, ring - message) / coding_s):
            hint = "What is gathered grows with the ranks: each message goes to all others."
        elif np.isclose(came, max(0.0, gradient - gathered) / coding_s):
            hint = "A ring sends nearly twice the gradient: 2 (p - 1)/p n."
        # 0 is the border itself at 100 ranks, which rounding may put on either side
        near = 1e-6 * ring / coding_s
        expect(abs(came - right) <= near, f"the speed of a link {case}", came, hint)
    expect_reason(answered(why), "B", SPEAKS_AGAINST, "why it stops to pay with many ranks")
    return (
        "With 2 ranks 1 % top-k pays on slow links; with 100 ranks it pays on none, whatever the "
        "link. What is summed on its way (fp16, PowerSGD) has no such border."
    )


def exercise_24_4(fuse: Callable[..., Any]) -> str:
    """Check how tensors are put together to messages.

    Args:
        fuse: called with the sizes of tensors (bytes), in the order in which they become ready,
            and the threshold (bytes), returns the sizes of the messages, in order.

    Returns:
        str: what it means.
    """
    expect_function(fuse)
    random = np.random.default_rng(24)
    cases = [
        ([10, 10, 10], 25), ([10, 10, 10, 10], 20), ([30, 1, 1], 20), ([1, 30, 1], 20),
        ([5, 15], 20), ([7], 0), ([3, 4, 5], 0), ([], 20),
        (random.integers(1, 100, 40).tolist(), 128),
    ]  # fmt: skip
    for sizes, threshold in cases:
        came = answered(fuse(list(sizes), threshold))
        right = _fused(sizes, threshold)
        came = came.tolist() if isinstance(came, np.ndarray) else came
        expect(isinstance(came, list | tuple), "a list of sizes", came)
        came = list(came)
        case = f"of {sizes[:8]}{' ...' if len(sizes) > 8 else ''}, threshold {threshold}"
        hint = "Fill a message in order; begin the next when one more tensor would be too much."
        if sum(came) != sum(sizes):
            hint = "Some bytes are lost or sent twice: is the last message there?"
        elif threshold == 0:
            hint = "A threshold of 0 switches fusion off: each tensor goes alone."
        elif any(size > max(threshold, *sizes) for size in came):
            hint = "A message is larger than the threshold, though it holds several tensors."
        elif came == _fused(sizes, threshold - 1):
            hint = "Equal to the threshold still fits."
        elif max(sizes) > threshold:
            hint = "A tensor above the threshold goes alone, nothing is put to it."
        expect(came == right, f"the messages {case}", came, hint)
    return "From one message for each tensor to a few: the bytes are the same, the latencies not."


def exercise_24_5(train: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks the weights, the bytes and the drift of local SGD.

    Args:
        train: called with the communicator, the weights (equal on all ranks), a function
            (weights, step) -> this rank's gradient, the rate, the number of steps and H; returns
            this rank's weights, the bytes it has handed to the sum, and for each meeting the
            largest distance of its weights from their mean just before.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(train)
    for steps, every in ((4, 9), (6, 2), (6, 1), (7, 3)):
        rate, ranks = 0.25, cluster.ranks
        start = np.random.default_rng(24).normal(size=(3, 4))
        inputs = [(start, _Gradient(rank), rate, steps, every) for rank in range(ranks)]
        came = results(cluster, train, inputs)
        stack, drifts = np.stack([start] * ranks), []
        for number in range(steps):
            stack = stack - rate * np.stack([_Gradient(r)(stack[r], number) for r in range(ranks)])
            if (number + 1) % every == 0 or number + 1 == steps:
                drifts.append(np.abs(stack - stack.mean(0)).reshape(ranks, -1).max(1))
                stack = np.stack([stack.mean(0)] * ranks)
        case = f"{steps} steps, H = {every}, {ranks} ranks"
        for rank, each in enumerate(came):
            three = isinstance(each, tuple | list) and len(each) == 3
            expect(three, "three things: weights, bytes, drifts", each)
            weights, sent, own = each
            hint = "Every H steps, and once at the end, but not twice."
            met = np.shape(own) == (len(drifts),)
            expect(met, f"{len(drifts)} meetings with {case}", f"{np.shape(own)}", hint)
            hint = "Each rank walks with its own gradient; at a meeting all take the mean."
            if ranks > 1 and np.allclose(weights, ranks * stack[0]):
                hint = "`Allreduce` gives the sum; divide it by the ranks."
            elif rank and np.allclose(came[0][0], stack[0]):
                hint = "Only rank 0 has the mean: all must have it."
            expect_close(weights, stack[rank], f"the mean of all ranks, {case}", hint, 1e-9)
            hint = "The whole array, once for each meeting."
            right = len(drifts) * start.nbytes
            expect(sent == right, f"the bytes of rank {rank}, {case}", sent, hint)
            hint = "Measured before the weights are replaced by the mean, as absolute values."
            right = [drift[rank] for drift in drifts]
            expect_close(own, right, f"the drift of rank {rank}, {case}", hint, 1e-9)
    return (
        "1 / H of the bytes. The drift grows with H: between meetings every rank follows its own "
        "samples, and that is the price."
    )


class _Gradient:
    """The gradient of a rank's own bowl, with its middle at another place for each rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __call__(self, weights: np.ndarray, step: int) -> np.ndarray:
        return (weights - self.rank) * (1 + 0.5 * self.rank) + 0.1 * step


def _top_k_nbytes(size: int, fraction: float) -> int:
    message = 8 * max(1, round(fraction * size))
    return 4 * size if size < WHOLE_BELOW or message >= 4 * size else message


def _largest(array: np.ndarray, k: int) -> np.ndarray:
    sent = np.zeros(array.size)
    places = np.argsort(-np.abs(array), axis=None)[:k]
    sent[places] = array.reshape(-1)[places]
    return sent.reshape(array.shape)


def _fused(sizes: Sequence[int], threshold: int) -> list[int]:
    messages: list[int] = []
    for size in sizes:
        if messages and threshold and messages[-1] + size <= threshold:
            messages[-1] += size
        else:
            messages.append(size)
    return messages
