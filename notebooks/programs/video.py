"""Train a GAN on ranks that predicts frames of a road: `python video.py --ranks 2`."""

import argparse
from pathlib import Path

from dlcourse import pictures
from dlcourse.usecases import video
from dlguide.cluster import Cluster


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes that share each batch")
    parser.add_argument("--real", type=Path, help="folder of KITTI tracking; else drives are drawn")
    parser.add_argument("--size", type=int, default=32, help="pixels of a side; the guide has 128")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--drives", type=int, default=24, help="drives that are drawn")
    parser.add_argument("--global-batch", type=int, default=16, help="clips of a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--film", type=Path, help="file for a film of the predictions, as GIF")
    return parser.parse_args()


def main() -> None:
    """Train, and print PSNR and SSIM of the GAN and of the predictors without a net."""
    given = arguments()
    real = None if given.real is None else str(given.real.absolute())
    own = {name: getattr(given, name) for name in ("size", "epochs", "drives", "global_batch")}
    with Cluster(ranks=given.ranks, magics=False) as cluster:
        first = cluster.run(video.train, real, given.seed, **own)[0]
    print(first.summary())
    print(f"{first.train_s:.0f} s on {first.ranks} ranks, {first.clips_per_s:.1f} clips/s")
    if given.film is not None:
        given.film.write_bytes(pictures.film(video.films(first)))


if __name__ == "__main__":
    main()
