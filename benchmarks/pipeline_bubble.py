"""Measure the bubble of a pipeline on 2 ranks against the formula of its schedule.

    python benchmarks/pipeline_bubble.py
    python benchmarks/pipeline_bubble.py --microbatches 4 --width 768
    python benchmarks/pipeline_bubble.py --write

Trains a net whose two halves take equally long. For each schedule (with `--recompute` also GPipe
and 1F1B with recomputation) it prints the bubble of each step (median and range), its ratio to the
formula, the bubble that follows from the measured times of
each stage, and how unequal the stages were; `--write` puts them into
data/measured/pipeline_bubble.csv. For ZB-H1 the formula takes the measured times of forward,
backward and weights. The formula leaves out
messages (0.1 to 0.4 ms between two cells) and cells that last longer by chance: with the 15 ms
cells of `--width 768` they make the ratio 1.2 to 1.3 on a virtual machine, so the cells here are
long.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise

from report import report

from dlcourse import measured
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
            schedule, recompute=recompute, chunks=chunks,
        )
        for schedule, recompute, chunks in ways
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


def expected(
    schedule: str, chunks: int, microbatches: int, steps: list[PipelineStep]
) -> tuple[float, float]:
    """Return the bubble of the formula, and that of the schedule with each stage's own times."""
    times = pipeline.cell_seconds(steps)
    forward, backward = (
        [chunks * each for each in times[kind]] for kind in ("forward", "backward")
    )
    later = times.get("weights", [0.0, 0.0])
    whole = [one + other for one, other in zip(backward, later, strict=True)]
    mean = [statistics.mean(row) for row in (forward, whole, later)]
    formula = pipeline_schedule.bubble(2, microbatches, schedule, chunks, *mean)
    cells = pipeline_schedule.predict(
        schedule, 2, microbatches, forward, whole, chunks=chunks, weights_s=later
    )
    return formula, pipeline_schedule.idle_share(cells)


def main() -> None:
    """Print three lines for each schedule."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--microbatches", type=int, default=8, help="parts of a batch")
    options.add_argument("--samples", type=int, default=128, help="samples of a microbatch")
    options.add_argument("--width", type=int, default=2048, help="units of a layer")
    options.add_argument("--blocks", type=int, default=8, help="layers; a multiple of 4")
    options.add_argument("--repeats", type=int, default=9, help="steps that count")
    options.add_argument("--recompute", action="store_true", help="with recomputation as well")
    options.add_argument("--write", action="store_true", help="write the table")
    chosen, rows = vars(options.parse_args()), []
    again = (False, True) if chosen["recompute"] else (False,)
    ways = [(schedule, each, 1) for schedule in ("gpipe", "1f1b") for each in again]
    ways += [("interleaved", False, 2), ("zb-h1", False, 1)]
    with Cluster(ranks=2, magics=False) as cluster:
        found = cluster.run(rank, ways, chosen)[0]
    for (schedule, recompute, chunks), steps in zip(ways, found, strict=True):
        waits = [step.bubble for step in steps]
        median = statistics.median(waits)
        formula, own = expected(schedule, chunks, chosen["microbatches"], steps)
        again = "recomputed" if recompute else "kept"
        print(
            f"{schedule:11} {again:10} bubble {median:.4f} ({min(waits):.4f} to {max(waits):.4f}), "
            f"formula {formula:.4f}, ratio {median / formula:.2f}, with own times {own:.4f}"
        )
        spans = [max(cell.end_s for cell in step.cells) for step in steps]
        what = f"bubble of {schedule} / its formula, activations {again}"
        report(what, [wait / formula for wait in waits], least=0.9, most=1.1, seconds=[spans])
        for kind, row in pipeline.cell_seconds(steps).items():
            print(f"    {kind}: {' and '.join(f'{1e3 * each:.2f}' for each in row)} ms")
        between = gaps(pipeline.median_step(steps)).items()
        print("   ", "; ".join(f"{kinds} {1e3 * each:.2f} ms" for kinds, each in between))
        row = {"schedule": schedule, "recompute": again, "chunks": chunks}
        row |= {"microbatches": chosen["microbatches"], "formula": round(formula, 5)}
        row["own_times"] = round(own, 5)
        row |= {"bubble": round(median, 5), "low": round(min(waits), 5)}
        row |= {"high": round(max(waits), 5), "step_s": round(statistics.median(spans), 4)}
        rows.append(row)
    if chosen["write"]:
        print(measured.write("pipeline_bubble", rows, seeds=[0]))


if __name__ == "__main__":
    main()
