"""Checks of the exercises of notebook 32: exact integers, a loss scale, 8 bits, what they bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes

LARGEST = 65504.0  # of fp16

CAUSES = {
    "stands still": ("D", "How far is it from 256 to the next number of bf16?"),
    "negative": ("F", "Two terms of 255 * 127: up to where do 16 bits count?"),
    "falls slowly": ("A", "Where do small gradients go in fp16, and what would bring them back?"),
    "slow steps": ("C", "Which units does the stamp list? What does a library do without them?"),
    "dark edges": ("E", "What do convolutions put around an image?"),
    "hardly faster": ("B", "Amdahl: what is left when the products take no time at all?"),
}


def exercise_32_1(exact_up_to: Callable[..., Any]) -> str:
    """Check up to where a format counts without gaps.

    Args:
        exact_up_to: called with the stored bits of the fraction, returns the largest whole
            number up to which all whole numbers are exact.

    Returns:
        str: what it means.
    """
    expect_function(exact_up_to)
    for name, bits in (("fp16", 10), ("fp32", 23), ("bf16", 7)):
        came = answered(exact_up_to(bits))
        right = 2 ** (bits + 1)
        hint = "Between 1 and 2 the distance is 2^-bits. Where has it grown to 1, where to 2?"
        if came == right - 1:
            hint = "The next whole number is a power of two. Is that one exact, too?"
        if came == 2**bits:
            hint = "There the distance is 1, so the next whole numbers are exact still."
        expect(came == right, f"the last whole number before a gap in {name}", came, hint)
    return "bf16 counts to 256 only: never keep counters or sums in it."


def exercise_32_2(loss_scale: Callable[..., Any]) -> str:
    """Check the choice of a scale for the loss.

    Args:
        loss_scale: called with gradients (an array) and the largest number of the format,
            returns the largest power of two that makes no gradient too large.

    Returns:
        str: what it means.
    """
    expect_function(loss_scale)
    random = np.random.default_rng(32)
    cases = [random.lognormal(-12, 3, 1000) * random.choice([-1, 1], 1000) for _ in range(4)]
    cases += [np.array([-1e-9, 1e-12]), np.array([0.0, 1.0]), np.array([1e6])]
    for gradients in cases:
        came = answered(loss_scale(gradients.copy(), LARGEST))
        number = isinstance(came, (int, float, np.number)) and np.isfinite(came) and came > 0
        expect(number, "a positive number", came)
        largest = float(np.abs(gradients).max())
        fits = came * largest <= LARGEST
        hint = "One gradient overflows, and the step is lost. Negative ones are large, too."
        expect(fits, f"at most {LARGEST / largest:.4g} for a gradient of {largest:.4g}", came, hint)
        power = np.log2(float(came))
        hint = "A power of two changes the exponent only, so it rounds nothing."
        expect(power == round(power), "a power of two", came, hint)
        hint = "Twice as much would still fit. What limits it is the largest gradient."
        expect(2 * came * largest > LARGEST, "the largest power of two that fits", came, hint)
    return (
        "Keras looks for it by trial: twice as much after 2000 good steps, half after an overflow."
    )


def exercise_32_3(to_bytes: Callable[..., Any]) -> str:
    """Check a quantisation of activations to unsigned bytes.

    Args:
        to_bytes: called with an array of floats, returns unsigned bytes, the scale and the zero
            point, such that scale * (bytes - zero) is near the floats.

    Returns:
        str: what it means.
    """
    expect_function(to_bytes)
    random = np.random.default_rng(33)
    cases = {
        "after a ReLU": np.maximum(random.normal(0, 2, 5000), 0),
        "of both signs": random.normal(0.5, 1, 5000),
        "far from 0": random.uniform(5, 6, 5000),
        "negative": random.uniform(-3, -1, 5000),
    }
    for name, values in cases.items():
        came = answered(to_bytes(values.copy()))
        three = isinstance(came, (tuple, list)) and len(came) == 3
        expect(three, "three values: bytes, scale, zero", came)
        held, scale, zero = np.asarray(came[0]), float(came[1]), came[2]
        expect(held.dtype == np.uint8, "an array of uint8", held.dtype.name, "Use astype('uint8').")
        expect(held.shape == values.shape, f"shape {values.shape}", held.shape)
        whole = float(zero) == round(float(zero)) and 0 <= float(zero) <= 255
        hint = "0.0 must be exact (padding is 0), so a byte must stand for it: the range holds 0."
        expect(whole, "a zero point that is one of the bytes", zero, hint)
        width = max(values.max(), 0) - min(values.min(), 0)
        hint = f"255 steps must cover the values {name} and 0, and no more: {width:.3f}."
        expect_close(scale, width / 255, "the step", hint, 0.01)
        error = np.abs(scale * (held.astype(float) - float(zero)) - values) / scale
        hint = "Did a value leave 0 to 255 and come in again at the other end? Clip first."
        expect(error.max() <= 1.01, "values within one step", f"{error.max():.3g} steps off", hint)
        hint = "Bytes are cut down by astype. Round to the nearest before."
        near = float(np.mean(error <= 0.51))
        expect(near >= 0.99, "values within half a step", f"{1 - near:.0%} are further off", hint)
    return "This is what QuantizeLinear does in the file that onnxruntime made."


def exercise_32_4(speed_up: Callable[..., Any]) -> str:
    """Check what faster products bring to a whole net.

    Args:
        speed_up: called with the share of the float32 time that is products, how many times as
            fast these become, and the time of the conversions as a share of the float32 time;
            returns how many times as fast the whole becomes.

    Returns:
        str: what it means.
    """
    expect_function(speed_up)
    for share, ratio, extra in ((1.0, 4, 0.0), (0.9, 4, 0.0), (0.9, 4, 0.05), (0.3, 4, 0.4)):
        came = answered(speed_up(share, ratio, extra))
        right = 1 / (1 - share + share / ratio + extra)
        hint = "New time: the rest as before, the products divided by the ratio, the conversions."
        if share == 1.0:
            hint = "All of it is products, and nothing is converted."
        case = f"for {share:.0%} products, {ratio} times as fast, {extra:.0%} conversions"
        expect_close(came, right, f"the speed-up {case}", hint, 1e-6)
    return (
        "The last case became slower: 30 % products and 40 % conversions. Small nets are like that."
    )


def exercise_32_5(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which symptom.

    Args:
        causes: for each of the six symptoms a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "Not one of the six stops a program: narrow numbers fail without a word."
