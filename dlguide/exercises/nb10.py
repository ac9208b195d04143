"""Checks of the exercises of notebook 10: rates, Adam, curves explained, noise, evolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import NotAnswered, answered, expect, expect_close, expect_function
from dlguide.exercises.on_ranks import results

# Each training of 10-3: its cause, and what tells it from the others.
CAUSES = {
    "A": (
        "rate too small",
        "It goes down in a straight line and has not arrived. What is so slow?",
    ),
    "B": ("rate too large", "Each step lands higher than the one before. Section 2 has its limit."),
    "C": (
        "over-fitting",
        "Training goes on falling while the test loss rises. Section 5 has both.",
    ),
    "D": (
        "too few updates",
        "The training loss is high too, and with a small batch the same rate was fine.",
    ),
    "E": ("noise", "It dances around the bottom, and a smaller rate ends the dance at once."),
}
_B1, _B2, _EPSILON = 0.9, 0.999, 1e-8


def exercise_10_1(largest_rate: Callable[..., Any]) -> str:
    """Check the largest rate that descent bears in a bowl.

    Args:
        largest_rate: called with a symmetric matrix of curvatures and a momentum, returns the
            limit of the rate.

    Returns:
        str: what it means.
    """
    expect_function(largest_rate)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    for hessian, momentum in (
        (np.diag([1.0, 5.0]), 0.0),
        (np.diag([5.0, 1.0, 2.0]), 0.0),
        (turn @ np.diag([1.0, 25.0]) @ turn.T, 0.0),
        (np.diag([1.0, 5.0]), 0.9),
        (turn @ np.diag([4.0, 9.0]) @ turn.T, 0.5),
    ):
        came = answered(largest_rate(hessian.copy(), momentum))
        right = 2 * (1 + momentum) / np.linalg.eigvalsh(hessian)[-1]
        hint = "The steepest direction decides: the largest curvature, not a mean and not a sum."
        if np.count_nonzero(hessian - np.diag(np.diag(hessian))):
            hint = "This valley lies askew. Which numbers of a matrix do not change when it turns?"
        elif momentum:
            hint = "Momentum bears more: 2 (1 + m) / L."
        case = f"for {np.round(hessian, 2).tolist()} and momentum {momentum}"
        expect_close(came, right, f"the limit {case}", hint, 1e-9)
    return "So momentum 0.9 bears nearly twice the rate, and each push counts ten times besides."


def exercise_10_2(adam: Callable[..., Any]) -> str:
    """Check one step of Adam, also late in a training.

    Args:
        adam: called with weights, gradient, mean, square, the number of the step (from 1) and
            the rate; returns the new weights, mean and square.

    Returns:
        str: what it means.
    """
    expect_function(adam)
    random = np.random.default_rng(10)
    weights, mean, square = random.normal(size=3), np.zeros(3), np.zeros(3)
    for step in range(1, 6):
        gradient = random.normal(size=3) * np.array([1e-6, 1.0, 1e3])
        given = [weights.copy(), gradient.copy(), mean.copy(), square.copy()]
        came = answered(adam(*given, step, 0.01))
        same = all(map(np.array_equal, given, (weights, gradient, mean, square)))
        hint = "Make new arrays: `mean = b1 * mean + ...`, not `mean *= b1`."
        expect(same, "arguments left as they are", "changed ones", hint)
        expect(len(came) == 3, "three arrays: weights, mean, square", came)
        mean = _B1 * mean + (1 - _B1) * gradient
        square = _B2 * square + (1 - _B2) * gradient**2
        hint = "The memories themselves stay uncorrected: what is new counts 1 - b."
        expect_close(came[1], mean, f"the mean after step {step}", hint, 1e-9)
        expect_close(came[2], square, f"the mean square after step {step}", hint, 1e-9)
        best = np.sqrt(square / (1 - _B2**step)) + _EPSILON
        move = 0.01 * mean / (1 - _B1**step) / best
        hint = "Divide mean by 1 - b1^step and square by 1 - b2^step; the root; epsilon outside it."
        text = f"how far step {step} moves each weight"
        moved = weights - np.asarray(came[0], float)
        for index in range(3):  # weight by weight: the one with tiny slopes counts as much
            expect_close(moved[index], move[index], text, hint, 1e-6)
        weights = weights - move
    return (
        "The first step is as long as the rate, whatever the slope: 0.01 for 1000 and for 0.001. "
        "Only next to epsilon, 1e-8, does a slope become too small to count."
    )


def exercise_10_3(causes: dict[str, str]) -> str:
    """Check which cause explains each training.

    Args:
        causes: for each letter the name of the cause.

    Returns:
        str: what it means.
    """
    asked = isinstance(causes, Mapping) and causes.keys() == CAUSES.keys()
    expect(asked, f"a dict with the letters {', '.join(CAUSES)}", causes)
    if any(cause is Ellipsis for cause in causes.values()):
        raise NotAnswered
    known = sorted(cause for cause, _ in CAUSES.values())
    for letter, (cause, hint) in CAUSES.items():
        came = causes[letter]
        came = " ".join(came.lower().split()) if isinstance(came, str) else came
        expect(came in known, f"for {letter} one of {', '.join(known)}", came)
        expect(came == cause, f"the cause of {letter}", came, hint)
    return "Two losses, training and test, over the epochs: that is most of what one needs to see."


def exercise_10_4(smallest_batch: Callable[..., Any]) -> str:
    """Check the smallest batch whose gradient is no noisier than asked.

    Args:
        smallest_batch: called with the variance of one sample's gradient, the length of the full
            gradient, the share of it that the noise may have, and the samples; returns the batch.

    Returns:
        str: what it means.
    """
    expect_function(smallest_batch)
    for variance, length, share, samples in (
        (100.0, 1.0, 1 / 3, 60_000),
        (100.0, 1.0, 1 / 30, 60_000),
        (13.2, 1.0, 0.5, 2_000),
        (5.0, 2.0, 0.3, 500),
        (1.0, 4.0, 0.9, 100),
    ):
        came = answered(smallest_batch(variance, length, share, samples))
        allowed = (share * length) ** 2

        def noisy(batch: int, variance: float = variance, samples: int = samples) -> float:
            return variance / batch * (samples - batch) / (samples - 1)

        # v (N - B) / (B (N - 1)) <= a is B >= v N / (a (N - 1) + v)
        right = math.ceil(variance * samples / (allowed * (samples - 1) + variance) - 1e-9)
        case = f"for variance {variance:g}, length {length:g}, share {share:.3g}, {samples} samples"
        expect(np.shape(came) == (), f"a number {case}", came)
        hint = "A whole number, rounded up."
        expect(float(came).is_integer() and came >= 1, f"a batch {case}", came, hint)
        if came > samples:
            hint = "More than all samples? With all of them there is no noise: the second factor."
        elif came > right:
            hint = (
                "A smaller one would do: solve variance (N - B) / (B (N - 1)) = (share length)^2."
            )
        else:
            hint = f"Its noise is {math.sqrt(noisy(came)) / length:.3f} of the length: too much."
        expect(came == right, f"the smallest batch {case}", came, hint)
    few, many = (100.0 * 60_000 / (allowed * 59_999 + 100.0) for allowed in (1 / 9, 1 / 900))
    return (
        f"A tenth of the noise took {math.ceil(many) / math.ceil(few):.0f} times the batch, not "
        "100 times: drawn without putting back, all samples together have no noise."
    )


def exercise_10_5(generation: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that a generation is judged together and becomes the same everywhere.

    Args:
        generation: called with the communicator, a function that draws the children, one that
            gives the loss of a child, and how many parents survive; returns the mean of the best
            and the bytes of all losses.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(generation)
    ranks = cluster.ranks
    for count, parents in ((4 * ranks, 3), (4 * ranks + 1, 2)):
        children = np.random.default_rng(count).normal(size=(count, 2, 3))
        losses = np.sum(np.square(children), axis=(1, 2))
        came = results(cluster, _judged, [(generation, children, parents)] * ranks)
        if any(answer is Ellipsis for answer, _ in came):
            raise NotAnswered
        calls = sorted(index for _, judged in came for index in judged)
        hint = "Who judges which? For example children[comm.rank :: comm.size]."
        text = f"each of {count} children judged once, by one of {ranks} ranks"
        expect(calls == list(range(count)), text, f"{len(calls)} judgements", hint)
        shares = [len(judged) for _, judged in came]
        expect(max(shares) - min(shares) <= 1, "equal work on all ranks", shares, hint)
        pairs = all(isinstance(answer, tuple | list) and len(answer) == 2 for answer, _ in came)
        expect(pairs, "the mean and the bytes", [answer for answer, _ in came])
        right = children[np.argsort(losses)[:parents]].mean(axis=0)
        for rank, ((mean, nbytes), _) in enumerate(came):
            hint = "The smallest losses are the best; does loss i still belong to child i?"
            text = f"the mean of the {parents} best of {count} children, on rank {rank}"
            expect_close(mean, right, text, hint, 1e-9)
            hint = f"8 bytes for each of the {count} losses of all ranks, and no child travels."
            expect(nbytes == 8 * count, f"the bytes of all losses, on rank {rank}", nbytes, hint)
    more = 4 * 25_557_032 / (8 * count)
    return (
        f"{8 * count} bytes a generation, however many weights there are: the gradient of "
        f"ResNet-50 is {more:.0e} times as large."
    )


def _judged(comm: Any, generation: Callable[..., Any], children: np.ndarray, parents: int) -> tuple:
    """Run the learner's generation on a rank and note which children it judged."""
    judged = []

    def loss(child: Any) -> float:
        apart = np.abs(children - np.asarray(child, float)).max(axis=(1, 2))
        expect(apart.min() == 0, "one of the children that `draw` gave", child)
        judged.append(int(apart.argmin()))
        return float(np.sum(np.square(child)))

    came = generation(comm, lambda: [child.copy() for child in children], loss, parents)
    return came, judged
