"""Measure over seeds what a discriminator adds to the video case, and what it costs.

    python benchmarks/video_seeds.py            # about 8 min on 2 cores
    python benchmarks/video_seeds.py --longer   # about 8 min on 2 cores

Each seed has its own drives, weights and order. Without option the generator is trained twice:
with the case's own weight of the discriminator's judgement, and with weight 0, without any
discriminator. With `--longer` it is trained without discriminator, for 17 epochs, which take as
long as 12 with one, and for the first two seeds for 48. `psnr` (dB) and `ssim` are of 8 drives that
are held out; `best_psnr` and `best_ssim` those of the best predictor without a net and without
fitting, `fitted_psnr` and `fitted_ssim` those of the fitted blend; `step_ms` (not with `--longer`)
is the median time of a step at full size.
"""

import sys

import numpy as np

from dlcourse import measured
from dlcourse.large_batches import confidence_interval
from dlcourse.usecases import video
from dlcourse.usecases.video import baselines
from dlguide.cluster import Cluster

SEEDS, WEIGHTS = range(5), (video.VideoConfig.adversarial, 0.0)
EPOCHS, SAME_TIME, LONG, LONG_SEEDS = video.VideoConfig.epochs, 17, 48, 2


def row(found: video.Outcome, adversarial: float) -> dict[str, float]:
    """What one training reached, and what it took."""
    plain = [found.scores[name] for name in baselines.PREDICTORS]
    score, fitted = found.scores["GAN"], found.scores["fitted"]
    return {
        "seed": found.seed, "adversarial": adversarial, "epochs": found.epochs,
        "psnr": round(score.mean_psnr, 3), "ssim": round(score.mean_ssim, 4),
        "best_psnr": round(max(each.mean_psnr for each in plain), 3),
        "best_ssim": round(max(each.mean_ssim for each in plain), 4),
        "fitted_psnr": round(fitted.mean_psnr, 3), "fitted_ssim": round(fitted.mean_ssim, 4),
    }  # fmt: skip


def main() -> None:
    """Train, write the table, and print the paired differences."""
    longer = sys.argv[1:] == ["--longer"]
    plans = [(seed, weight, EPOCHS) for seed in SEEDS for weight in WEIGHTS]
    if longer:
        plans = [(seed, 0.0, SAME_TIME) for seed in SEEDS]
        plans += [(seed, 0.0, LONG) for seed in SEEDS[:LONG_SEEDS]]
    rows = []
    with Cluster(ranks=2, magics=False) as cluster:
        for seed, weight, epochs in plans:
            outcomes = cluster.run(video.train, seed=seed, adversarial=weight, epochs=epochs)
            rows.append(row(outcomes[0], weight))
            if not longer:
                rows[-1]["step_ms"] = round(1e3 * float(np.median(outcomes[0].step_s)), 1)
            print(rows[-1], flush=True)
    print(measured.write("video_longer" if longer else "video_adversarial", rows, SEEDS))
    if longer:
        return
    for what in ("psnr", "ssim"):
        with_it, without = (
            np.array([each[what] for each in rows if each["adversarial"] == weight])
            for weight in WEIGHTS
        )
        low, high = confidence_interval(with_it - without)
        print(
            f"{what}, with minus without: {(low + high) / 2:+.4f}, 95 %: {low:+.4f} to {high:+.4f}"
        )


if __name__ == "__main__":
    main()
