"""Exercises of lesson 32: exact integers, a loss scale, 8 bits, what they bring."""

import numpy as np

from dlcourse.exercises.engine import Exercise, Letters

RANDOM = np.random.default_rng(32)
LARGEST = 65504.0  # of fp16
GRADIENTS = [RANDOM.lognormal(-12, 3, 1000) * RANDOM.choice([-1, 1], 1000) for _ in range(4)]
GRADIENTS += [np.array([-1e-9, 1e-12]), np.array([0.0, 1.0]), np.array([1e6])]
VALUES = [np.maximum(RANDOM.normal(0, 2, 5000), 0), RANDOM.normal(0.5, 1, 5000)]
VALUES += [RANDOM.uniform(5, 6, 5000), RANDOM.uniform(-3, -1, 5000)]
CAUSES = {
    "stands still": ("D", "How far is it from 256 to the next value of bf16?"),
    "negative": ("F", "Two terms of 255 * 127: up to where do 16 bits count?"),
    "falls slowly": ("A", "What do small gradients become in fp16, and what would prevent it?"),
    "slow steps": ("C", "Which units does the first cell list? What is done without them?"),
    "dark edges": ("E", "What do convolutions put around an image?"),
    "hardly faster": ("B", "Amdahl: what is left when the products take no time at all?"),
}


def loss_scale(gradients, largest, size=lambda g: np.abs(g).max()):
    return 2.0 ** np.floor(np.log2(largest / max(size(gradients), 1e-30)))


def to_bytes(values, rounded=np.rint, low=0.0, shift=0):
    low, high = min(values.min(), low), max(values.max(), 0.0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    q = np.clip(rounded(values / scale) + zero, 0, 255).astype("uint8")
    return q + np.uint8(shift), scale, zero


def signed(values):
    scale = np.abs(values).max() / 127
    return np.rint(values / scale).astype("int8"), scale, 0


def without_zero(values):
    low, scale = values.min(), (values.max() - values.min()) / 255
    return np.rint((values - low) / scale).astype("uint8"), scale, -low / scale


def quality(answer, values):
    """What is wrong with a quantisation, of which many are correct."""
    came = answer(values)
    if came is ...:
        return came
    (q, scale, zero), width = came, max(values.max(), 0) - min(values.min(), 0)
    error = np.abs(scale * (q.astype(float) - zero) - values) / scale  # in steps
    faults = {
        f"an array of {q.dtype}": q.dtype != np.uint8 or q.shape != values.shape,
        "a zero point that is not a byte": zero != round(zero) or not 0 <= zero <= 255,
        "steps of another width": abs(scale * 255 / width - 1) > 0.01,
        "values more than a step off": error.max() > 1.01,
        "values more than half a step off": np.mean(error <= 0.51) < 0.99,
    }
    return next((fault for fault, found in faults.items() if found), "values within half a step")


def speed_up(share, ratio, extra):
    return 1 / (1 - share + share / ratio + extra)


EXERCISES = {
    "32-1": Exercise(lambda fraction_bits: 2 ** (fraction_bits + 1), [(10,), (23,), (7,)], {
        "The next integer is a power of two. Is it exact, too?": lambda f: 2 ** (f + 1) - 1,
        "There the distance is 1, so the next integers are still exact.": lambda f: 2**f,
    }, hint="Between 1 and 2 the distance is 2^-bits. Where has it grown to 1, where to 2?",
        remark="bf16 counts to 256 only: never keep counters or sums in it.", relative=0),
    "32-2": Exercise(loss_scale, [(gradients, LARGEST) for gradients in GRADIENTS], {
        "One gradient overflows, and the step is lost. Negative ones are large, too.":
            lambda *case: loss_scale(*case, np.max),
        "One gradient overflows: the largest decides, not the mean.":
            lambda *case: loss_scale(*case, lambda g: np.abs(g).mean()),
        "A power of two changes the exponent only, so it rounds nothing.":
            lambda g, largest: largest / np.abs(g).max(),
        "Twice as much would still fit. What limits it is the largest gradient.":
            lambda *case: loss_scale(*case) / 2,
    }, hint="The largest power of two with which no gradient exceeds the largest value.",
        remark="Keras searches for it: doubled after 2000 good steps, halved after an overflow."),
    "32-3": Exercise(to_bytes, [(values,) for values in VALUES], {
        "Use `astype('uint8')`.": signed,
        "0.0 must be exact (padding is 0): one byte represents it, so the range contains 0.":
            without_zero,
        "255 steps must cover the values and 0, and no more.":
            lambda values: to_bytes(values, low=-np.abs(values).max()),
        "Did a value leave 0 to 255 and come in again at the other end? Clip first.":
            lambda values: to_bytes(values, shift=1),
        "`astype` cuts off the fraction. Round to the nearest before.":
            lambda values: to_bytes(values, np.trunc),
    }, hint="Return three values: an array of uint8, the scale and the zero point.",
        remark="This is what QuantizeLinear does in the file that onnxruntime made.", call=quality),
    "32-4": Exercise(speed_up, [(1.0, 4, 0.0), (0.9, 4, 0.0), (0.9, 4, 0.05), (0.3, 4, 0.4)], {
        "If all of it is products and nothing is converted, it is `ratio` times as fast.":
            lambda *case: 1 / speed_up(*case),
        "The rest takes as long as before.": lambda share, ratio, extra: ratio,
        "The conversions take time.": lambda share, ratio, extra: speed_up(share, ratio, 0),
    }, hint="New time: the rest as before, the products divided by the ratio, the conversions.",
        remark="The last case is slower: 30 % products, 40 % conversions, as in small networks."),
    "32-5": Letters(CAUSES, "None of the six stops a program: narrow formats fail silently."),
}  # fmt: skip
