"""Notebook 32's checks tick what is right and say which usual mistake was made.

Tests dlguide.exercises.nb32.
"""

import numpy as np


def loss_scale(gradients, largest):
    return 2.0 ** np.floor(np.log2(largest / np.abs(gradients).max()))


def to_bytes(values, rounded=np.rint):
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    scale = (high - low) / 255
    zero = round(-low / scale)
    return np.clip(rounded(values / scale) + zero, 0, 255).astype("uint8"), scale, zero


def without_zero(values):
    scale = (values.max() - values.min()) / 255
    return np.rint((values - values.min()) / scale).astype("uint8"), scale, -values.min() / scale


def symmetric(values):
    scale = np.abs(values).max() / 127
    return np.rint(values / scale).astype("int8"), scale, 0


def not_clipped(values):
    held, scale, zero = to_bytes(values)
    return held + np.uint8(1), scale, zero


def speed_up(share, ratio, extra):
    return 1 / (1 - share + share / ratio + extra)


CAUSES = {
    "stands still": "D",
    "negative": "F",
    "falls slowly": "A",
    "slow steps": "C",
    "dark edges": "E",
    "hardly faster": "B",
}
EMPTY = {"32-5": [dict.fromkeys(CAUSES, ...), CAUSES | {"stands still": ...}]}
RIGHT = {
    "32-1": lambda bits: 2 ** (bits + 1),
    "32-2": loss_scale,
    "32-3": to_bytes,
    "32-4": speed_up,
    "32-5": CAUSES,
}
WRONG = {
    "one power too few": ("32-1", lambda bits: 2**bits, "the next whole numbers are exact still"),
    "one too few": ("32-1", lambda bits: 2 ** (bits + 1) - 1, "Is that one exact, too"),
    "the largest number": ("32-1", lambda bits: 65504, "Where has it grown to 1"),
    "no function": ("32-1", 2048, "Write it with `def`"),
    "negative ones forgotten": (
        "32-2",
        lambda g, most: 2.0 ** np.floor(np.log2(most / max(g.max(), 1e-30))),
        "Negative ones are large",
    ),
    "of the mean": (
        "32-2",
        lambda g, most: 2.0 ** np.floor(np.log2(most / np.abs(g).mean())),
        "One gradient overflows",
    ),
    "no power of two": ("32-2", lambda g, most: most / np.abs(g).max() * 0.9, "a power of two"),
    "too careful": ("32-2", lambda g, most: loss_scale(g, most) / 2, "Twice as much would"),
    "cut, not rounded": ("32-3", lambda v: to_bytes(v, np.trunc), "Round to the nearest"),
    "range without 0": ("32-3", without_zero, "a byte must stand for it"),
    "signed": ("32-3", symmetric, "astype('uint8')"),
    "wrapped": ("32-3", not_clipped, "Clip first"),
    "bytes only": ("32-3", lambda v: to_bytes(v)[0], "three values"),
    "all is faster": ("32-4", lambda share, ratio, extra: ratio, "The rest as before"),
    "no conversions": (
        "32-4",
        lambda share, ratio, extra: speed_up(share, ratio, 0),
        "the products divided by the ratio",
    ),
    "upside down": ("32-4", lambda *a: 1 / speed_up(*a), "nothing is converted"),
    "wrapped float": ("32-5", CAUSES | {"stands still": "F"}, "How far is it from 256"),
    "rounded integer": ("32-5", CAUSES | {"negative": "D"}, "up to where do 16 bits"),
    "no unit": ("32-5", CAUSES | {"falls slowly": "C"}, "Where do small gradients go"),
    "no scale is slow": ("32-5", CAUSES | {"slow steps": "A"}, "Which units does the stamp"),
    "edges wrapped": ("32-5", CAUSES | {"dark edges": "F"}, "around an image"),
    "no letter": ("32-5", CAUSES | {"stands still": "the cores"}, "a letter from A to F"),
}
