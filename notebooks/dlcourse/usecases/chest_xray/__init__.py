"""Findings on chest X-rays: transfer learning with 14 labels, judged by areas under ROC curves.

    outcomes = cluster.run(chest_xray.train, seed=0)       # one Outcome per rank
    chest_xray.write(outcomes, "build/chest_xray")

Phantoms by default; `real="/data/ChestX-ray14"` takes the published radiographs, which
`chest_xray.pack` shrinks and packs once. No result on either is of any use for a patient.
"""

from dlcourse.usecases.chest_xray.auroc import (
    Area,
    Estimate,
    area,
    areas,
    differences,
    expected_error,
    interval,
    resampled,
)
from dlcourse.usecases.chest_xray.data import (
    COARSE_GROUPS,
    COARSE_LABELS,
    Collection,
    make_archive,
    make_phantoms,
    pack,
    read,
)
from dlcourse.usecases.chest_xray.keras_fit import KerasTimings, time_keras_fit
from dlcourse.usecases.chest_xray.model import (
    NETS,
    WeightsOrigin,
    build,
    choose_checkpoint,
    transfer,
)
from dlcourse.usecases.chest_xray.report import (
    Outcome,
    StageResult,
    by_chance,
    fair_speedup,
    findings,
    trained_again,
    write,
)
from dlcourse.usecases.chest_xray.training import (
    OPTIONS,
    check,
    class_weights,
    pretraining_schedule,
    step,
    train,
    tuning_schedule,
)

__all__ = [
    "COARSE_GROUPS",
    "COARSE_LABELS",
    "NETS",
    "OPTIONS",
    "Area",
    "Collection",
    "Estimate",
    "KerasTimings",
    "Outcome",
    "StageResult",
    "WeightsOrigin",
    "area",
    "areas",
    "build",
    "by_chance",
    "check",
    "choose_checkpoint",
    "class_weights",
    "differences",
    "expected_error",
    "fair_speedup",
    "findings",
    "interval",
    "make_archive",
    "make_phantoms",
    "pack",
    "pretraining_schedule",
    "read",
    "resampled",
    "step",
    "time_keras_fit",
    "train",
    "trained_again",
    "transfer",
    "tuning_schedule",
    "write",
]
