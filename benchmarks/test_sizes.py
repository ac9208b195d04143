"""Measure what the two endings of case 81 are worth when the test shows its pictures otherwise.

    python benchmarks/test_sizes.py 200 201 202 203     # under a minute for each seed, 2 cores

Both endings train as in `collapsed_decay.py`. "averages" is the net of the line with batch
normalisation's moving averages taken anew from whole training pictures; no weight is changed.

Columns: accuracies are percentages. The test (`top1`) shows the middle 20 of 23 pixels; `top1_24`
to `top1_32` show the same part of a picture with that many pixels; `enlarged_28` enlarges the
test's 20 to 28 and adds no detail; `zoom_20` shows the middle 20 of 26 pixels. `won` and `lost`
count the test pictures on which this net and the line's differ in `top1`.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from dlcourse import measured
from dlcourse.large_batches import confidence_interval
from dlcourse.usecases import imagenet
from dlguide.cluster import Cluster
from dlguide.data.input_pipeline import CentreCrop, ResizedCrop

MIDDLE = CentreCrop(20, 20, 23)
VIEWS = {
    "top1": (MIDDLE,),
    **{f"top1_{size}": (CentreCrop(size, size, round(size * 8 / 7)),) for size in (24, 28, 32)},
    "enlarged_28": (MIDDLE, ResizedCrop(28, 28, (1.0, 1.0), (1.0, 1.0))),
    "zoom_20": (CentreCrop(20, 20, 26),),
}


def main() -> None:
    """Train both endings of each seed, test them in each view, and write the table."""
    rows, seeds = [], [int(each) for each in sys.argv[1:]] or range(200, 208)
    with Cluster(ranks=2, magics=False) as cluster, tempfile.TemporaryDirectory() as place:
        for seed in seeds:
            folder = Path(place) / str(seed)
            one = cluster.run(imagenet.train, seed=seed, checkpoint=str(folder))[0]
            images = imagenet.pictures(one.recipe, seed)
            nets = imagenet.final_weights(folder, ("line", "collapsed"))
            nets["averages"] = imagenet.with_averages_of_whole(nets["line"], images)
            correct = imagenet.by_view(nets, images, VIEWS)
            line = correct["line"]["top1"]
            for name, views in correct.items():
                won, lost = views["top1"] & ~line, line & ~views["top1"]
                rows.append({
                    "seed": seed, "net": name, "won": int(won.sum()), "lost": int(lost.sum()),
                    **{view: round(100 * float(each.mean()), 2) for view, each in views.items()},
                })  # fmt: skip
                print(*rows[-1].values(), flush=True)
    print(measured.write("test_sizes", rows, seeds))
    for name in nets:
        for view in VIEWS:
            gains = [
                row[view] - line["top1"]
                for row in rows if row["net"] == name
                for line in rows if (line["net"], line["seed"]) == ("line", row["seed"])
            ]  # fmt: skip
            low, high = confidence_interval(gains) if any(gains) else (0, 0)
            print(
                f"{name:9} {view:11} {np.mean(gains):+.2f} points, 95 %: {low:+.2f} to {high:+.2f}"
            )


if __name__ == "__main__":
    main()
