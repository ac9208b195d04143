"""What a run will need, measured on its ranks."""

from __future__ import annotations

import numpy as np

from dlcourse.usecases.plan import Part


def test_interval_of_a_part_holds_its_mean_as_often_as_it_says():
    rng, held = np.random.default_rng(0), 0
    for _ in range(300):
        part = Part("step", 1, tuple(rng.gamma(4, 0.05, 120)))
        held += abs(part.mean_s - 0.2) < part.half_s
    assert 0.90 < held / 300 < 0.985
