"""Train the small net of lesson 24 by every scheme of communication, each at its own best setting.

    python benchmarks/less_communication.py --choose
    python benchmarks/less_communication.py

Momentum and learning rate are chosen for each scheme out of `SETTINGS` by two seeds (`--choose`
prints all accuracies) and noted in `BEST`. They are then used with four other seeds, so that no
scheme is compared at the setting of another. Controls: one rank alone, which never exchanges
anything, and gradient accumulation, one exchange for every 16 batches. Then the mean of the
weights after 4 to 160 steps, where all ranks draw from all samples and where each has its own
classes. Writes `data/measured/less_communication.csv`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product

from dlcourse import measured
from dlguide.cluster import Cluster

STEPS, TARGET, CHOOSING, SEEDS = 320, 0.92, (10, 11), (0, 1, 2, 3)
SETTINGS = [(0, 0.25), (0, 0.5), (0, 1), (0, 2), (0.9, 0.05), (0.9, 0.1), (0.9, 0.2), (0.9, 0.4)]
BEST = {
    "none": (0.9, 0.2),
    "bf16": (0.9, 0.2),
    "top-k 1 %": (0, 1),
    "threshold": (0, 2),
    "one bit": (0, 1),
    "PowerSGD 4": (0.9, 0.2),
    "top-k, forgets": (0.9, 0.2),
    "one bit, forgets": (0, 0.5),
    "mean": (0.9, 0.2),
    "block momentum": (0, 0.5),
    "accumulation": (0.9, 0.4),
    "one rank alone": (0.9, 0.1),
}


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
    look_every = STEPS if seed in CHOOSING else 20
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


def rows(cluster: Cluster, choose: bool) -> Iterator[dict]:
    """Train with the best setting of each scheme, or with all settings."""

    def found(seeds: tuple[int, ...], part: str, *arguments: object) -> list[dict]:
        one = [cluster.run(train, *arguments[:3], seed, *arguments[3:])[0] for seed in seeds]
        print(*arguments, [each["accuracy_percent"] for each in one], flush=True)
        return [{"part": part, **row} for row in one]

    if choose:
        for scheme, setting in product(BEST, SETTINGS):
            yield from found(CHOOSING, "choice", scheme, *setting)
        return
    for scheme, setting in BEST.items():
        yield from found(SEEDS, "result", scheme, *setting)
    for every, alike in product((4, 16, 64, 160), (True, False)):
        yield from found(SEEDS, "rarer", "mean", *BEST["mean"], every, alike)
    for scheme in ("none", "block momentum"):
        yield from found(SEEDS, "rarer", scheme, *BEST[scheme], 16, False)


def main() -> None:
    """Train, and write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--choose", action="store_true", help="train with all settings, no table")
    choose = options.parse_args().choose
    with Cluster(ranks=2, magics=False) as cluster:
        table = list(rows(cluster, choose))
    if not choose:
        print(measured.write("less_communication", table, SEEDS))


if __name__ == "__main__":
    main()
