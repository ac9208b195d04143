"""Findings on chest X-rays: transfer learning with 14 labels, judged by areas under ROC curves.

    outcomes = cluster.run(chest_xray.train, seed=0)       # one Outcome per rank
    chest_xray.write(outcomes, "build/chest_xray")

Phantoms by default; `real="/data/ChestX-ray14"` takes the published radiographs, which
`chest_xray.pack` shrinks and packs once. No result on either is of any use for a patient.
"""

from dlguide.usecases.chest_xray.auroc import Area, area, areas
from dlguide.usecases.chest_xray.auroc_compared import Difference, differences, resampled
from dlguide.usecases.chest_xray.collection import Collection, make, pack, read
from dlguide.usecases.chest_xray.net import NETS, build
from dlguide.usecases.chest_xray.outcome import Outcome, interval, write
from dlguide.usecases.chest_xray.training import check, train
from dlguide.usecases.chest_xray.weights import Origin, choose, transfer

__all__ = [
    "NETS",
    "Area",
    "Collection",
    "Difference",
    "Origin",
    "Outcome",
    "area",
    "areas",
    "build",
    "check",
    "choose",
    "differences",
    "interval",
    "make",
    "pack",
    "read",
    "resampled",
    "train",
    "transfer",
    "write",
]
