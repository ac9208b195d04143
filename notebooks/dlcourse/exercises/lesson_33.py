"""Exercises of lesson 33: addresses, fair ratios, free reorders, streams."""

from itertools import product, takewhile
from types import SimpleNamespace as Row

import numpy as np

from dlcourse.exercises.engine import Exercise

# From data/published: caffe_time_engines, caffe2_threads, throughput (tf_bench), claims, accuracy
FAIR = {"72x": ("D", 1171.24 / 686.1), "26x": ("D", 67.3 / 16.2), "5x": ("A", 17.69 / 3.84)}
FAIR |= {"1688x": ("C", 64), "29.4x": ("B", 148.27 / 6.60)}
BASELINES = {
    "72x": "72x: does the table of claims name a baseline at all?",
    "26x": "26x: does the table of claims name a baseline at all?",
    "5x": "Both rows of tf_bench train the same net with the same batch.",
    "1688x": "ResNet-50 was compared with DenseNet-121.",
    "29.4x": "32 GPUs against 1 GPU, the same net and data.",
}
RATIOS = {
    "Take the fastest of the engines.": ("72x", 1171.24 / 741.2),
    "72 is the claim itself.": ("72x", 72),
    "Eigen makes no use of 44 threads. Use equal threads.": ("26x", 1735.2 / 44.9),
    "26 is the claim itself.": ("26x", 26),
    "Divide the two numbers that the deck prints.": ("5x", 5),
    "That is what cannot come from the nodes. How much can?": ("1688x", 1688 / 64),
    "That compares two nets. What can 64 nodes bring to one of them?": ("1688x", 1688 / 293),
    "That is the throughput again. What did all of the training take?": ("29.4x", 6104.32 / 207.79),
}
SHAPES = (2, 32, 2, 2), (3, 48, 5, 7), (1, 16, 1, 9)
LAYOUTS = ("NCHW", "NHWC", "nChw16c")
TABLES = [
    [("convolution", 2, 6.0), ("reorder", 5, 2.0), ("sum", 1, 2.0)],
    [("reorder", 1, 1.0), ("convolution", 1, 1.0), ("reorder", 9, 2.0)],
    [("convolution", 3, 1.5), ("pooling", 1, 0.5)],
    [("convolution", 4, 0.9), ("reorder", 4, 0.1)],
]
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


def without_reorders(rows, of=lambda row: row.seconds):
    return sum(map(of, rows)) / sum(of(row) for row in rows if row.kind != "reorder")


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


PLACES = {
    f"That is its place in {layout}. Which dimension is the innermost here?":
        lambda _, *rest, layout=layout: address(layout, *rest) for layout in LAYOUTS
}  # fmt: skip
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
    "33-3": Exercise(without_reorders,
        [([Row(kind=k, count=n, seconds=s) for k, n, s in rows],) for rows in TABLES], {
        "That is the share of the reorders. How many times as fast is it without them?":
            lambda rows: 1 - 1 / without_reorders(rows),
        "That is the share that is left: turn it upside down.":
            lambda rows: 1 / without_reorders(rows),
        "You counted them. What matters is how long they take.":
            lambda rows: without_reorders(rows, lambda row: row.count),
        "All reorders count, not only the first.":
            lambda rows: sum(r.seconds for r in rows) / (sum(r.seconds for r in rows) - next(
                (r.seconds for r in rows if r.kind == "reorder"), 0)),
    }, hint="The whole time, divided by the time that is left. All reorders count.",
        remark="Amdahl's law: a reorder that takes 2 % of the time is not worth a week of work."),
    "33-4": Exercise(choose, splits, {
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
}  # fmt: skip
