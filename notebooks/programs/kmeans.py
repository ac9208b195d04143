"""Draw a photograph with few colours by k-means on ranks: `python kmeans.py --ranks 2`."""

import argparse
from pathlib import Path

from dlcourse.usecases import photographs
from dlguide.cluster import Cluster


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2, help="processes that share the pixels")
    parser.add_argument("--real", type=Path, help="your photograph; else scikit-learn's")
    parser.add_argument("--colours", type=int, nargs="+", default=[2, 4, 8, 16, 64])
    parser.add_argument("--iterations", type=int, default=20, help="steps of k-means")
    parser.add_argument("--output", type=Path, help="folder for the pictures, as PNG")
    return parser.parse_args()


def main() -> None:
    """Draw the photograph once for each number of colours, and print a table."""
    given = arguments()
    photograph = photographs.china() if given.real is None else photographs.read(given.real)
    height, width, _ = photograph.shape
    print(f"{width} x {height} pixels, {photographs.colours(photograph)} different colours")
    print("colours  error (levels)  PNG (kB)  steps  ms per step")
    with Cluster(ranks=given.ranks, magics=False) as cluster:
        for colours in given.colours:
            drawn = cluster.run(photographs.quantise, photograph, colours, given.iterations)[0]
            fit, contents = drawn.fit, photographs.encoded(drawn.picture)
            step_ms = 1e3 * fit.seconds / fit.iterations
            print(f"{colours:7}  {drawn.error:14.2f}  {len(contents) / 1e3:8.1f}  "
                  f"{fit.iterations:5}  {step_ms:11.2f}")  # fmt: skip
            if given.output is not None:
                given.output.mkdir(parents=True, exist_ok=True)
                (given.output / f"{colours}_colours.png").write_bytes(contents)


if __name__ == "__main__":
    main()
