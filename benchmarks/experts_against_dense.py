"""Train the small model of lesson 92: dense nets and mixtures of experts, each at its best rate.

    python benchmarks/experts_against_dense.py --choose
    python benchmarks/experts_against_dense.py [--keep]

With `--choose` every kind is first trained with each rate of `CHOICE` and the seeds `CHOOSING`, and
takes its best rate; without, those of `expert_models.RATES`. Then follow four other seeds, kinds in
turns. Nothing in the table depends on the speed of the machine; the lesson measures the times of a
step, kinds in turns. Writes `data/measured/experts_against_dense.csv`, row by row; with `--keep`
rows of the same kind, rate and seed are not trained again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from dlcourse import expert_models, measured
from dlguide.cluster import Cluster

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

CHOOSING, SEEDS = (10, 11), (0, 1, 2, 3)
CHOICE = (0.004, 0.008, 0.016, 0.032)


def train(comm: Comm, kind: str, seed: int, rate: float) -> expert_models.Run:
    """Train one model on all ranks."""
    return expert_models.train(comm, kind, seed, rate)


def row(cluster: Cluster, kept: list[dict], part: str, kind: str, seed: int, rate: float) -> dict:
    """Return a row of the table, one that is kept or that of a training."""
    setting = {"part": part, "kind": kind, "rate": rate, "seed": seed}
    same = [one for one in kept if setting.items() <= one.items()]
    if same:
        return same[0]
    run = cluster.run(train, kind, seed, rate)[0]
    late, routed = slice(-100, None), bool(run.imbalance)
    return setting | {
        "held_out_nats": round(run.held_out_nats, 5),
        "imbalance": round(float(np.mean(run.imbalance[late])), 3) if routed else "",
        "dropped_percent": round(100 * float(np.mean(run.dropped_share[late])), 2)
        if routed
        else "",
    }


def rows(cluster: Cluster, kept: list[dict], choose: bool) -> Iterator[dict]:
    """Choose the rates or take the noted ones, and train with them."""
    rates, losses = dict(expert_models.RATES), {}
    for seed, rate, kind in product(CHOOSING, CHOICE, rates) if choose else ():
        yield (one := row(cluster, kept, "choice", kind, seed, rate))
        losses[kind, rate] = losses.get((kind, rate), 0.0) + one["held_out_nats"]
    for kind in rates if choose else ():
        rates[kind] = min(CHOICE, key=lambda rate, kind=kind: losses[kind, rate])
    for seed in SEEDS:
        for kind, rate in rates.items():
            yield row(cluster, kept, "result", kind, seed, rate)


def main() -> None:
    """Train, and write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--choose", action="store_true", help="choose the rates first")
    options.add_argument("--keep", action="store_true", help="keep the table's equal rows")
    chosen = options.parse_args()
    kept, table = measured.load("experts_against_dense").rows if chosen.keep else [], []
    with Cluster(ranks=2, magics=False) as cluster:
        for one in rows(cluster, kept, chosen.choose):
            table.append(one)
            print(*one.values(), flush=True)
            rest = [one for one in kept if one not in table]  # for the next call with `--keep`
            measured.write("experts_against_dense", table + rest, (*CHOOSING, *SEEDS))
    measured.write("experts_against_dense", table, (*CHOOSING, *SEEDS))


if __name__ == "__main__":
    main()
