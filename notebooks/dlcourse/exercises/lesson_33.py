"""Exercises of lesson 33: addresses, fair ratios, streams, a quick change of layout."""

from itertools import product, takewhile
from types import SimpleNamespace as Row

import numpy as np

from dlcourse.exercises.engine import Exercise, share_of

# From data/published: throughput (tf_bench), accuracy; None: the source does not allow a ratio
FAIR = {"72x": ("D", None), "26x": ("D", None), "5x": ("A", 17.69 / 3.84)}
FAIR |= {"1688x": ("C", None), "29.4x": ("B", 148.27 / 6.60)}
BASELINES = {
    "72x": "72x: does the table of claims name a baseline at all?",
    "26x": "26x: does the table of claims name a baseline at all?",
    "5x": "Both rows of tf_bench train the same net with the same batch.",
    "1688x": "ResNet-50 was compared with DenseNet-121.",
    "29.4x": "32 GPUs against 1 GPU, the same net and data.",
}
RATIOS = {
    "72x: another framework's ratio would be a guess. Does the source allow one?":
        ("72x", 1171.24 / 686.1),
    "72 is the claim itself.": ("72x", 72),
    "26x: Caffe2's ratio is that of another framework. Does the source allow one?":
        ("26x", 67.3 / 16.2),
    "26 is the claim itself.": ("26x", 26),
    "Divide the two numbers that the deck prints.": ("5x", 5),
    "The guide gives 64 nodes for VGG-16. For ResNet-50 the number of nodes is not stated.":
        ("1688x", 64),
    "That is what cannot come from the nodes, if there were 64. Are there?": ("1688x", 1688 / 64),
    "That compares two nets. What did the nodes bring to one of them?": ("1688x", 1688 / 293),
    "That is the throughput again. What did all of the training take?": ("29.4x", 6104.32 / 207.79),
}  # fmt: skip
SHAPES = (2, 32, 2, 2), (3, 48, 5, 7), (1, 16, 1, 9)
LAYOUTS = ("NCHW", "NHWC", "nChw16c")
FAST, SLOW, LATE = [0.01] * 19 + [0.02], [0.03] * 20, [0.01] * 16 + [0.2] * 4  # latencies (s)
FEW_LATE = [0.008] * 18 + [0.09] * 2
SPLITS = [
    ([(1, 1, FAST), (2, 1, SLOW)], 0.05), ([(1, 1, FAST), (4, 1, SLOW)], 0.05),
    ([(1, 1, SLOW), (2, 1, LATE)], 0.05), ([(1, 1, SLOW), (2, 1, FEW_LATE)], 0.04),
    ([(2, 1, LATE), (4, 1, LATE)], 0.05), ([(1, 8, FAST), (2, 8, LATE), (3, 8, LATE)], 0.5),
    ([(4, 1, LATE), (1, 1, FAST)], 0.05), ([(1, 8, FAST), (2, 1, FAST)], 0.05),
]  # fmt: skip


def address(layout, shape, n, c, h, w):
    _, channels, height, width = shape
    if layout == "NCHW":
        return ((n * channels + c) * height + h) * width + w
    if layout == "NHWC":
        return ((n * height + h) * width + w) * channels + c
    return (((n * channels // 16 + c // 16) * height + h) * width + w) * 16 + c % 16


def places():
    random = np.random.default_rng(33)
    pairs = product(SHAPES, LAYOUTS, range(6))
    return [(layout, shape, *random.integers(shape).tolist()) for shape, layout, _ in pairs]


def part(fair, claim, place):
    """One part of the answer; all wrong letters for a claim are the same mistake."""
    came = fair[claim] if fair[claim] is ... else fair[claim][place]
    if came is not ... and place == 0:
        came = "right" if str(came).strip(" ()").upper() == FAIR[claim][0] else "wrong"
    return came if came is ... else {f"{'ratio' if place else 'baseline'} of {claim}": came}


def splits():
    for rows, limit_s in SPLITS:
        yield (
            [Row(streams=n, batch_per_rank=b, latency=Row(seconds=s)) for n, b, s in rows],
            limit_s,
        )


def choose(splits, limit_s, late=lambda s: np.quantile(s, 0.95), batch=None, kept=filter):
    splits = kept(lambda split: late(split.latency.seconds) <= limit_s, splits)
    speed = {
        s.streams: s.streams * (batch or s.batch_per_rank) / np.mean(s.latency.seconds)
        for s in splits
    }
    return max(speed, key=speed.get, default=None)


def batches():
    random = np.random.default_rng(34)
    shapes = (1, 256, 64, 64), (2, 48, 5, 7), (3, 5, 9, 1), (1, 17, 33, 20)
    return [(random.random(shape, "float32"),) for shape in shapes]


def arranged(answer, images):
    """The values, and what else is wrong with the array."""
    came = answer(images)
    if not isinstance(came, np.ndarray):
        return came
    faults = {
        f"an array of {came.dtype}": came.dtype != np.float32,
        "not contiguous": not came.flags.c_contiguous,
        "the same memory": np.shares_memory(came, images),
    }
    return next((fault for fault, found in faults.items() if found), "a new array"), came


def share_of_copy(answer, cluster=None):
    """The time of a plain copy over that of the answer, medians of turns."""
    (images,) = batches()[0]
    return share_of(lambda: np.copy(images), lambda: answer(images), 15, np.median, warmup=2)


PLACES = {
    f"That is its place in {layout}. Which dimension is the innermost here?":
        lambda _, *rest, layout=layout: address(layout, *rest) for layout in LAYOUTS
}  # fmt: skip


def to_nhwc_in_blocks(images):
    batch, channels, height, width = images.shape
    pixels = images.reshape(batch, channels, height * width)
    out = np.empty((batch, height * width, channels), images.dtype)
    for n in range(batch):
        for first in range(0, height * width, 64):
            for c in range(0, channels, 64):
                block = pixels[n, c : c + 64, first : first + 64]
                out[n, first : first + 64, c : c + 64] = block.T
    return out.reshape(batch, height, width, channels)


EXERCISES = {
    "33-1": Exercise(address, places, PLACES | {
        "c // 16 takes the place of C in NCHW; c % 16 is the innermost.":
            lambda *case: address(*case) - (case[3] % 16 if case[0] == "nChw16c" else 0),
    }, hint="The innermost dimension has step 1; each other one steps over all inside it.",
        remark="One formula each, and a layout is no more than that: the values are the same."),
    "33-2": Exercise(FAIR, [(claim, place) for claim in FAIR for place in (0, 1)],
        {hint: FAIR | {claim: ("-", FAIR[claim][1])} for claim, hint in BASELINES.items()}
        | {hint: FAIR | {claim: (FAIR[claim][0], r)} for hint, (claim, r) in RATIOS.items()},
        hint=f"Expected: a pair (letter, ratio) for each of the claims {', '.join(FAIR)}.",
        remark="None of the five is a lie, and none alone states what you gain. A ratio without "
        "its baseline is half a number.", relative=1e-2, call=part),
    "33-3": Exercise(choose, splits, {
        "images/s of all streams = streams x batch / mean latency (Little's law).":
            lambda splits, limit_s: max(split.streams for split in splits),
        "The limit is on 95 of 100 answers, not on the median or the mean.":
            lambda *case: choose(*case, np.median),
        "No split keeps the limit: return None.": lambda *case: choose(*case) or 4,
        "They may come in any order.": lambda *case: choose(*case, kept=takewhile),
        "An answer may hold several images: multiply by the batch.":
            lambda *case: choose(*case, batch=1),
    }, hint="Of the splits that keep the limit in 95 of 100 answers the one with most images/s.",
        remark="The same rule serves with a real queue: keep the promise, then fill the machine."),
    "33-4": Exercise(lambda images: np.moveaxis(images, 1, -1).copy(), batches, {
        "`reshape` moves nothing: the values are still in the order of NCHW.":
            lambda x: x.reshape(len(x), x.shape[2], x.shape[3], x.shape[1]),
        "`transpose` returns a view: the memory is still NCHW. The result must be contiguous.":
            lambda x: x.transpose(0, 2, 3, 1),
        "Height and width are exchanged.":
            lambda x: np.ascontiguousarray(x.transpose(0, 3, 2, 1)),
        "The result is float32, as the images are.":
            lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1), "float64"),
    }, also_right=(to_nhwc_in_blocks,),
        hint="A new array of shape (N, H, W, C), float32 and contiguous, with the same values.",
        call=arranged, score=share_of_copy,
        remark="The limit is a plain copy of the same bytes: each value read and written once."),
}  # fmt: skip
