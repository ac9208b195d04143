"""Train many points of a search space three times, and write `data/measured/search_table.csv`.

    python benchmarks/search_table.py

Each point of lesson 61's space is trained for 1, 3 and 9 epochs, each time from the same initial
weights and with a learning rate that falls to zero at the end. A row has the validation error (300
images, which a search may see), the test error (10 000 images) and the CPU time of each training.
So search methods can be repeated many times without training again. A training that diverged has
the errors 1. Some 2 minutes on 2 quiet cores.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import math
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from dlcourse import measured, search, small_mlp
from dlguide.data import datasets

POINTS, EPOCHS, SEED = 2000, (1, 3, 9), 61
TRAIN, VALIDATION = 800, 300
SPACE = {
    "rate": search.LogUniform(1e-4, 10.0),
    "batch": search.Choice((16, 32, 64, 128)),
    "width": search.Integer(4, 64),
}
_IMAGES: list[small_mlp.Images] = []


def row(number: int) -> dict[str, Any]:
    """Train one point for each number of epochs."""
    if not _IMAGES:
        _IMAGES.append(small_mlp.Images.of(datasets.load("mnist"), TRAIN, VALIDATION))
    (images,) = _IMAGES
    parameters = search.draw(SPACE, SEED, number)
    line = {**parameters, "rate": f"{parameters['rate']:.6g}"}
    for epochs in EPOCHS:
        begin_s = time.process_time()
        weights, errors = small_mlp.train(parameters, epochs, 0, images)
        line[f"cpu_ms_{epochs}"] = f"{1e3 * (time.process_time() - begin_s):.2f}"
        test = small_mlp.error(weights, images.test, images.test_labels)
        line[f"validation_{epochs}"] = f"{1.0 if math.isnan(errors[-1]) else errors[-1]:.4f}"
        line[f"test_{epochs}"] = f"{1.0 if math.isnan(test) else test:.4f}"
    return line


def main() -> None:
    """Train all points and write the table."""
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(row, range(POINTS), chunksize=20))
    print(measured.write("search_table", rows, [0]))


if __name__ == "__main__":
    main()
