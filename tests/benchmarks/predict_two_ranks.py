"""Predict the step of 2 ranks from one rank's and the exchange's, and measure it.

    python tests/benchmarks/predict_two_ranks.py
    python tests/benchmarks/predict_two_ranks.py --cases mnist_cnn:100 --turns 3

Each case is a net and a batch per rank. In the same ranks parts and step take turns, few steps at
a time: one rank by itself, both at the same time without exchange, the optimizer's update with
exchange and without, the real step. Predicted is the median of the slower of two steps that began
together without exchange, plus the exchange. Printed are predicted over measured of every turn,
their median and range (goal: within 10 % of the measured step), and how wrong it would be to take
one rank by itself instead, which leaves out that two ranks share memory, caches and clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
from itertools import product

from dlguide.bench import scaling
from dlguide.cluster import Cluster

CASES = "mlp:100,mnist_cnn:16,mnist_cnn:100,resnet20:16"


def main() -> None:
    """Print a line for each turn, and the median and range of all."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", default=CASES, help="net:batch, separated by commas")
    options.add_argument("--turns", type=int, default=1, help="how often each case is measured")
    options.add_argument("--steps", type=int, default=60, help="measured steps of each part")
    chosen = options.parse_args()
    rounds, ratios, naive = chosen.steps // 2, [], []
    with Cluster(ranks=2, oversubscribe=True, magics=False) as cluster:
        for turn, case in product(range(chosen.turns), chosen.cases.split(",")):
            net, batch = case.split(":")
            work = {"net": net, "batch": int(batch), "steps": chosen.steps, "rounds": rounds}
            found = scaling.measure("weak", (2,), **work, seed=turn, cluster=cluster)
            (row,) = found.rows
            ratios.append(row.ratio)
            naive.append((row.alone_s + row.predicted.exposed_s) / row.step.median)
            print(
                f"{net}, batch {batch}: measured {1e3 * row.step.median:.2f} ms "
                f"({1e3 * row.step.low:.2f} to {1e3 * row.step.high:.2f}), ratio "
                f"{row.ratio:.3f}, from one rank by itself {naive[-1]:.3f}; {row.predicted}; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for name, values in (("predicted", ratios), ("from one rank by itself", naive)):
        within = sum(abs(value - 1) <= 0.10 for value in values)
        print(
            f"{name} over measured: median {statistics.median(values):.3f}, from "
            f"{min(values):.3f} to {max(values):.3f}; {within} of {len(values)} within 10 %"
        )


if __name__ == "__main__":
    main()
