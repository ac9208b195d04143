"""Compare 2 ranks of one thread each with the best single process on the same two cores.

    python benchmarks/two_ranks_against_one.py --batch 100
    python benchmarks/two_ranks_against_one.py --batch 16

All train the MNIST network with `training.fit` on the same samples an epoch, with `--batch` images
per rank and step. The candidates take turns; the ratio is taken turn by turn. Its limit is what two
perfect ranks could reach: twice the speed of one thread over the best single process. The smaller
the batch, the less there is in it for the threads of one process to share, and the higher that
limit.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import report

from dlguide import training
from dlguide.cluster import Cluster
from dlguide.machine import describe, threads
from dlguide.training import compare


def main() -> None:
    """Print the table of the last turn and the ratios of all turns."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--samples", type=int, default=12000, help="training images an epoch")
    options.add_argument("--turns", type=int, default=5, help="turns of each candidate")
    options.add_argument("--batch", type=int, default=100, help="images per rank and step")
    chosen = options.parse_args()
    machine = describe()
    pair = threads.plan(machine, ranks=2)
    whole = threads.plan(machine, ranks=1)
    single = threads.ThreadPlan(1, 1, (pair.cpus[0],), False)
    plans = {"1 rank, all threads": whole, "1 rank, 1 thread": single, "2 ranks": pair}
    speeds: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(chosen.turns):
        runs = {}
        for name, plan in plans.items():
            with Cluster(plan, magics=False) as cluster:
                config = training.FitConfig(samples=chosen.samples, evaluate=False)
                work = {"batch_per_rank": chosen.batch, "config": config}
                runs[name] = cluster.run(training.fit, **work)
        for name, row in zip(plans, compare.rows(runs.values()), strict=True):
            speeds[name].append(row.images_per_s)
        print({name: round(values[-1]) for name, values in speeds.items()}, flush=True)
    best = max(list(plans)[:2], key=lambda name: statistics.median(speeds[name]))
    times = {name: np.divide(1, each) for name, each in speeds.items()}
    share = float(np.median(np.divide(speeds["2 ranks"], speeds["1 rank, 1 thread"]))) / 2
    what = f"2 ranks / the best single process ({best}), batch {chosen.batch}"
    report.compare(what, times["2 ranks"], times[best], least=1.5, share=share)


if __name__ == "__main__":
    main()
