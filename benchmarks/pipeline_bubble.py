"""Measure the bubble of a pipeline on 2 and 4 ranks against the formula of its schedule.

    python benchmarks/pipeline_bubble.py
    python benchmarks/pipeline_bubble.py --microbatches 4 --width 768
    python benchmarks/pipeline_bubble.py --repeats 3 --write

Trains a net whose two halves take equally long, on 2 ranks; then works through the schedules of 4
stages with calibrated waits instead of computing. For each schedule (with `--recompute` also GPipe
and 1F1B with recomputation) it prints the bubble of each step (median and range), its ratio to the
formula (goal: 0.90 to 1.10 at 8 microbatches), the bubble of the schedule with the median times of
each stage, and with the own time of every cell; `--write` puts them into
data/measured/pipeline_bubble.csv. For ZB-H1 the formula takes the measured times of forward,
backward and weights. The formula leaves out messages (0.1 to 0.4 ms between two cells), unequal
stages, and cells that last longer by chance: with the 15 ms cells of `--width 768` they make the
ratio 1.2 to 1.3 on a virtual machine, so the cells here are long.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import pairwise

from report import report

from dlcourse import measured, waiting_ranks
from dlcourse.parallel import pipeline, pipeline_schedule
from dlcourse.parallel.pipeline import PipelineStep
from dlcourse.parallel.pipeline_schedule import Work
from dlcourse.waiting_ranks import deep_mlp
from dlguide.cluster import Cluster

PIECES = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb-h1": 1}


def rank(ways: list, chosen: dict) -> list:
    """Measure steps on this rank; the result is the same on all."""
    import keras
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel.pipeline import PipelineParallel

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
    return pipeline.measure_steps(pipelines, images, labels, chosen["repeats"], warmup=2)


def gaps(step: PipelineStep) -> dict[str, float]:
    """Take the median of what passes on the first stage between two cells in a row (s)."""
    row = sorted((c for c in step.cells if c.stage == 0), key=lambda cell: cell.start_s)
    between: dict[str, list[float]] = {}
    for one, other in pairwise(row):
        kinds = f"{one.kind} to {other.kind}"
        between.setdefault(kinds, []).append(other.start_s - one.end_s)
    return {kinds: statistics.median(each) for kinds, each in between.items()}


def expected(way: dict, steps: list[PipelineStep]) -> dict[str, float]:
    """Return the bubble of the formula, with each stage's median times, with each cell's own."""
    times, chunks, stages = pipeline.cell_seconds(steps), way["chunks"], way["stages"]
    forward, backward = (
        [chunks * each for each in times[kind]] for kind in ("forward", "backward")
    )
    later = times.get("weights", [0.0] * stages)
    whole = [one + other for one, other in zip(backward, later, strict=True)]
    mean = [statistics.mean(row) for row in (forward, whole, later)]
    job = way["schedule"], stages, way["microbatches"]
    formula = pipeline_schedule.bubble(*job[1:], job[0], chunks, *mean)
    cells = pipeline_schedule.predict(*job, forward, whole, chunks=chunks, weights_s=later)
    own = statistics.median(own_cells(step, stages) for step in steps)
    found = {"formula": formula, "own_times": pipeline_schedule.idle_share(cells), "own_cells": own}
    return {name: round(each, 5) for name, each in found.items()}


def own_cells(step: PipelineStep, stages: int) -> float:
    """Return the bubble when every cell takes its own time, and messages none."""
    orders: list[list[Work]] = [[] for _ in range(stages)]
    seconds = {}
    for cell in step.cells:
        work = Work(cell.kind, cell.microbatch, cell.chunk)
        orders[cell.stage].append(work)
        seconds[cell.stage, work] = cell.seconds
    cells = pipeline_schedule.simulate(orders, lambda stage, work: seconds[stage, work])
    return pipeline_schedule.idle_share(cells)


def waits(ways: list[dict], seconds: float, repeats: int) -> list[list[PipelineStep]]:
    """Work through schedules with calibrated waits; the result is the same on all ranks."""
    from mpi4py import MPI

    orders, times = {}, {}
    for way in ways:
        name, v, p = way["schedule"], way["chunks"], way["stages"]
        orders[name] = [
            pipeline_schedule.order(name, s, p, way["microbatches"], v) for s in range(p)
        ]
        backward_s = seconds if name == "zb-h1" else 2 * seconds / v
        times[name] = {"forward": seconds / v, "backward": backward_s, "weights": seconds}
    found = waiting_ranks.measure_orders(MPI.COMM_WORLD, orders, times, repeats=repeats)
    return [
        [PipelineStep(0.0, tuple(cells), (), ()) for cells in found[way["schedule"]]]
        for way in ways
    ]


def row_of(way: dict, steps: list[PipelineStep]) -> dict:
    """Print three lines, and return a row of the table."""
    shares = [step.bubble for step in steps]
    median, models = statistics.median(shares), expected(way, steps)
    print(f"{way['computing']} {way['schedule']:11} bubble {median:.4f}, {models}")
    times = pipeline.cell_seconds(steps)
    for kind, row in times.items():
        print(f"    {kind}: {' and '.join(f'{1e3 * each:.2f}' for each in row)} ms")
    between = gaps(pipeline.median_step(steps)).items()
    print("   ", "; ".join(f"{kinds} {1e3 * each:.2f} ms" for kinds, each in between), flush=True)
    spans = [max(cell.end_s for cell in step.cells) for step in steps]
    what = f"bubble of {way['schedule']} on {way['stages']} stages ({way['computing']}) / formula"
    ratios = [share / models["formula"] for share in shares]
    report(what, ratios, least=0.9, most=1.1, seconds=[spans])
    return {
        **way,
        "forward_s": round(statistics.mean(times["forward"]), 5),
        **models,
        "bubble": round(median, 5),
        "low": round(min(shares), 5),
        "high": round(max(shares), 5),
        "step_s": round(statistics.median(spans), 4),
    }


def main() -> None:
    """Measure, print, and write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--microbatches", type=int, default=8, help="parts of a batch")
    options.add_argument("--samples", type=int, default=128, help="samples of a microbatch")
    options.add_argument("--width", type=int, default=3072, help="units of a layer")
    options.add_argument("--blocks", type=int, default=8, help="layers; a multiple of 4")
    options.add_argument("--repeats", type=int, default=9, help="steps that count")
    options.add_argument("--wait", type=float, default=0.05, help="forward pass of a wait (s)")
    options.add_argument("--recompute", action="store_true", help="with recomputation as well")
    options.add_argument("--write", action="store_true", help="write the table")
    chosen, rows = vars(options.parse_args()), []
    again = (False, True) if chosen["recompute"] else (False,)
    of_net = [(schedule, each, 1) for schedule in ("gpipe", "1f1b") for each in again]
    of_net += [("interleaved", False, 2), ("zb-h1", False, 1)]
    with Cluster(ranks=2, magics=False) as cluster:
        found = cluster.run(rank, of_net, chosen)[0]
    common = {"stages": 2, "microbatches": chosen["microbatches"]}
    for (schedule, recompute, chunks), steps in zip(of_net, found, strict=True):
        computing = "net, recomputed" if recompute else "net"
        way = {"computing": computing, "schedule": schedule, "chunks": chunks} | common
        rows.append(row_of(way, steps))
    common["stages"] = 4
    ways = [{"computing": "waits", "schedule": n, "chunks": v} | common for n, v in PIECES.items()]
    with Cluster(ranks=4, magics=False, oversubscribe=True) as cluster:
        found = cluster.run(waits, ways, chosen["wait"], chosen["repeats"])[0]
    rows += map(row_of, ways, found)
    if chosen["write"]:
        print(measured.write("pipeline_bubble", rows, seeds=[0]))


if __name__ == "__main__":
    main()
