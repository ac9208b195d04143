"""Findings on chest X-rays: transfer learning with 14 labels, judged by patient.

    outcomes = cluster.run(chest_xray.train, seed=0)       # one Outcome per rank
    chest_xray.write(outcomes, "build/chest_xray")

Phantoms by default; `real="/data/ChestX-ray14"` takes the published radiographs, which
`chest_xray.pack` shrinks and packs once. No result on either is of any use for a patient.

The shape of a case, four modules that import downwards only:

    train     OPTIONS (what `--set` accepts), check, train, step; `training.fit` with a loss
    report    the metrics, Outcome, write, findings (the guide's statements beside ours)
    data      collections and pipelines: made, packed, read, divided
    model     the nets, their preprocessing, and initial weights from files

What draws one kind of data or reads one published layout is a module of its own that `data` uses
(`phantoms`, `chestxray14`). The names below are public; lessons import no others but `phantoms`.
"""

from dlcourse.usecases.chest_xray.data import (
    ARCHIVE_LABELS,
    Collection,
    make_archive,
    make_phantoms,
    pack,
    read,
)
from dlcourse.usecases.chest_xray.model import (
    NETS,
    WeightsOrigin,
    build,
    choose_checkpoint,
    transfer,
)
from dlcourse.usecases.chest_xray.report import (
    Estimate,
    Outcome,
    areas,
    by_chance,
    differences,
    expected_error,
    fair_speedup,
    findings,
    interval,
    precision_and_calibration,
    probabilities,
    trained_again,
    write,
)
from dlcourse.usecases.chest_xray.train import (
    OPTIONS,
    check,
    class_weights,
    end_rates,
    label_step,
    pretraining_schedule,
    rehearse,
    step,
    train,
    tuning_schedule,
    weighted_loss,
)

__all__ = [
    "ARCHIVE_LABELS",
    "NETS",
    "OPTIONS",
    "Collection",
    "Estimate",
    "Outcome",
    "WeightsOrigin",
    "areas",
    "build",
    "by_chance",
    "check",
    "choose_checkpoint",
    "class_weights",
    "differences",
    "end_rates",
    "expected_error",
    "fair_speedup",
    "findings",
    "interval",
    "label_step",
    "make_archive",
    "make_phantoms",
    "pack",
    "precision_and_calibration",
    "pretraining_schedule",
    "probabilities",
    "read",
    "rehearse",
    "step",
    "train",
    "trained_again",
    "transfer",
    "tuning_schedule",
    "weighted_loss",
    "write",
]
