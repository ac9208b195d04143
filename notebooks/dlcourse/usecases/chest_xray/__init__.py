"""Findings on chest X-rays: transfer learning with 14 labels, judged by areas under ROC curves.

    outcomes = cluster.run(chest_xray.train, seed=0)       # one Outcome per rank
    chest_xray.write(outcomes, "build/chest_xray")

Phantoms by default; `real="/data/ChestX-ray14"` takes the published radiographs, which
`chest_xray.pack` shrinks and packs once. No result on either is of any use for a patient.
"""

from dlcourse.usecases.chest_xray.against_keras import Race, race
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
from dlcourse.usecases.chest_xray.collection import Collection, make, pack, read
from dlcourse.usecases.chest_xray.findings import by_chance, findings, honest_times, trained_again
from dlcourse.usecases.chest_xray.net import NETS, build
from dlcourse.usecases.chest_xray.outcome import Outcome, write
from dlcourse.usecases.chest_xray.setting import OPTIONS, check
from dlcourse.usecases.chest_xray.timed import step
from dlcourse.usecases.chest_xray.training import train
from dlcourse.usecases.chest_xray.weights import Origin, choose, transfer

__all__ = [
    "NETS",
    "OPTIONS",
    "Area",
    "Collection",
    "Estimate",
    "Origin",
    "Outcome",
    "Race",
    "area",
    "areas",
    "build",
    "by_chance",
    "check",
    "choose",
    "differences",
    "expected_error",
    "findings",
    "honest_times",
    "interval",
    "make",
    "pack",
    "race",
    "read",
    "resampled",
    "step",
    "train",
    "trained_again",
    "transfer",
    "write",
]
