"""Experiments: the rates of a recipe, and the interval of a mean over seeds.

Tests dlcourse.experiments. The oracle is a closed form or SciPy.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from dlcourse import experiments as ex


def rates(epochs_of_10_steps=90, **changes):
    setting = ex.ExperimentConfig(
        epochs=epochs_of_10_steps, batch_per_worker=128, virtual_workers=32, base_batch=128,
        base_rate=0.05, rate_scaling="linear", **changes,
    )  # fmt: skip
    return setting.schedule().to_steps(10, epochs_of_10_steps).rates()


def test_the_thesis_stepping_warmup_and_its_decay_come_out_of_a_setting():
    found = rates(
        warmup="stepping", warmup_epochs=5, per="epoch", decay="step", boundaries=(30, 60, 80)
    )
    expected = [1.6 * (epoch + 1) / 6 for epoch in range(5)] + [1.6] * 25 + [0.16] * 30
    expected += [0.016] * 20 + [0.0016] * 10
    assert found == pytest.approx(np.repeat(expected, 10))


def test_gradual_warmup_starts_at_the_base_rate_and_linear_decay_fills_what_is_left():
    found = rates(warmup="gradual", warmup_epochs=5, decay="linear")
    assert len(found) == 900
    assert found[:50] == pytest.approx(0.05 + 1.55 * np.arange(50) / 50)
    assert found[50:] == pytest.approx(1.6 * (1 - np.arange(850) / 850))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmup": "gradual", "warmup_epochs": 4, "epochs": 4}, "`warmup_epochs` must be less"),
        (
            {"samples": 100, "batch_per_worker": 32, "virtual_workers": 4},
            "`batch_per_worker` must give a global batch of at most the 100 samples",
        ),
        ({"decay": "step"}, "`boundaries` must name the epochs"),
        ({"decay": "cosin"}, "Did you mean cosine?"),
    ],
)
def test_an_impossible_config_is_refused_when_it_is_made(changes, words):
    with pytest.raises(ValueError, match=words):
        ex.ExperimentConfig(**changes)


def test_the_interval_is_students_t():
    # two-sided 95 % quantiles, printed in any table of Student's t; degrees of freedom 1, 2, 4, 9
    for values, quantile in ((2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262)):
        spread = np.linspace(-1, 1, values)
        spread /= np.std(spread, ddof=1) / math.sqrt(values)  # a standard error of 1
        interval = ex.confidence_interval(spread + 5)
        assert interval == pytest.approx((5 - quantile, 5 + quantile), abs=1e-3)


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_interval_is_that_of_scipys_paired_test(seeds):
    first, second = np.random.default_rng(seeds).normal(size=(2, seeds))
    oracle = stats.ttest_rel(first, second)
    assert ex.confidence_interval(first - second) == pytest.approx(oracle.confidence_interval(0.95))
    assert ex.confidence_interval([1.0]) is None
