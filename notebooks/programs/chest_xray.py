"""Train a net on chest X-rays with 14 findings on ranks: `python chest_xray.py --ranks 2`."""

import argparse
import tempfile
from pathlib import Path

from dlcourse.usecases import chest_xray
from dlguide.cluster import Cluster


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes that share each batch")
    parser.add_argument("--real", type=Path, help="folder of ChestX-ray14; else phantoms are drawn")
    parser.add_argument("--weights", type=Path, help="initial weights instead of a pre-training")
    parser.add_argument("--archive", type=int, help="phantoms of the pre-training; default 1500")
    parser.add_argument("--scratch", action="store_true", help="train from scratch")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the fine-tuning")
    parser.add_argument("--batch-per-rank", type=int, default=32)
    parser.add_argument("--radiographs", type=int, default=900, help="phantoms, if they are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="folder to save to, and to go on from")
    return parser.parse_args()


def main() -> None:
    """Pre-train, fine-tune, and print the area under the ROC curve of each finding."""
    given = arguments()
    own = {"weights": given.weights, "archive": given.archive, "epochs": given.epochs,
           "batch_per_rank": given.batch_per_rank,
           "start": "none" if given.scratch else "chosen"}  # fmt: skip
    with tempfile.TemporaryDirectory() as made, Cluster(ranks=given.ranks, magics=False) as cluster:
        folder = given.real
        if folder is None:
            folder = chest_xray.make_phantoms(Path(made) / "drawn", given.radiographs, 32, 0)
        checkpoint = given.checkpoint and given.checkpoint.absolute()
        outcomes = cluster.run(chest_xray.train, folder.absolute(), given.seed, checkpoint, **own)
    first = outcomes[0]
    print(first.summary())
    print(f"{'finding':20} AUROC (95 % interval by patient)")
    for area in first.test.areas:
        print(f"{area.name:20} {chest_xray.interval(area)}")
    tuning = first.tuning
    print(f"{tuning.ranks} ranks: {tuning.images_per_s:.0f} radiographs/s in the fine-tuning")


if __name__ == "__main__":
    main()
