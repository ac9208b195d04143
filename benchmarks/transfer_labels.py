"""Transfer against scratch on phantom radiographs: labels, pictures seen, and the head's rate.

    python benchmarks/transfer_labels.py            # about 5 min on 2 cores

Each seed draws other initial weights, another order and other labelled patients; the 341 test
radiographs are the same. The archive of a transfer has 1200 radiographs, seen as often as
`pretraining_pictures` says, with labels of view, sex and age.
"""

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

LABELLED, PICTURES, SEEDS = (100, 300, 559), (2400, 9600), range(4)
# The rate of the last layer over that of the others; scratch with both, for the better one.
STARTS = (("scratch", 1.0), ("scratch", 10.0), ("transfer", 10.0))
ARCHIVE, PRETRAIN_EPOCHS = 1200, 6


def silent(**numbers):
    """Print no progress."""


def runs_of(folder: str, seed: int, labelled: int) -> list[dict]:
    """All trainings of one seed with as many labelled radiographs."""
    from dlcourse.usecases import chest_xray

    base, rows = Path(folder), []
    pretrained = chest_xray.train(
        base / "radiographs", seed, base / f"{seed}-{labelled}", silent, False, epochs=1,
        archive=base / "archive", pretrain_epochs=PRETRAIN_EPOCHS,
    )  # fmt: skip
    for pictures in PICTURES:
        for start, head in STARTS:
            own = {"weights": pretrained.origin.path} if start == "transfer" else {"start": "none"}
            one = chest_xray.train(
                base / "radiographs", seed, None, silent, False, labelled=labelled,
                epochs=round(pictures / labelled), head_times=head, **own,
            )  # fmt: skip
            before = pretrained.origin.epoch * ARCHIVE if start == "transfer" else 0
            rows.append({
                "seed": seed, "labelled": labelled, "pictures": one.tuning.epochs * labelled,
                "pretraining_pictures": before, "start": start, "head_times": head,
                "auroc": round(one.mean.value, 4),
            })  # fmt: skip
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Run the seeds in two processes and write the table."""
    from dlcourse import measured
    from dlcourse.usecases import chest_xray

    os.environ.update(OMP_NUM_THREADS="1", TF_NUM_INTRAOP_THREADS="1", TF_NUM_INTEROP_THREADS="1")
    with tempfile.TemporaryDirectory() as folder:
        chest_xray.make_phantoms(Path(folder) / "radiographs", 900, 32, seed=0)
        chest_xray.make_archive(Path(folder) / "archive", ARCHIVE, 32, seed=0)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            tasks = [(folder, seed, labelled) for seed in SEEDS for labelled in LABELLED]
            found = list(pool.map(runs_of, *zip(*tasks, strict=True)))
    print(measured.write("transfer_labels", [row for rows in found for row in rows], SEEDS))


if __name__ == "__main__":
    main()
