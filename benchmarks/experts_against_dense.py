"""Train the small model of lesson 92: dense nets and mixtures of experts, each at its best rate.

    python benchmarks/experts_against_dense.py --choose
    python benchmarks/experts_against_dense.py [--keep]

The rate of each kind is chosen by two seeds (`--choose` prints the held-out losses, for one kind
with `--kind`) and noted in `expert_models.RATES`; four other seeds are then trained, kinds in
turns. The losses do not depend on the speed of the machine; the times of a step do. Writes
`data/measured/experts_against_dense.csv`, row by row; with `--keep` the rows that it has with the
same kind, rate and seed are not trained again.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import numpy as np

from dlcourse import expert_models, measured
from dlguide.cluster import Cluster

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

CHOOSING, SEEDS = (10, 11), (0, 1, 2, 3)
CHOICE = (0.002, 0.004, 0.008, 0.016)


def train(comm: Comm, kind: str, seed: int, rate: float) -> expert_models.Run:
    """Train one model on all ranks."""
    return expert_models.train(comm, kind, seed, rate)


def row(cluster: Cluster, kind: str, seed: int, rate: float) -> dict:
    """Train once, and return a row of the table."""
    run = cluster.run(train, kind, seed, rate)[0]
    late = slice(-100, None)
    return {
        "kind": kind,
        "rate": rate,
        "seed": seed,
        "held_out_nats": round(run.held_out_nats, 5),
        "imbalance": round(np.mean(run.imbalance[late]), 3) if run.imbalance else "",
        "dropped_percent": round(100 * np.mean(run.dropped_share[late]), 2)
        if run.imbalance
        else "",
        "step_ms": round(1e3 * run.step_s, 2),
    }


def main() -> None:
    """Train, and print or write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--choose", action="store_true", help="train with all rates, no table")
    options.add_argument("--keep", action="store_true", help="keep the table's equal rows")
    options.add_argument("--kind", action="append", help="choose for this kind only")
    chosen = options.parse_args()
    seeds = CHOOSING if chosen.choose else SEEDS
    jobs = [
        (kind, seed, rate)
        for seed in seeds
        for rate in (CHOICE if chosen.choose else (None,))
        for kind in (chosen.choose and chosen.kind) or expert_models.RATES
    ]
    old, table = measured.load("experts_against_dense").rows if chosen.keep else [], []
    with Cluster(ranks=2, magics=False) as cluster:
        for kind, seed, rate in jobs:
            rate = rate or expert_models.RATES[kind]
            setting = {"kind": kind, "rate": rate, "seed": seed}.items()
            same = [one for one in old if setting <= one.items()]
            table.append(same[0] if same else row(cluster, kind, seed, rate))
            print(*table[-1].values(), flush=True)
            if not chosen.choose:
                measured.write("experts_against_dense", table, SEEDS)


if __name__ == "__main__":
    main()
