"""Exercises of lesson 30: a peak, a batch, a ring, and what hides an exchange."""

from itertools import pairwise, permutations
from math import ceil, floor, inf

from dlcourse.exercises.engine import Exercise, Letters
from dlguide.machine.gpu_topology import DGX_1

# Of the PRACE guide 2019: cores, clock, bits of a unit, units
TABLE_1 = [(28, 1.7e9, 512, 2), (28, 2.3e9, 512, 2), (32, 2.2e9, 128, 2), (8, 1.7e9, 512, 1)]
ALEXNET, GOOGLENET = (3 * 1.4e9, 64_000_000), (3 * 3.0e9, 13_000_000)  # flop, parameters
SPEEDS = [(1e12, 1e9, 1), (1e12, 1e9, 2), (5e12, 5e9, 32)]
LINKS = {(0, 1): 4.0, (2, 1): 3.0, (2, 3): 2.0, (0, 3): 1.0, (1, 3): 9.0}
ORDERS = (0, 1, 2, 3), (0, 1, 3, 2), (3, 2, 1, 0)
RINGS = tuple(range(8)), (0, 1, 2, 3, 7, 6, 5, 4), (0, 2, 6, 4, 7, 5, 1, 3)
CAUSES = {
    "half the work": ("D", "Count cores, not CPUs: `pictures.topology` shows which are pairs."),
    "above 1": ("A", "Two units cannot start more than two instructions. What else is in it?"),
    "batch of 8": ("F", "What moves once, however many images use it?"),
    "below the roof": ("B", "The roof has bytes and operations. What else does a layer cost?"),
    "a third of it": ("C", "Add up the links of one GPU, in both directions."),
    "twice the peak": ("E", "Which products does a data sheet count, but a GPU not compute?"),
}


def peak(cores, clock, bits, units):
    return cores * clock * units * (bits / 32) * 2


def first_batch(inputs, outputs, ridge, rounded=ceil):
    left = 2 * inputs * outputs - 4 * ridge * (inputs + outputs)
    return rounded(4 * ridge * inputs * outputs / left) if left > 0 else None


def slowest(order, links, closed=True, missing=0, both=True):
    ring = (*order, order[0]) if closed else order
    return min(links.get(p, links.get(p[::-1] if both else p, missing)) for p in pairwise(ring))


def rings():
    speeds = [slowest((0, *order), DGX_1) for order in permutations(range(1, 8))]
    good, none = speeds.count(100e9), speeds.count(0)
    return f"Of {len(speeds)} orders of 8 GPUs, {none} lack a link, {good} use double links only."


def hiding_batch(flops, parameters, flops_per_s, bytes_per_s, ranks, rounded=ceil, least=1):
    exchange_s = 2 * (ranks - 1) / ranks * 4 * parameters / bytes_per_s
    return max(least, rounded(exchange_s * flops_per_s / flops))


EXERCISES = {
    "30-1": Exercise(peak, TABLE_1, {
        "Half of it: a product and a sum are 2 operations, and a core has 2 units.":
            lambda *case: peak(*case) / 2,
        "How many float32, of 32 bits each, fit into a unit?": lambda *case: peak(*case) * 32,
        "Both are missing: the 2 operations of an FMA, and the units of a core.":
            lambda cores, clock, bits, units: cores * clock * bits / 32,
    }, hint="Which factor is missing? A unit multiplies and adds: how many operations is that?",
        remark="The PRACE guide prints 3.0, 4.2 and 1.1 for the first three, in 1e12 flop/s."),
    "30-2": Exercise(first_batch, [(1024, 10, 5.0), (1024, 1024, 5.0), (4096, 1000, 20.0)], {
        "Even an endless batch has at most inputs * outputs / (2 (inputs + outputs)).":
            lambda inputs, outputs, ridge: ceil(2 * ridge),
        "Inputs and outputs move too, and there are more of them in larger batches.":
            lambda *case: first_batch(*case) and ceil(2 * case[2]),
        "A batch is a whole number; round up.": lambda *case: first_batch(*case, float),
    }, hint="Weights, inputs and outputs, 4 bytes each, each once; 2 flop for each product. None "
        "where even an endless batch is too small.",
        remark="The first layer, with its 10 outputs, stays limited by memory whatever the batch."),
    "30-3": Exercise(slowest,
        [(order, LINKS) for order in ORDERS] + [(order, DGX_1) for order in RINGS], {
        "The last device is linked to the first.": lambda *case: slowest(*case, closed=False),
        "0 where a link of the ring is missing.": lambda *case: slowest(*case, missing=inf),
        "A pair appears once: look for (a, b) and for (b, a).":
            lambda *case: slowest(*case, both=False),
        "Only links of the ring count: in one case all are double, in one all are single.":
            lambda order, links: min(links.values()),
    }, hint="Which of the links between neighbours on the ring is the slowest?", remark=rings),
    "30-4": Exercise(hiding_batch,
        [(*net, *speeds) for net in (ALEXNET, GOOGLENET) for speeds in SPEEDS], {
        "One rank exchanges nothing, but a batch has at least one image.":
            lambda *case: hiding_batch(*case, least=0),
        "A parameter has 4 bytes.": lambda f, n, *rest: hiding_batch(f, n / 4, *rest),
        "At least as long: round up.": lambda *case: hiding_batch(*case, floor),
    }, hint="A ring sends 2 (p - 1) / p of the gradient, 4 bytes for each parameter.",
        remark=f"On 32 ranks AlexNet needs {hiding_batch(*ALEXNET, *SPEEDS[2])} images, GoogLeNet "
        f"{hiding_batch(*GOOGLENET, *SPEEDS[2])}: what decides is flop per byte of the gradient."),
    "30-5": Letters(CAUSES, "A clock, a count, a direction: what a number counts comes first."),
}  # fmt: skip
