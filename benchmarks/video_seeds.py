"""Measure over seeds what a discriminator adds to the video case, and what it costs.

    python benchmarks/video_seeds.py            # about 8 min on 2 cores

Each seed has drives, weights and order of its own and trains the generator twice: with the case's
own weight of the discriminator's judgement, and with weight 0, without any discriminator. `psnr`
(dB) and `ssim` are of 8 drives that are held out; `best_psnr` and `best_ssim` those of the best
predictor without learning; `step_ms` is the median time of a step at full size.
"""

import numpy as np

from dlcourse import measured
from dlcourse.usecases import video
from dlguide.cluster import Cluster
from dlguide.training.experiments import confidence_interval

SEEDS, WEIGHTS = range(5), (video.OPTIONS["adversarial"].default, 0.0)


def main() -> None:
    """Train with and without discriminator, write the table and print the paired differences."""
    rows = []
    with Cluster(ranks=2, magics=False) as cluster:
        for seed in SEEDS:
            for weight in WEIGHTS:
                found = cluster.run(video.train, seed=seed, adversarial=weight)[0]
                score, best = found.scores["GAN"], found.best_baseline
                rows.append({
                    "seed": seed, "adversarial": weight,
                    "psnr": round(score.mean_psnr, 3), "ssim": round(score.mean_ssim, 4),
                    "best_psnr": round(found.scores[best["psnr"]].mean_psnr, 3),
                    "best_ssim": round(found.scores[best["ssim"]].mean_ssim, 4),
                    "step_ms": round(1e3 * float(np.median(found.step_s)), 1),
                })  # fmt: skip
                print(rows[-1], flush=True)
    print(measured.write("video_adversarial", rows, SEEDS))
    for what in ("psnr", "ssim"):
        with_it, without = (
            np.array([row[what] for row in rows if row["adversarial"] == weight])
            for weight in WEIGHTS
        )
        low, high = confidence_interval(with_it - without)
        print(
            f"{what}, with minus without: {(low + high) / 2:+.4f}, 95 %: {low:+.4f} to {high:+.4f}"
        )


if __name__ == "__main__":
    main()
