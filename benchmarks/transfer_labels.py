"""Transfer against scratch on phantom radiographs: labels, pictures seen, and the head's rate.

    python benchmarks/transfer_labels.py            # about 5 min on 2 cores

Each seed draws other initial weights, another order and other labelled patients; the 341 test
radiographs are the same. The archive of a transfer has 1200 radiographs, seen 4.75 times up to
the chosen checkpoint, with labels of view, sex and age.
"""

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

LABELLED, PICTURES, SEEDS = (100, 300, 559), (1200, 4800, 19200), range(4)
STARTS = [(start, head) for start in ("scratch", "transfer") for head in (1.0, 10.0)]
ARCHIVE, PRETRAIN_EPOCHS = 1200, 6


def silent(**numbers):
    """Print no progress."""


def runs_of(folder: str, seed: int) -> list[dict]:
    """All trainings of one seed."""
    from dlcourse.usecases import chest_xray

    base, rows = Path(folder), []
    pretrained = chest_xray.train(
        base / "radiographs", seed, base / f"seed{seed}", silent, False, epochs=1,
        archive=base / "archive", pretrain_epochs=PRETRAIN_EPOCHS,
    )  # fmt: skip
    before = pretrained.origin.epoch * ARCHIVE
    for labelled in LABELLED:
        for pictures in PICTURES:
            for start, head in STARTS:
                own = {"weights": pretrained.origin.path} if start == "transfer" else {}
                if start == "scratch":
                    own["start"] = "none"
                one = chest_xray.train(
                    base / "radiographs", seed, None, silent, False, labelled=labelled,
                    epochs=round(pictures / labelled), head_times=head, **own,
                )  # fmt: skip
                rows.append({
                    "seed": seed, "labelled": labelled, "pictures": one.tuning.epochs * labelled,
                    "pretraining_pictures": before if own.get("weights") else 0, "start": start,
                    "head_times": head, "auroc": round(one.mean.value, 4),
                })  # fmt: skip
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
            found = list(pool.map(runs_of, [folder] * len(SEEDS), SEEDS))
    print(measured.write("transfer_labels", [row for rows in found for row in rows], SEEDS))


if __name__ == "__main__":
    main()
