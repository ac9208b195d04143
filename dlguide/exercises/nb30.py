"""Checks of the exercises of notebook 30: a peak, a batch, a ring, and what hides an exchange."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes

TABLE_1 = {
    # cores, clock, bits of a unit, units: PRACE guide 2019, Table 1, notes e and f
    "Xeon 8180, 1.7e9 Hz": (28, 1.7e9, 512, 2),
    "Xeon 8180, 2.3e9 Hz": (28, 2.3e9, 512, 2),
    "EPYC 7601, units of 128 bits": (32, 2.2e9, 128, 2),
    "a Xeon Bronze with one unit": (8, 1.7e9, 512, 1),
}

_DOUBLE = ((0, 1), (0, 4), (1, 2), (2, 3), (3, 7), (4, 5), (5, 6), (6, 7))
_SINGLE = ((0, 2), (0, 3), (1, 3), (1, 5), (2, 6), (4, 6), (4, 7), (5, 7))
DGX_1 = {**dict.fromkeys(_DOUBLE, 100e9), **dict.fromkeys(_SINGLE, 50e9)}

CAUSES = {
    "half the work": (
        "D",
        "Count cores, not CPUs: `plots.topology` of the node shows which are pairs.",
    ),
    "above 1": (
        "A",
        "Two units cannot start more than two instructions. What else is in the product?",
    ),
    "batch of 8": ("F", "What moves once, however many images use it?"),
    "below the roof": (
        "B",
        "The roof knows bytes and operations. What does each layer cost besides?",
    ),
    "a third of it": ("C", "Add up the links of one GPU, and both ways of each."),
    "twice the peak": ("E", "Which products does a data sheet count that a dense matrix has not?"),
}


def exercise_30_1(peak: Callable[..., Any]) -> str:
    """Check the peak that follows from clock, width and units.

    Args:
        peak: called with cores, clock (Hz), bits of a unit and units of a core, returns the
            peak in float32 (flop/s).

    Returns:
        str: what it means.
    """
    expect_function(peak)
    for name, (cores, clock_hz, bits, units) in TABLE_1.items():
        came = answered(peak(cores, clock_hz, bits, units))
        right = cores * clock_hz * units * (bits / 32) * 2
        hint = "Which factor is missing? A unit multiplies and adds: how many operations is that?"
        if np.isscalar(came) and np.isreal(came) and came:
            ratio = float(np.real(came)) / right
            if math.isclose(ratio, 0.5) and units == 2:
                hint = "Half of it: a product and a sum are 2 operations, and a core has 2 units."
            elif math.isclose(ratio, 32):
                hint = "How many float32, of 32 bits each, fit into a unit?"
            elif math.isclose(ratio, 0.25 if units == 2 else 0.5):
                hint = "Both are missing: the 2 operations of an FMA, and the units of a core."
        expect_close(came, right, f"the peak of {name}", hint, 1e-9)
    return "The guide prints 3.0, 4.2 and 1.1 for the first three, in 1e12 flop/s."


def exercise_30_2(smallest_batch: Callable[..., Any]) -> str:
    """Check from which batch on a dense layer is limited by arithmetic.

    Args:
        smallest_batch: called with the inputs and outputs of the layer and the ridge of the roof
            (flop/byte), returns the smallest batch whose intensity reaches the ridge, or None.

    Returns:
        str: what it means.
    """
    expect_function(smallest_batch)
    batches = []
    for inputs, outputs, ridge in ((1024, 10, 5.0), (1024, 1024, 5.0), (4096, 1000, 20.0)):
        came = answered(smallest_batch(inputs, outputs, ridge))
        right = _first_batch(inputs, outputs, ridge)
        batches.append(right)
        case = f"of a layer {inputs} x {outputs} with a ridge of {ridge:g} flop/byte"
        if right is None:
            hint = "Even an endless batch has at most inputs * outputs / (2 (inputs + outputs))."
            expect(came is None or came == math.inf, f"None for {case}", came, hint)
            continue
        hint = "Weights, inputs and outputs, 4 bytes each, each once; 2 flop for each product."
        if isinstance(came, int | float | np.number):
            without = math.ceil(2 * ridge)
            if came == without != right:
                hint = "Inputs and outputs move too, and there are more of them in larger batches."
            elif math.ceil(float(came)) == right and came != right:
                hint = "A batch is a whole number; round up."
        expect(came == right, f"the smallest batch {case}", came, hint)
    return (
        f"Batches of {batches[1]} and {batches[2]}; the first layer, with its 10 outputs, stays "
        "limited by memory whatever the batch."
        if batches[0] is None
        else f"Batches of {', '.join(map(str, batches))}: one image at a time leaves peaks unused."
    )


def exercise_30_3(slowest_link: Callable[..., Any]) -> str:
    """Check the speed of a ring in a graph of links.

    Args:
        slowest_link: called with the devices in the order of a ring and the links, a dictionary
            from pairs to bytes/s in which each pair stands once; returns the bytes/s of the
            slowest link of the ring, 0 where a link is missing.

    Returns:
        str: what it means.
    """
    expect_function(slowest_link)
    small = {(0, 1): 4.0, (2, 1): 3.0, (2, 3): 2.0, (0, 3): 1.0, (1, 3): 9.0}
    cases = [
        ((0, 1, 2, 3), small, "The last device is linked to the first."),
        ((0, 1, 3, 2), small, "0 where a link of the ring is missing."),
        ((3, 2, 1, 0), small, "A pair stands once: look for (a, b) and for (b, a)."),
        (tuple(range(8)), DGX_1, "0 where a link of the ring is missing."),
        ((0, 1, 2, 3, 7, 6, 5, 4), DGX_1, "Only double links are used here."),
        ((0, 2, 6, 4, 7, 5, 1, 3), DGX_1, "Only single links are used here."),
    ]
    for order, links, hint in cases:
        came = answered(slowest_link(order, dict(links)))
        right = _slowest((*order, order[0]), links)
        expect_close(came, right, f"the slowest link of the ring {order}", hint, 1e-9)
    speeds = [_slowest((0, *order, 0), DGX_1) for order in itertools.permutations(range(1, 8))]
    return (
        f"Of the {len(speeds)} orders of 8 GPUs, {speeds.count(0.0)} have no ring of direct links "
        f"and {speeds.count(100e9)} keep to double ones."
    )


def exercise_30_4(smallest_batch: Callable[..., Any]) -> str:
    """Check how many images must be computed for the exchange of gradients to be hidden.

    Args:
        smallest_batch: called with the flop of one image in training, the parameters, the flop/s
            of a rank, the bytes/s of the exchange and the ranks; returns the smallest whole
            batch of a rank whose computing takes at least as long as the exchange.

    Returns:
        str: what it means.
    """
    expect_function(smallest_batch)
    # AlexNet and GoogLeNet as the tutorial of 2017 sizes them: 64e6 and 13e6 parameters
    nets = {"AlexNet": (3 * 1.4e9, 64_000_000), "GoogLeNet": (3 * 3.0e9, 13_000_000)}
    found = {}
    for name, (flops, parameters) in nets.items():
        for ranks, flops_per_s, bytes_per_s in ((1, 1e12, 1e9), (2, 1e12, 1e9), (32, 5e12, 5e9)):
            arguments = (flops, parameters, flops_per_s, bytes_per_s, ranks)
            came = answered(smallest_batch(*arguments))
            exchange_s = 2 * (ranks - 1) / ranks * 4 * parameters / bytes_per_s
            right = max(1, math.ceil(exchange_s * flops_per_s / flops))
            found[name, ranks] = right
            hint = "A ring sends 2 (p - 1) / p of the gradient, 4 bytes for each parameter."
            if ranks == 1:
                hint = "One rank exchanges nothing, but a batch has at least one image."
            elif came == max(1, math.ceil(exchange_s / 4 * flops_per_s / flops)):
                hint = "A parameter has 4 bytes."
            elif came == max(1, math.floor(exchange_s * flops_per_s / flops)):
                hint = "At least as long: round up."
            case = f"{name} on {ranks} ranks, {flops_per_s:g} flop/s, {bytes_per_s:g} bytes/s"
            expect(came == right, f"the smallest batch of {case}", came, hint)
    ratio = found["AlexNet", 32] / found["GoogLeNet", 32]
    return (
        f"AlexNet needs {ratio:.0f} times the batch of GoogLeNet: few operations for each byte of "
        "its gradient. Flop per gradient byte decides how a net scales, not its size alone."
    )


def exercise_30_5(causes: Mapping[str, str]) -> str:
    """Check which cause belongs to which observation.

    Args:
        causes: for each of the six observations a letter from "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return "A clock, a count, a direction: say what a number counts before you compare it."


def _slowest(way: tuple[int, ...], links: dict[tuple[int, int], float]) -> float:
    return min(links.get((a, b), links.get((b, a), 0.0)) for a, b in itertools.pairwise(way))


def _first_batch(inputs: int, outputs: int, ridge: float) -> int | None:
    most = inputs * outputs / (2 * (inputs + outputs))
    if most <= ridge:
        return None
    # 2 B n m = ridge * 4 (n m + B (n + m)), solved for B
    product, total = inputs * outputs, inputs + outputs
    return math.ceil(4 * ridge * product / (2 * product - 4 * ridge * total))
