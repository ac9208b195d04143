"""Measure how many steps of SGD a loss takes by batch, and write `data/measured/batch_steps.csv`.

    python benchmarks/batch_steps.py

For each batch several learning rates, so that each batch has a rate that suits it, and five
seeds; the best rate counts. Some 2 minutes on 2 quiet cores. A training that does not
arrive has 0 steps.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from concurrent.futures import ProcessPoolExecutor
from typing import Any

from dlcourse import large_batches, measured
from dlguide.data import datasets

TARGET, SEEDS = 0.25, range(5)
GRID = {  # batch -> learning rates, and the most steps
    8: ((0.05, 0.1, 0.2, 0.3), 2500),
    32: ((0.1, 0.2, 0.4, 0.6), 1200),
    128: ((0.2, 0.4, 0.8, 1.2), 600),
    512: ((0.4, 0.8, 1.2, 1.6), 300),
    2048: ((0.4, 0.8, 1.2, 1.6), 250),
}


def row(job: tuple[int, float, int, int]) -> dict[str, Any]:
    """Train once."""
    batch, rate, most, seed = job
    data = datasets.load().first(9728)
    steps = large_batches.steps_to(TARGET, batch, rate, seed, data, most)
    return {"batch": batch, "rate": rate, "seed": seed, "steps": steps or 0}


def main() -> None:
    """Make all trainings and write the table."""
    jobs = [
        (batch, rate, most, seed)
        for batch, (rates, most) in GRID.items()
        for rate in rates
        for seed in SEEDS
    ]
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(row, jobs))
    for each in rows:
        print(each)
    print(measured.write("batch_steps", rows, SEEDS))


if __name__ == "__main__":
    main()
