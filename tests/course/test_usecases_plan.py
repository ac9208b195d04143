"""What a run will need, measured on its ranks."""

from __future__ import annotations

from time import perf_counter

import layout_writers
import numpy as np

from dlcourse.usecases import chest_xray, plan
from dlcourse.usecases.chest_xray import phantoms
from dlcourse.usecases.plan import Part
from dlguide.cluster import Cluster


def test_interval_of_a_part_holds_its_mean_as_often_as_it_says():
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        part = Part("step", 1, tuple(rng.gamma(4, 0.05, 120)))
        held += abs(part.mean_s - 0.2) < part.half_s
    assert 0.90 < held / 300 < 0.985


def test_radiographs_in_files_are_planned_with_the_files_that_a_step_opens(tmp_path):
    made = phantoms.chest(60, 48, 3)
    real = layout_writers.write_chestxray14(tmp_path / "ChestX-ray14", made)
    own = {"net": "chest_cnn", "start": "none", "validation": 0.2, "batch_per_rank": 8, "epochs": 3}
    with Cluster(ranks=2, oversubscribe=True) as cluster:
        begun_s = perf_counter()
        given = {"real": str(real), "seed": 0, **own}
        found = plan.measure(chest_xray, cluster, tmp_path, given, begun_s, seconds=1.0)
    counts = {part.name: part.count for part in found.parts}
    train = chest_xray.read(real).with_validation(0.2, 0).train
    assert counts["fine-tuning: step"] == 3 * -(-len(train) // 16)
    assert counts["fine-tuning: checkpoint"] == 3
    assert {"test: scores", "validation: scores"} < counts.keys()
    assert found.given_opens > 0
    assert not list(tmp_path.glob("plan*"))
