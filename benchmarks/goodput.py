"""Measure goodput under failures, and compare it with the formula of Young and Daly.

    python benchmarks/goodput.py --keep

Two ranks train the small net of lesson 73 in real processes, of which one is killed after each
gap of an exponential distribution; `dlguide.cluster.run_script` notices it, and the ranks are
started again and go on from the last checkpoint. Trainings at three mean times between failures,
each at Daly's best interval, and at one of them with other intervals. An interval is a number of
steps: by the time of a step in the training before, for the first one in one that is not killed.
Goodput is the time of the work that was saved, from the first failure to the last. Three terms of
the prediction are means of the same training: the work between two checkpoints, a checkpoint (which
waits on purpose, as on a slow file system), and a restart, from the kill to the first new step; the
fourth is the set mean.
The gaps are stratified (`faults.gaps`). Each command trains for at most `--seconds` and
writes `data/measured/goodput.csv`; with `--keep` it adds to the rows that are there.
"""

from __future__ import annotations

import argparse
import tempfile
import time

import numpy as np

from dlcourse import faults, measured
from dlguide.files import data_folder

SAVE_S = 0.25
# mean time between failures (s), interval as a multiple of Daly's, seed, failures
PLAN = [(5, 1, 0, 12), (10, 1, 0, 8), (20, 1, 0, 5)]
PLAN += [(5, 0.5, 0, 12), (5, 2, 0, 12), *((5, times, 1, 12) for times in (0.5, 2, 1))]
PLAN += [(10, 1, 1, 8), (20, 1, 1, 5), (5, 4, 0, 12), (5, 0.25, 0, 12), (5, 1, 2, 12)]


def row(mtbf_s: float, times: float, seed: int, kills: int, step_s: float) -> dict:
    """Train once, and return a row of the table."""
    every = max(1, round(times * faults.daly(SAVE_S, mtbf_s) / step_s))
    gaps = faults.gaps(mtbf_s, seed, kills)
    with tempfile.TemporaryDirectory() as folder:
        run = faults.train(folder, [3.0, *gaps], every, SAVE_S, seed=seed)
    interval_s, save_s = every * run.step_s, float(np.mean(run.save_s))
    restart_s = float(np.mean(run.restart_s[1:]))
    predicted = faults.goodput(interval_s, save_s, restart_s, mtbf_s)
    return {
        "mtbf_s": mtbf_s,
        "times_daly": times,
        "seed": seed,
        "failures": kills,
        "seconds": round(run.deaths[-1] - run.deaths[0], 1),
        "every_steps": every,
        "interval_s": round(interval_s, 3),
        "save_s": round(save_s, 4),
        "restart_s": round(restart_s, 3),
        "steps_saved": run.steps(run.deaths[-1]) - run.steps(run.deaths[0]),
        "steps_repeated": run.repeated,
        "goodput": round(run.goodput, 4),
        "predicted": round(predicted, 4),
        "ratio": round(run.goodput / predicted, 3),
    }


def main() -> None:
    """Train as long as there is time, and write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--keep", action="store_true", help="add to the rows that are there")
    options.add_argument("--seconds", type=float, default=272, help="of one command")
    chosen = options.parse_args()
    end = time.monotonic() + chosen.seconds
    there = (data_folder() / "measured/goodput.csv").exists()
    table = measured.load("goodput").rows if chosen.keep and there else []
    done = {(each["mtbf_s"], each["times_daly"], each["seed"]) for each in table}
    step_s = None
    for mtbf_s, times, seed, kills in PLAN:
        last_s = 5.0 + kills * mtbf_s + (0 if step_s else 15.0)
        if (mtbf_s, times, seed) in done or time.monotonic() + last_s > end:
            continue
        if step_s is None:
            with tempfile.TemporaryDirectory() as folder:
                step_s = faults.train(folder, every=1000, save_s=SAVE_S, steps=4000).step_s
        table.append(row(mtbf_s, times, seed, kills, step_s))
        step_s = table[-1]["interval_s"] / table[-1]["every_steps"]
        print(table[-1], flush=True)
        measured.write("goodput", table, sorted({each["seed"] for each in table}))


if __name__ == "__main__":
    main()
