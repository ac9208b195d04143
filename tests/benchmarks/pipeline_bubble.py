"""Measure the bubble of a pipeline on 2 ranks against the formula (p - 1) / (m + p - 1).

    python tests/benchmarks/pipeline_bubble.py
    python tests/benchmarks/pipeline_bubble.py --microbatches 4 --width 512

Trains a net whose two halves take equally long. For both schedules, with and without
recomputation, it prints the bubble of each step (median and range), its ratio to the formula
(goal: 0.85 to 1.15 at 8 microbatches), and how unequal the stages were.
"""

from __future__ import annotations

import argparse
import statistics

from dlguide.cluster import Cluster
from dlguide.parallel import measured, schedules


def rank(schedule: str, recompute: bool, chosen: dict) -> list:
    """Measure steps on this rank; the result is the same on all."""
    import keras
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel.pipeline import Pipeline

    net = measured.deep_mlp(chosen["width"], chosen["blocks"])
    pipeline = Pipeline(
        net, MPI.COMM_WORLD, lambda: keras.optimizers.SGD(0.01), chosen["microbatches"],
        schedule, recompute=recompute,
    )  # fmt: skip
    samples = chosen["microbatches"] * chosen["samples"]
    images = np.random.default_rng(0).normal(size=(samples, 28, 28, 1)).astype("f4")
    labels = np.arange(samples) % 10
    return measured.steps(pipeline, images, labels, chosen["repeats"])


def main() -> None:
    """Print one line for each schedule."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--microbatches", type=int, default=8, help="parts of a batch")
    options.add_argument("--samples", type=int, default=64, help="samples of a microbatch")
    options.add_argument("--width", type=int, default=768, help="units of a layer")
    options.add_argument("--blocks", type=int, default=6, help="layers; even for equal stages")
    options.add_argument("--repeats", type=int, default=15, help="steps that count")
    chosen = vars(options.parse_args())
    formula = schedules.bubble(2, chosen["microbatches"])
    print(f"formula: {formula:.4f}")
    with Cluster(ranks=2, magics=False) as cluster:
        for schedule in schedules.ORDERS:
            for recompute in (False, True):
                steps = cluster.run(rank, schedule, recompute, chosen)[0]
                waits = [step.waiting for step in steps]
                ratios = [wait / formula for wait in waits]
                times = measured.cell_seconds(steps)
                cells = ", ".join(
                    f"{kind} {' and '.join(f'{1e3 * each:.2f}' for each in row)} ms"
                    for kind, row in times.items()
                )
                print(
                    f"{schedule:6} {'recomputed' if recompute else 'kept':10} bubble "
                    f"{statistics.median(waits):.4f} ({min(waits):.4f} to {max(waits):.4f}), "
                    f"ratio {statistics.median(ratios):.2f}; {cells}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
