"""Measure what collapsed decay adds to top-1, over seeds, against the line of equal length.

Run it with nothing else on the machine; a seed takes half a minute or so on 2 cores:

    python benchmarks/collapsed_decay.py
    python benchmarks/collapsed_decay.py --seeds 8 --folder build/experiments/collapsed

Each seed has pictures, weights and order of its own. Both endings have their first 10 epochs in
common and are 12 epochs long: "line" lets the rate fall on to 0, "collapsed" leaves it at epoch
10.2 for plain pictures, twice the weight decay and a rate that falls as a square. The goal: the
mean gain is more than two standard errors above 0 with 5 seeds (the guide: 75.6 to 76.1 %). Rate
and pictures were chosen with seeds 0 to 2, the length of the last part with 100 to 104; so the
trainings begin with 200. With a folder a call that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np

from dlcourse.usecases import imagenet
from dlguide.cluster import Cluster
from dlguide.training.experiments.differences import standard_error, t_factor

GOAL = 2.0  # standard errors


def main() -> None:
    """Print both endings of each seed, the mean gain and whether it is clear."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=5, help="trainings")
    options.add_argument("--first", type=int, default=200, help="the first seed")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--folder", type=Path, help="of the checkpoints; none without one")
    chosen = options.parse_args()
    print("seed  top-1 line  collapsed   gain  top-5 line  collapsed  pictures/s", flush=True)
    found = []
    with Cluster(ranks=chosen.ranks, magics=False) as cluster:
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            place = None if chosen.folder is None else chosen.folder / f"seed-{seed}"
            saves = None if place is None else os.fspath(place.absolute())
            one = cluster.run(imagenet.train, seed=seed, checkpoint=saves)[0]
            line, end = one.line, one.collapsed
            found.append((100 * line.top1, 100 * end.top1, 100 * line.top5, 100 * end.top5))
            print(
                f"{seed:4}  {100 * line.top1:10.1f}  {100 * end.top1:9.1f}  {one.gain:+5.1f}  "
                f"{100 * line.top5:10.1f}  {100 * end.top5:9.1f}  {one.images_per_s:10.0f}",
                flush=True,
            )
    numbers = np.array(found)
    for name, first, second in (("top-1", 0, 1), ("top-5", 2, 3)):
        gains = numbers[:, second] - numbers[:, first]
        mean, error = gains.mean(), standard_error(gains)
        told = f"{name}: {numbers[:, first].mean():.2f} -> {numbers[:, second].mean():.2f} %, "
        told += f"gain {mean:+.2f} points"
        if error is not None:
            times = mean / error if error else np.inf
            told += f", standard error {error:.2f}: {times:.1f} times it"
            if name == "top-1":
                told += f" (goal: {GOAL:g}; a difference is called clear from "
                told += f"{t_factor(len(found)):.1f} on): {'yes' if times > GOAL else 'no'}"
        print(told)


if __name__ == "__main__":
    main()
