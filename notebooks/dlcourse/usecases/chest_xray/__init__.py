"""Findings on chest X-rays: transfer learning with 14 labels, judged by patient.

    packed = chest_xray.make_phantoms("build/radiographs", 900, 32, seed=0)
    outcomes = cluster.run(chest_xray.train, packed, seed=0)       # one Outcome per rank

Phantoms, or the published radiographs as they were unpacked. No result
on either is of any use for a patient. `train`, `report`, `data` and `model` import downwards only.
"""

from dlcourse.usecases.chest_xray.data import make_archive, make_phantoms, read
from dlcourse.usecases.chest_xray.model import choose_checkpoint
from dlcourse.usecases.chest_xray.report import (
    areas,
    expected_error,
    fair_speedup,
    findings,
    interval,
    probabilities,
)
from dlcourse.usecases.chest_xray.train import (
    class_weights,
    end_rates,
    pretraining_schedule,
    step,
    train,
)
