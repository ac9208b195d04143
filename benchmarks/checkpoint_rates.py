"""Which part of a transfer's rule matters: the checkpoint, the rate, or the last layer's rate.

    python benchmarks/checkpoint_rates.py            # about a minute on 2 cores

Each of four seeds pre-trains on the same archive of drawn radiographs and goes on with 559 labelled
ones for four epochs: from the checkpoint that the rule chooses or from the last, at the rate that
the first of them was training with or at a tenth of it, and with ten times the rate for the new
last layer. The mean AUROC is of the same 341 test radiographs. For lesson 83.
"""

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

SEEDS, EPOCHS = range(4), 4
# checkpoint, rate over that of the chosen checkpoint, rate of the last layer over the others'
WAYS = [("chosen", 1.0, 1.0), ("last", 1.0, 1.0), ("last", 0.1, 1.0), ("last", 0.1, 10.0)]


def silent(**numbers):
    """Print no progress."""


def runs_of(folder: str, seed: int) -> list[dict]:
    """All trainings of one seed."""
    from dlcourse.usecases import chest_xray

    base, own = Path(folder), Path(folder) / f"seed{seed}"
    first = chest_xray.train(
        base / "radiographs", seed, own, silent, False, epochs=1,
        archive=base / "archive", pretrain_epochs=6,
    )  # fmt: skip
    last = chest_xray.choose_checkpoint(own / "pretraining", "last")
    weights, rows = {"chosen": first.origin.path, "last": last}, []
    for checkpoint, rate, head in WAYS:
        one = chest_xray.train(
            base / "radiographs", seed, None, silent, False, epochs=EPOCHS, head_times=head,
            weights=weights[checkpoint], learning_rate=rate * first.start_rate,
        )  # fmt: skip
        way = {"checkpoint": checkpoint, "rate_times": rate, "head_times": head}
        rows.append({"seed": seed} | way | {"auroc": round(one.mean.value, 4)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run the seeds in two processes and write the table."""
    from dlcourse import measured
    from dlcourse.usecases import chest_xray

    os.environ.update(OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        chest_xray.make_phantoms(Path(folder) / "radiographs", 900, 32, seed=0)
        chest_xray.make_archive(Path(folder) / "archive", 1200, 32, seed=0)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            found = list(pool.map(runs_of, [folder] * len(SEEDS), SEEDS))
    print(measured.write("checkpoint_rates", [row for rows in found for row in rows], SEEDS))


if __name__ == "__main__":
    main()
