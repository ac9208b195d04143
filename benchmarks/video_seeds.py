"""Measure what the video GAN predicts better than predictors that learn nothing, over seeds.

Run it with nothing else on the machine; a seed takes about a minute on 2 cores:

    python benchmarks/video_seeds.py
    python benchmarks/video_seeds.py --first 5 --seeds 5

Each seed has drives, weights and order of its own. The goal: on drives that are held out, PSNR and
SSIM are above those of the best of repeat, mean and flow, with every seed.
"""

from __future__ import annotations

import argparse

import numpy as np

from dlcourse.usecases import video
from dlguide.cluster import Cluster


def main() -> None:
    """Print both measures of each seed, mean and spread of the gain, and whether all are above."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seeds", type=int, default=5, help="trainings")
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--adversarial", type=float, default=video.OPTIONS["adversarial"].default)
    chosen = options.parse_args()
    print("seed  PSNR [dB]   gain    SSIM   gain  best baseline", flush=True)
    gains = []
    with Cluster(ranks=chosen.ranks, magics=False) as cluster:
        for seed in range(chosen.first, chosen.first + chosen.seeds):
            found = cluster.run(video.train, seed=seed, adversarial=chosen.adversarial)[0]
            gains.append(found.gain)
            score, best = found.scores["GAN"], sorted(set(found.best_baseline.values()))
            print(
                f"{seed:4}  {score.mean_psnr:9.2f}  {found.gain[0]:+.2f}  {score.mean_ssim:.4f} "
                f"{found.gain[1]:+.4f}  {', '.join(best)}",
                flush=True,
            )
    both = np.array(gains)
    mean, spread = both.mean(axis=0), both.std(axis=0, ddof=1 if len(both) > 1 else 0)
    print(f"PSNR {mean[0]:+.2f} dB (spread {spread[0]:.2f}), SSIM {mean[1]:+.4f} ({spread[1]:.4f})")
    above = (both > 0).all()
    print("better with every seed" if above else "not better with every seed")


if __name__ == "__main__":
    main()
