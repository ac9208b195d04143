"""Measure over seeds what the endings of case 81 add to top-1, and which change does it.

    python benchmarks/collapsed_decay.py            # about 8 min on 2 cores

Each seed has pictures, weights and order of its own. All endings of a seed have their first 10
epochs in common and end after 12: "line" lets the rate fall on to 0, "collapsed" leaves it at
epoch 10.2 for whole pictures, twice the weight decay and a rate that falls as a square; the other
three change one of these alone. Rate and pictures were chosen with seeds 0 to 2, the length of
the last part with 100 to 104, so the trainings begin with 200.

Columns: accuracies are percentages; `won` and `lost` count the 2400 test pictures on which ending
and line differ; `on_parts` and `on_whole` are of the final net on random parts of training
pictures and on whole ones; `top1_28` is the test with pictures of 28 pixels instead of 20.
"""

import tempfile
from pathlib import Path

from dlcourse import measured
from dlcourse.large_batches import confidence_interval
from dlcourse.usecases import imagenet
from dlguide.cluster import Cluster
from dlguide.data.input_pipeline import CentreCrop

SEEDS, LARGER = range(200, 208), 28
VIEW = (CentreCrop(LARGER, LARGER, 32),)


def main() -> None:
    """Train all endings of each seed, write the table and print the gains over the line."""
    rows = []
    with Cluster(ranks=2, magics=False) as cluster, tempfile.TemporaryDirectory() as place:
        for seed in SEEDS:
            folder = Path(place) / str(seed)
            one = cluster.run(imagenet.train, seed=seed, apart=True, checkpoint=str(folder))[0]
            print(one.summary(), flush=True)
            images = imagenet.pictures(one.recipe, seed)
            ends = (one.line, one.collapsed, *one.single)
            nets = imagenet.final_weights(folder, [end.name for end in ends])
            larger = imagenet.by_view(nets, images, {LARGER: VIEW})
            rows += [
                {
                    "seed": seed, "ending": end.name, "top1": round(100 * end.top1, 2),
                    "top5": round(100 * end.top5, 2), "won": end.won, "lost": end.lost,
                    "on_parts": round(100 * end.on_parts, 2),
                    "on_whole": round(100 * end.on_whole, 2),
                    f"top1_{LARGER}": round(100 * float(larger[end.name][LARGER].mean()), 2),
                    "weights": end.weights_digest[:12],
                }
                for end in ends
            ]  # fmt: skip
    print(measured.write("collapsed_decay", rows, SEEDS))
    for name in ("collapsed", *imagenet.CHANGES):
        gains = [
            100 * (row["won"] - row["lost"]) / one.recipe.test_samples
            for row in rows
            if row["ending"] == name
        ]
        low, high = confidence_interval(gains)
        print(f"{name}: {sum(gains) / len(gains):+.2f} points, 95 %: {low:+.2f} to {high:+.2f}")


if __name__ == "__main__":
    main()
