"""Measure the bubble of a pipeline on 2 ranks against the formula (p - 1) / (m + p - 1).

    python benchmarks/pipeline_bubble.py
    python benchmarks/pipeline_bubble.py --microbatches 4 --width 768

Trains a net whose two halves take equally long. For both schedules, with and without
recomputation, it prints the bubble of each step (median and range), its ratio to the formula
(goal: 0.85 to 1.15 at 8 microbatches), and how unequal the stages were. The formula leaves out
messages (0.1 to 0.4 ms between two cells) and cells that last longer by chance: with the 15 ms
cells of `--width 768` they make the ratio 1.2 to 1.3 on a virtual machine, so the cells here are
long.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise

from dlcourse.parallel_nets import deep_mlp
from dlguide.cluster import Cluster
from dlguide.parallel import pipeline, pipeline_schedule
from dlguide.parallel.pipeline import PipelineStep


def rank(ways: list, chosen: dict) -> list:
    """Measure steps on this rank; the result is the same on all."""
    import keras
    import numpy as np
    from mpi4py import MPI

    from dlguide.parallel.pipeline import PipelineParallel

    pipelines = [
        PipelineParallel(
            deep_mlp(chosen["width"], chosen["blocks"]), MPI.COMM_WORLD,
            lambda: keras.optimizers.SGD(0.01), chosen["microbatches"],
            schedule, recompute=recompute,
        )
        for schedule, recompute in ways
    ]  # fmt: skip
    samples = chosen["microbatches"] * chosen["samples"]
    images = np.random.default_rng(0).normal(size=(samples, 28, 28, 1)).astype("f4")
    labels = np.arange(samples) % 10
    return pipeline.measure_steps(pipelines, images, labels, chosen["repeats"])


def gaps(step: PipelineStep) -> dict[str, float]:
    """Take the median of what passes on the first stage between two cells in a row (s)."""
    row = sorted((c for c in step.cells if c.stage == 0), key=lambda cell: cell.start_s)
    between: dict[str, list[float]] = {}
    for one, other in pairwise(row):
        kinds = f"{one.kind} to {other.kind}"
        between.setdefault(kinds, []).append(other.start_s - one.end_s)
    return {kinds: statistics.median(each) for kinds, each in between.items()}


def main() -> None:
    """Print three lines for each schedule."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--microbatches", type=int, default=8, help="parts of a batch")
    options.add_argument("--samples", type=int, default=128, help="samples of a microbatch")
    options.add_argument("--width", type=int, default=2048, help="units of a layer")
    options.add_argument("--blocks", type=int, default=6, help="layers; even for equal stages")
    options.add_argument("--repeats", type=int, default=9, help="steps that count")
    chosen = vars(options.parse_args())
    formula = pipeline_schedule.bubble(2, chosen["microbatches"])
    print(f"formula: {formula:.4f}")
    ways = [(schedule, again) for schedule in ("gpipe", "1f1b") for again in (False, True)]
    ways.append(("zb-h1", False))
    with Cluster(ranks=2, magics=False) as cluster:
        found = cluster.run(rank, ways, chosen)[0]
    for (schedule, recompute), steps in zip(ways, found, strict=True):
        waits = [step.bubble for step in steps]
        print(
            f"{schedule:6} {'recomputed' if recompute else 'kept':10} bubble "
            f"{statistics.median(waits):.4f} ({min(waits):.4f} to {max(waits):.4f}), "
            f"ratio {statistics.median(waits) / formula:.2f}"
        )
        for kind, row in pipeline.cell_seconds(steps).items():
            print(f"    {kind}: {' and '.join(f'{1e3 * each:.2f}' for each in row)} ms")
        between = gaps(pipeline.median_step(steps)).items()
        print("   ", "; ".join(f"{kinds} {1e3 * each:.2f} ms" for kinds, each in between))


if __name__ == "__main__":
    main()
