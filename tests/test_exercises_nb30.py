"""Notebook 30's checks tick what is right and say which usual mistake was made."""

import itertools
import math

from dlguide.exercises import nb30
from dlguide.machine import links


def peak(cores, clock_hz, bits, units):
    return cores * clock_hz * units * (bits // 32) * 2


def dense_batch(inputs, outputs, ridge):
    """By trying: the oracle of the closed form in the check."""
    for batch in range(1, 100_000):
        flops = 2 * batch * inputs * outputs
        if flops / (4 * (inputs * outputs + batch * (inputs + outputs))) >= ridge:
            return batch
    return None


def slowest_link(order, links):
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    return min(links.get((a, b), links.get((b, a), 0)) for a, b in pairs)


def hidden_batch(flops, parameters, flops_per_s, bytes_per_s, ranks):
    exchange_s = 2 * (ranks - 1) / ranks * 4 * parameters / bytes_per_s
    return max(1, math.ceil(exchange_s / (flops / flops_per_s)))


CAUSES = {
    "half the work": "D",
    "above 1": "A",
    "batch of 8": "F",
    "below the roof": "B",
    "a third of it": "C",
    "twice the peak": "E",
}
EMPTY = {"30-5": [dict.fromkeys(CAUSES, ...), CAUSES | {"half the work": ...}]}
RIGHT = {
    "30-1": peak,
    "30-2": dense_batch,
    "30-3": slowest_link,
    "30-4": hidden_batch,
    "30-5": CAUSES,
}
WRONG = {
    "no FMA": ("30-1", lambda c, f, b, u: peak(c, f, b, u) / 2, "a product and a sum"),
    "bits": ("30-1", lambda c, f, b, u: peak(c, f, b, u) * 32, "fit into a unit"),
    "neither": ("30-1", lambda c, f, b, u: c * f * b / 32, "Both are missing"),
    "float64": ("30-1", lambda c, f, b, u: c * f * u * b / 64 * 2, "2 operations"),
    "weights only": (
        "30-2",
        lambda n, m, r: None if n * m / 2 / (n + m) <= r else math.ceil(2 * r),
        "Inputs and outputs move too",
    ),
    "never None": ("30-2", lambda n, m, r: math.ceil(2 * r), "Even an endless batch"),
    "a product is one": ("30-2", lambda n, m, r: dense_batch(n, m, 2 * r), "2 flop for each"),
    "not whole": (
        "30-2",
        lambda n, m, r: (b := dense_batch(n, m, r)) and b - 0.25,
        "round up",
    ),
    "not closed": (
        "30-3",
        lambda o, g: min(g.get((a, b), g.get((b, a), 0)) for a, b in itertools.pairwise(o)),
        "The last device is linked",
    ),
    "one direction": (
        "30-3",
        lambda o, g: min(g.get((a, b), 0) for a, b in zip(o, (*o[1:], o[0]), strict=True)),
        "linked to the first",
    ),
    "mean": (
        "30-3",
        lambda o, g: sum(g.values()) / len(g),
        "linked to the first",
    ),
    "missing is ignored": (
        "30-3",
        lambda o, g: min(
            g.get((a, b), g.get((b, a), 9e99)) for a, b in zip(o, (*o[1:], o[0]), strict=True)
        ),
        "0 where a link",
    ),
    "parameters for bytes": (
        "30-4",
        lambda f, n, s, w, p: hidden_batch(f, n / 4, s, w, p),
        "A parameter has 4 bytes",
    ),
    "rounded down": (
        "30-4",
        lambda f, n, s, w, p: max(1, math.floor(2 * (p - 1) / p * 4 * n / w * s / f)),
        "round up",
    ),
    "once": (
        "30-4",
        lambda f, n, s, w, p: 1 if p == 1 else math.ceil(4 * n / w * s / f / 7),
        "2 (p - 1) / p",
    ),
    "nothing for one rank": (
        "30-4",
        lambda f, n, s, w, p: math.ceil(2 * (p - 1) / p * 4 * n / w * s / f),
        "at least one image",
    ),
    "no function": ("30-4", 3.0, "Write it with `def`"),
    "more instructions": ("30-5", CAUSES | {"above 1": "F"}, "Two units cannot start"),
    "cores are missing": ("30-5", CAUSES | {"half the work": "B"}, "Count cores, not CPUs"),
    "sparse links": ("30-5", CAUSES | {"a third of it": "E"}, "Add up the links"),
    "links of a sheet": ("30-5", CAUSES | {"twice the peak": "C"}, "Which products"),
    "hardware threads of a layer": ("30-5", CAUSES | {"batch of 8": "D"}, "What moves once"),
    "no letter": ("30-5", CAUSES | {"half the work": "the cores"}, "a letter from A to F"),
}


def test_closed_form_of_the_batch_is_that_of_trying():
    for inputs, outputs, ridge in ((64, 64, 5.0), (1000, 37, 3.3), (30, 20, 5.9), (500, 500, 99)):
        assert nb30._first_batch(inputs, outputs, ridge) == dense_batch(inputs, outputs, ridge)


def test_the_ring_s_graph_is_that_of_the_lesson():
    assert links.DGX_1 == nb30.DGX_1
