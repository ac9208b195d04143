"""Transfer against scratch on phantom radiographs: labels, pictures seen, and the head's rate.

    python benchmarks/transfer_labels.py            # about 4 min on 2 cores

Each seed draws other initial weights, another order and other labelled patients; the 341 test
radiographs are the same (`auroc`). `auroc_choice` is of other patients, from another drawing: the
rate of the last layer is chosen by it. The archive of a transfer has 1200 radiographs, seen as
often as `pretraining_pictures` says, with labels of view, sex and age: so a transfer with 2400
labelled pictures does the work of a training from scratch with 7200.
"""

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

LABELLED, PICTURES, SEEDS = (100, 300, 559), (2400, 7200), range(4)
# Both starts with both rates of the last layer over that of the others.
STARTS = [(start, head) for start in ("scratch", "transfer") for head in (1.0, 10.0)]
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
                epochs=round(pictures / labelled), head_times=head, external=base / "others", **own,
            )  # fmt: skip
            before = pretrained.origin.epoch * ARCHIVE if start == "transfer" else 0
            rows.append({
                "seed": seed, "labelled": labelled, "pictures": one.tuning.epochs * labelled,
                "pretraining_pictures": before, "start": start, "head_times": head,
                "auroc": round(one.mean.value, 4),
                "auroc_choice": round(one.judged["external"].areas[-1].value, 4),
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
        chest_xray.make_phantoms(Path(folder) / "others", 600, 32, seed=5)
        chest_xray.make_archive(Path(folder) / "archive", ARCHIVE, 32, seed=0)
        with ProcessPoolExecutor(2, get_context("spawn")) as pool:
            tasks = [(folder, seed, labelled) for seed in SEEDS for labelled in LABELLED]
            found = list(pool.map(runs_of, *zip(*tasks, strict=True)))
    print(measured.write("transfer_labels", [row for rows in found for row in rows], SEEDS))


if __name__ == "__main__":
    main()
