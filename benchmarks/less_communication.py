"""Train the small net of lesson 24 by every scheme of communication, each at its own best setting.

    python benchmarks/less_communication.py

Momentum and learning rate are chosen for each scheme by two seeds and then used with four others,
so that no scheme is compared at the setting of another. Controls: one rank alone, which never
exchanges anything, and gradient accumulation, one exchange for every 16 batches. Then the mean of
the weights after 1 to 160 steps, where all ranks draw from all samples and where each has its own
classes. Writes `data/measured/less_communication.csv`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from dlcourse import measured
from dlguide.cluster import Cluster

STEPS, TARGET, CHOOSING, SEEDS = 320, 0.92, (10, 11), (0, 1, 2, 3)
SETTINGS = [(0, 0.25), (0, 0.5), (0, 1), (0, 2), (0.9, 0.05), (0.9, 0.1), (0.9, 0.2), (0.9, 0.4)]
SCHEMES = [
    "none", "bf16", "top-k 1 %", "threshold", "one bit", "PowerSGD 4", "top-k, forgets",
    "one bit, forgets", "mean", "block momentum", "accumulation", "one rank alone",
]  # fmt: skip


def train(
    scheme: str, momentum: float, rate: float, seed: int, every: int = 16, alike: bool = True
) -> dict:
    """Train once on all ranks, and return a row of the table."""
    from mpi4py import MPI

    from dlcourse import small_mlp
    from dlguide.data import datasets
    from dlguide.parallel import compression, local_sgd

    make = {
        "bf16": compression.bf16,
        "top-k 1 %": lambda: compression.top_k(0.01),
        "threshold": lambda: compression.threshold(0.01),
        "one bit": compression.one_bit,
        "PowerSGD 4": lambda: compression.power_sgd(4),
        "top-k, forgets": lambda: compression.top_k(0.01, error_feedback=False),
        "one bit, forgets": lambda: compression.one_bit(error_feedback=False),
        "mean": local_sgd.LocalSGD,
        "block momentum": lambda: local_sgd.BlockMomentum(0.5),
    }.get(scheme, compression.none)
    comm = MPI.COMM_SELF if scheme == "one rank alone" else MPI.COMM_WORLD
    look_every = STEPS if seed in CHOOSING else 10
    more = every if scheme == "accumulation" else 1  # batches in one update
    run = small_mlp.train_on_ranks(
        make(), comm, datasets.load().first(8000), STEPS // more, 32 * more, rate, momentum, seed,
        every, max(1, look_every // more), alike, decay=True,
    )  # fmt: skip
    place = run.held(TARGET)
    return {
        "scheme": scheme,
        "every_steps": every if scheme in ("mean", "block momentum", "accumulation") else 1,
        "samples": "all" if alike else "own classes",
        "momentum": momentum,
        "rate": round(rate, 4),
        "seed": seed,
        "accuracy_percent": round(100 * run.accuracy[-1], 2),
        "held_steps": "never" if place is None else more * run.step[place],
        "nbytes_per_step": round(run.nbytes_per_step / more),
    }


def rows(cluster: Cluster) -> Iterator[dict]:
    """Choose a setting for each scheme, then train with it."""

    def found(seeds: tuple[int, ...], *arguments: object) -> list[dict]:
        one = [cluster.run(train, *arguments[:3], seed, *arguments[3:])[0] for seed in seeds]
        print(*arguments, [each["accuracy_percent"] for each in one], flush=True)
        return one

    best = {}
    for scheme in SCHEMES:
        tried = {each: found(CHOOSING, scheme, *each) for each in SETTINGS}
        yield from ({"part": "choice", **row} for each in tried.values() for row in each)
        best[scheme] = max(
            tried, key=lambda each: np.mean([row["accuracy_percent"] for row in tried[each]])
        )
        yield from ({"part": "result", **row} for row in found(SEEDS, scheme, *best[scheme]))
    for every, alike in product((1, 4, 16, 64, 160), (True, False)):
        again = found(SEEDS, "mean", *best["mean"], every, alike)
        yield from ({"part": "rarer", **row} for row in again)
    for scheme in ("none", "block momentum"):
        again = found(SEEDS, scheme, *best[scheme], 16, False)
        yield from ({"part": "rarer", **row} for row in again)


def main() -> None:
    """Train, and write the table."""
    with Cluster(ranks=2, magics=False) as cluster:
        found = list(rows(cluster))
    print(measured.write("less_communication", found, (*CHOOSING, *SEEDS)))


if __name__ == "__main__":
    main()
