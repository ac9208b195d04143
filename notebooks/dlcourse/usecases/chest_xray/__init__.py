"""Findings on chest X-rays: transfer learning with 14 labels, judged by patient.

    outcomes = cluster.run(chest_xray.train, seed=0)       # one Outcome per rank
    chest_xray.write(outcomes, "build/chest_xray")

Phantoms by default; `real="/data/ChestX-ray14"` takes the published radiographs, which
`chest_xray.pack` shrinks and packs once. No result on either is of any use for a patient.

`train`, `report`, `data` and `model` import downwards only. What draws one kind of data or reads
one published layout is a module of its own that `data` uses (`phantoms`, `chestxray14`).
"""

from dlcourse.usecases.chest_xray.data import make_archive, make_phantoms, pack, read
from dlcourse.usecases.chest_xray.model import choose_checkpoint
from dlcourse.usecases.chest_xray.report import (
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
    pretraining_schedule,
    rehearse,
    step,
    train,
)
