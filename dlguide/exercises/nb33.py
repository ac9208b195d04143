"""Checks of the exercises of notebook 33: addresses, fair ratios, free reorders, streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from dlguide.exercises import NotAnswered, answered, expect, expect_close, expect_function, near

BLOCK = 16
CLAIMS = ("72x", "26x", "5x", "1688x", "29.4x")
# As in data/published: caffe_time_engines (ms), caffe2_threads (batch 256, by threads; MKL and
# Eigen, images/s), throughput (tf_bench; thesis, 32 and 1 GPUs, images/s), accuracy (hours).
CAFFE_MS = {"CAFFE": 1171.24, "MKL2017": 686.1, "MKLDNN": 741.2}
CAFFE2 = {44: (1735.2, 44.9), 1: (67.3, 16.2)}
TF_BENCH, GPUS_32, HOURS = (17.69, 3.84), (6104.32, 207.79), (148.27, 6.60)
NODES = 64  # of the guide, section 6.4.4


def exercise_33_1(address: Callable[..., Any]) -> str:
    """Check the place in memory of one number of a tensor in three layouts.

    Args:
        address: called with the layout's name, the shape (N, C, H, W) and n, c, h, w; returns
            the place, counted in numbers from 0.

    Returns:
        str: what it means.
    """
    expect_function(address)
    for shape in ((2, 32, 2, 2), (3, 48, 5, 7), (1, 16, 1, 9)):
        for layout, places in _places(shape).items():
            for index in _some_indices(shape):
                came = answered(address(layout, shape, *index))
                case = f"the place of {index} in {layout} with shape {shape}"
                expect(came == places[index], case, came, _where(layout, came, shape, index))
    return "One formula each, and a layout is no more than that: the numbers are the same."


def exercise_33_2(answers: Mapping[str, tuple[str, float]]) -> str:
    """Check what five published speed-ups were compared with, and what a fair one would be.

    Args:
        answers: for each claim the letter of its baseline and the honest ratio.

    Returns:
        str: what it means.
    """
    expect(isinstance(answers, Mapping), "a dictionary", answers)
    expect(set(answers) == set(CLAIMS), f"the claims {', '.join(CLAIMS)}", list(answers))
    if any(part is Ellipsis for pair in answers.values() for part in np.atleast_1d(pair)):
        raise NotAnswered
    for claim, (letter, ratio, why, traps) in _fair().items():
        pair = answers[claim]
        expect(
            isinstance(pair, tuple | list | np.ndarray) and len(pair) == 2,
            f"two parts for {claim}",
            pair,
        )
        expect(str(pair[0]).strip().upper() == letter, f"the baseline of {claim}", pair[0], why)
        for value, hint in traps:
            expect(not near(pair[1], value, 5e-3), f"the honest ratio of {claim}", pair[1], hint)
        expect_close(pair[1], ratio, f"the honest ratio of {claim}", relative=1e-2)
    return (
        "None of the five is a lie, and none says alone what you gain. A ratio without its "
        "baseline is half a number."
    )


def exercise_33_3(without_reorders: Callable[..., Any]) -> str:
    """Check the bound on what free reorders could bring.

    Args:
        without_reorders: called with rows of a table of primitives, each with `kind`, `count`
            and `seconds`; returns how many times as fast all of it would be at most.

    Returns:
        str: what it means.
    """
    expect_function(without_reorders)
    cases = {
        "one reorder among others": [("convolution", 2, 6.0), ("reorder", 5, 2.0), ("sum", 1, 2.0)],
        "two rows of reorders": [("reorder", 1, 1.0), ("convolution", 1, 1.0), ("reorder", 9, 2.0)],
        "no reorder": [("convolution", 3, 1.5), ("pooling", 1, 0.5)],
        "equal counts": [("convolution", 4, 0.9), ("reorder", 4, 0.1)],
    }
    for name, rows in cases.items():
        table = [SimpleNamespace(kind=kind, count=n, seconds=s) for kind, n, s in rows]
        came = answered(without_reorders(table))
        total = sum(seconds for _, _, seconds in rows)
        reorders = sum(seconds for kind, _, seconds in rows if kind == "reorder")
        hint = "The whole time, divided by the time that is left. All reorders count."
        if near(came, reorders / total, 5e-3):
            hint = "That is the share of the reorders. How many times as fast is it without them?"
        elif near(came, 1 - reorders / total, 5e-3):
            hint = "That is the share that is left: turn it upside down."
        elif near(
            came, sum(n for _, n, _ in rows) / sum(n for k, n, _ in rows if k != "reorder"), 5e-3
        ):
            hint = "You counted them. What matters is how long they take."
        expect_close(came, total / (total - reorders), f"the bound for {name}", hint, 1e-6)
    return "Amdahl's law: a reorder that takes 2 % of the time is not worth a week of work."


def exercise_33_4(choose: Callable[..., Any]) -> str:
    """Check the choice of a number of streams under a limit on the latency.

    Args:
        choose: called with splits, each with `streams`, `batch` and `latency.seconds`, and a
            limit (s) that 95 of 100 answers must keep; returns the streams of the split with
            the most images/s that keeps it, None when none does.

    Returns:
        str: what it means.
    """
    expect_function(choose)
    fast, slow = [0.010] * 19 + [0.020], [0.030] * 20
    late = [0.010] * 16 + [0.200] * 4
    crowded = [*[0.008] * 18, 0.09, 0.09]
    many = "images/s of all streams = streams x batch / mean latency (Little's law)."
    tail = "The limit is on 95 of 100 answers, not on the median or the mean."
    cases = [
        ({1: fast, 2: slow}, 1, 0.05, 1, many),
        ({1: fast, 4: slow}, 1, 0.05, 4, many),
        ({1: slow, 2: late}, 1, 0.05, 1, tail),
        ({1: slow, 2: crowded}, 1, 0.04, 1, tail),
        ({2: late, 4: late}, 1, 0.05, None, "No split keeps the limit: return None."),
        ({1: fast, 2: late, 3: late}, 8, 0.5, 1, many),
        ({4: slow, 1: fast}, 1, 0.05, 4, "They may come in any order."),
    ]
    for splits, batch, limit_s, right, hint in cases:
        given = [
            SimpleNamespace(streams=n, batch=batch, latency=SimpleNamespace(seconds=tuple(seconds)))
            for n, seconds in splits.items()
        ]
        came = answered(choose(given, limit_s))
        case = f"the streams for {list(splits)} and a limit of {limit_s} s"
        expect(came == right, case, "None" if came is None else came, hint)
    mixed = [
        SimpleNamespace(streams=n, batch=b, latency=SimpleNamespace(seconds=tuple(fast)))
        for n, b in ((1, 8), (2, 1))
    ]
    hint = "An answer may hold several images: multiply by the batch."
    expect(answered(choose(mixed, 0.05)) == 1, "the streams of unequal batches", "2", hint)
    return "The same rule serves with a real queue: first keep the promise, then fill the machine."


def _places(shape: tuple[int, int, int, int]) -> dict[str, np.ndarray]:
    """Places of all numbers: count through memory, then turn it back into N, C, H, W."""
    n, c, h, w = shape
    memory = np.arange(n * c * h * w)
    blocked = memory.reshape(n, c // BLOCK, h, w, BLOCK).transpose(0, 1, 4, 2, 3)
    return {
        "NCHW": memory.reshape(shape),
        "NHWC": memory.reshape(n, h, w, c).transpose(0, 3, 1, 2),
        "nChw16c": blocked.reshape(shape),
    }


def _some_indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    random = np.random.default_rng(33)
    return [tuple(int(random.integers(length)) for length in shape) for _ in range(20)]


def _where(layout: str, came: Any, shape: tuple[int, ...], index: tuple[int, ...]) -> str:
    for other, places in _places(shape).items():
        if other != layout and came == places[index]:
            return f"That is its place in {other}. Which dimension is the innermost here?"
    if layout == "nChw16c":
        return "c // 16 stands where C stands in NCHW; c % 16 is the innermost."
    return "The innermost dimension has step 1; each other one steps over all inside it."


def _fair() -> dict[str, tuple[str, float, str, list[tuple[float, str]]]]:
    """Give for each claim letter, ratio, hint for the letter, usual mistakes."""
    silent = "Look at what the table of claims says about it. Does it name a baseline at all?"
    return {
        "72x": (
            "D",
            CAFFE_MS["CAFFE"] / CAFFE_MS["MKL2017"],
            silent,
            [
                (CAFFE_MS["CAFFE"] / CAFFE_MS["MKLDNN"], "Take the fastest of the engines."),
                (72, "That is the claim itself."),
            ],
        ),
        "26x": (
            "D",
            _quotient(CAFFE2[1]),
            silent,
            [
                (_quotient(CAFFE2[44]), "Eigen makes no use of 44 threads. Use equal threads."),
                (26, "That is the claim itself."),
            ],
        ),
        "5x": (
            "A",
            _quotient(TF_BENCH),
            "Both rows of tf_bench train the same net with the same batch.",
            [(5, "Divide the two numbers that the deck prints.")],
        ),
        "1688x": (
            "C",
            float(NODES),
            "ResNet-50 was compared with DenseNet-121.",
            [
                (1688 / NODES, "That is what cannot come from the nodes. How much can?"),
                (1688 / 293, "That compares two nets. How much can 64 nodes bring to one of them?"),
            ],
        ),
        "29.4x": (
            "B",
            _quotient(HOURS),
            "32 GPUs against 1 GPU, the same net and data.",
            [(_quotient(GPUS_32), "That is the throughput again. What did all of it take?")],
        ),
    }  # fmt: skip


def _quotient(pair: tuple[float, float]) -> float:
    return pair[0] / pair[1]
