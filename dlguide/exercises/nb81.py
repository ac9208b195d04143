"""Checks of the exercises of notebook 81: iterations, rates, causes, gains, moving averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

# Pictures, workers, batch; epochs, of the warmup, where the last part begins: the guide's road,
# and two of other sizes.
ROADS = (
    (1_280_683, 896, 16, 90, 5, 85.5),
    (960, 2, 16, 12, 1, 10.2),
    (50_000, 8, 100, 30, 2, 28.3),
)
SHAPES = ((446, 8040, 7638, 4.8, 0.1, 5e-5), (30, 360, 306, 0.2, 0.004, 1e-4))
MOMENTUM = 0.95


def exercise_81_1(iterations: Callable[..., Any]) -> str:
    """Check how many updates each part of the road has.

    Args:
        iterations: called with pictures, workers, the batch of a worker, epochs, epochs of the
            warmup and where the last part begins (epochs); returns the updates of the warmup
            (rounded down), of the decay, the one after which the last part begins, and its own.

    Returns:
        str: what it means.
    """
    expect_function(iterations)
    for pictures, workers, batch, epochs, warmup, leaves in ROADS:
        came = answered(iterations(pictures, workers, batch, epochs, warmup, leaves))
        expect(np.shape(came) == (4,), "four numbers", came, "Warmup, decay, snapshot, last part.")
        each = pictures / (workers * batch)
        up, left, last = int(warmup * each), round(leaves * each), round((epochs - leaves) * each)
        whole = round(epochs * each)
        right = (up, whole - up, left, last)
        case = f"the updates for {workers} workers with {batch} of {pictures} pictures each step"
        hint = "Epochs times pictures, divided by the global batch: of all workers together."
        if near(came[0], int(warmup * -(-pictures // (workers * batch)))):
            hint = "An epoch need not be a whole number of updates: divide first, round last."
        elif near(came[1], whole):
            hint = "The decay begins where the warmup ends: take the warmup's updates away."
        elif came[0] == up + 1:
            hint = "The warmup is rounded down."
        elif near(came[:2], right[:2]):
            hint = "The last part begins at a fraction of an epoch and lasts to the road's end."
        expect(list(came) == list(right), case, came, hint)
    return (
        "The first ones are the guide's 446 and 7594; and the file that its part 2 loads is "
        "called after iteration 7638."
    )


def exercise_81_2(course: Callable[..., Any]) -> str:
    """Check rate, weight decay and augmentation at any step.

    Args:
        course: called with a step, the steps of the warmup, of the whole road and those before
            the last part, the highest and the first rate and the weight decay; returns the rate,
            the weight decay and whether pictures are cut and mirrored at random.

    Returns:
        str: what it means.
    """
    expect_function(course)
    for warmup, whole, left, top, start, decay in SHAPES:
        line = top * (whole - left) / (whole - warmup)
        middle = (left + whole) // 2
        for step in (0, warmup // 2, warmup, (warmup + left) // 2, left - 1, left, middle):
            came = answered(course(step, warmup, whole, left, top, start, decay))
            expect(np.shape(came) == (3,), "rate, weight decay, whether pictures are random", came)
            where = f"at step {step} of {whole}"
            if step < warmup:
                right = start + (top - start) * step / warmup
                hint = "In a straight line from the first rate; at the warmup's end the highest."
            elif step < left:
                right = top * (whole - step) / (whole - warmup)
                hint = "In a straight line to 0 at the whole road's end, from the warmup's end on."
            else:
                right = line * ((whole - step) / (whole - left)) ** 2
                hint = f"It begins with the {line:.3g} that the line has there; the square follows."
            expect_close(came[0], right, f"the rate {where}", hint, 1e-9)
            last = step >= left
            hint = "It doubles where the last part begins." if last else "Not yet doubled."
            expect_close(came[1], decay * (1 + last), f"the weight decay {where}", hint, 1e-9)
            hint = "Plain pictures belong to the last part, and only to it."
            expect(bool(came[2]) != last, f"random pictures or plain ones {where}", came[2], hint)
    return "The line arrives at 4.8 x 402 / 7594 = 0.254: that stands in the solver of part 2."


def exercise_81_3(causes: Mapping[str, str]) -> str:
    """Check which cause explains which observation on the road.

    Args:
        causes: for each observation the letter of its cause.

    Returns:
        str: what it means.
    """
    right = {
        "94.5 epochs": ("D", "What had part 1 done already when part 2 left it?"),
        "too slow": ("F", "How many of what, per second? The bytes are not many."),
        "three times": ("A", "Compare the size of a picture in the guide with a published one."),
        "one process": ("B", "Who else computes on these cores? On which socket are they?"),
        "test above training": ("E", "Which pictures are counted while training, and when?"),
        "smaller batches": (
            "C",
            "What does a worker know of the others' pictures?",
        ),
    }
    expect_causes(causes, right)
    return "Five of the six are no faults of the net: read what was counted before you mend it."


def exercise_81_4(gain: Callable[..., Any]) -> str:
    """Check the mean gain over seeds and its standard error.

    Args:
        gain: called with the top-1 of both endings (fractions, one for each seed, in the same
            order); returns mean gain and standard error of the mean, both in points.

    Returns:
        str: what it means.
    """
    expect_function(gain)
    random = np.random.default_rng(81)
    for seeds in (5, 3, 8):
        line = random.uniform(0.74, 0.80, seeds)
        collapsed = line + random.normal(0.02, 0.008, seeds)
        came = answered(gain(line.tolist(), collapsed.tolist()))
        expect(np.shape(came) == (2,), "two numbers: mean and standard error", came)
        apart = 100 * (collapsed - line)
        error = apart.std(ddof=1) / seeds**0.5
        hint = "Collapsed minus line, in percentage points."
        expect_close(came[0], apart.mean(), f"the mean gain of {seeds} seeds (points)", hint, 1e-9)
        unpaired = 100 * np.sqrt((line.var(ddof=1) + collapsed.var(ddof=1)) / seeds)
        hint = "The deviation of the differences, divided by the root of their number."
        if near(came[1], unpaired):
            hint = "Both endings begin from one checkpoint: take the differences seed by seed."
        elif near(came[1], apart.std() / seeds**0.5):
            hint = "The mean was estimated from the same numbers: divide by one seed less (ddof=1)."
        elif near(came[1], apart.std(ddof=1)):
            hint = "That is the deviation of one seed; the mean of several varies less."
        expect_close(came[1], error, f"the standard error of {seeds} seeds (points)", hint, 1e-9)
    return (
        f"Taken in pairs the error of the last {seeds} seeds is {error:.2f} points, otherwise "
        f"{unpaired:.2f}: the common beginning makes the difference easier to see."
    )


def exercise_81_5(averages: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks what becomes of batch normalisation's moving averages in an epoch.

    Args:
        averages: called with the communicator, this rank's batches (a list of arrays, one row a
            picture) and the momentum; begins with mean 0 and variance 1, and returns mean and
            variance for the test, the same on all ranks.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(averages)
    random = np.random.default_rng(82)
    ranks, steps = cluster.ranks, 6
    batches = [
        [random.normal(3 * rank + 1, 1 + rank, (16, 2)) for _ in range(steps)]
        for rank in range(ranks)
    ]
    came = results(cluster, averages, [(mine, MOMENTUM) for mine in batches])
    pairs = [np.asarray(each, float) for each in came]
    hint = "Return mean and variance, two numbers each."
    expect(all(each.shape == (2, 2) for each in pairs), "an array of shape (2, 2)", came, hint)
    own = [moved(mine, MOMENTUM) for mine in batches]
    right = np.mean(own, axis=0)
    spread = max(float(np.abs(each - pairs[0]).max()) for each in pairs)
    hint = "At the end of the epoch the ranks take the mean of their averages."
    expect(spread <= 1e-12, "equal averages on all ranks", f"{spread:.2g} apart", hint)
    together = moved([np.concatenate(step) for step in zip(*batches, strict=True)], MOMENTUM)
    hint = "Start from mean 0 and variance 1, and take the variance of each batch (divided by 16)."
    if near(pairs[0], np.mean([moved(mine, 1 - MOMENTUM) for mine in batches], axis=0)):
        hint = "0.95 is what a step keeps of the average, not what it takes of the batch."
    elif ranks > 1 and near(pairs[0], together):
        hint = "Nobody sees the batches of the others: each rank has its own mean and variance."
    elif ranks > 1 and near(pairs[0], np.sum(own, axis=0)):
        hint = "A mean over ranks, not a sum."
    expect_close(pairs[0], right, "the mean of the ranks' moving averages", hint, 1e-9)
    apart = float((together[1] / right[1]).max())
    if ranks == 1:
        return "On one rank the others' pictures cannot be missed: try it on two."
    return (
        f"The variance of all pictures together is {apart:.1f} times what each worker saw: the "
        "workers had different pictures here, and none knew."
    )


def moved(batches: Sequence[np.ndarray], momentum: float) -> np.ndarray:
    """Let moving averages follow the batches of one worker.

    Args:
        batches: of shape (pictures, features) each.
        momentum: how much a step keeps.

    Returns:
        np.ndarray: mean and variance, shape (2, features).
    """
    kept = np.array([np.zeros(batches[0].shape[1]), np.ones(batches[0].shape[1])])
    for batch in batches:
        kept = momentum * kept + (1 - momentum) * np.array([batch.mean(axis=0), batch.var(axis=0)])
    return kept
