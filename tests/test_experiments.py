"""Experiments: configs, which trainings there are, records, tables and comparisons.

Tests dlguide.training.experiments. Results are made by hand here and the oracle is a closed form;
`test_experiments_run` trains.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dlguide.measure import TrainingResult
from dlguide.training import experiments as ex


def a_run(accuracy=(0.5, 0.9), images_per_s=100.0, train_s=1.0, evaluate_s=0.5, **changes):
    """A TrainingResult with one phase of training and one of evaluation an epoch."""
    phases, now = [("setup", 0.0, 2.0)], 2.0
    for _ in accuracy:
        phases += [("train", now, now + train_s), ("evaluate", now + train_s, now + train_s + 0.5)]
        now += train_s + evaluate_s
    loss = tuple(1.0 / (epoch + 1) for epoch in range(len(accuracy)))
    values = {field.name: 0 for field in dataclasses.fields(TrainingResult)} | {
        "model": "mlp", "data": "mnist", "device": "cpu", "optimizer": "momentum", "ranks": 1,
        "weights_digest": "", "compression": "none", "images_per_s": images_per_s,
        "test_accuracy": tuple(accuracy), "loss": loss, "step_s": (0.1,), "wait_s": (0.0,),
        "step_start_s": (0.0,), "phases": tuple(phases), "versions": {}, "train_accuracy": (),
        "train_metrics": {}, "test_metrics": {}, "earlier_loss": (),
    } | changes  # fmt: skip
    known = {field.name for field in dataclasses.fields(TrainingResult)}
    return TrainingResult(**{name: value for name, value in values.items() if name in known})


def a_result(accuracy=0.9, seed=0, name="a", lost=False, images_per_s=100.0, **changes):
    curve = accuracy if isinstance(accuracy, tuple) else (accuracy,)
    made = ex.ExperimentConfig(name=name, seed=seed, **changes)
    if lost:
        return ex.ExperimentResult(made, None, (1, 3))
    return ex.ExperimentResult(made, a_run(curve, images_per_s))


def seeds_of(name, accuracies, **changes):
    return [a_result(one, seed, name, **changes) for seed, one in enumerate(accuracies)]


# --- settings ----------------------------------------------------------------------------------


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


def test_one_training_has_one_key_and_another_one_has_another():
    one = ex.ExperimentConfig()
    same = [
        replace(one, name="other"),
        replace(one, rate_scaling="linear"),  # the global batch is the base batch
        replace(one, warmup_epochs=2.0),  # of no warmup
        replace(one, boundaries=(2,)),
    ]
    assert {each.key() for each in same} == {one.key()}
    others = [
        replace(one, seed=1),
        replace(one, virtual_workers=2),
        replace(one, virtual_workers=2, rate_scaling="linear"),
        replace(one, warmup="gradual", warmup_epochs=2.0),
        replace(one, decay="step", boundaries=(2,)),
        replace(one, weight_decay=0.0),
    ]
    keys = {each.key() for each in others} | {one.key()}
    assert len(keys) == len(others) + 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmup": "gradual", "warmup_epochs": 4, "epochs": 4}, "`warmup_epochs` must be less"),
        (
            {"samples": 100, "batch_per_worker": 32, "virtual_workers": 4},
            "`batch_per_worker` must give a global batch of at most the 100 samples of mnist",
        ),
        ({"decay": "step"}, "`boundaries` must name the epochs"),
        ({"decay": "cosin"}, "Did you mean cosine?"),
    ],
)
def test_an_impossible_config_is_refused_when_it_is_made(changes, words):
    with pytest.raises(ValueError, match=words):
        ex.ExperimentConfig(**changes)


# --- one result --------------------------------------------------------------------------------


def test_seconds_end_at_the_first_epoch_after_which_the_accuracy_is_never_lost():
    run = a_run((0.5, 0.91, 0.89, 0.92, 0.95), train_s=2.0)
    result = ex.ExperimentResult(ex.ExperimentConfig(), run)
    asked = {0.9: 8.0, 0.4: 2.0, 0.95: 10.0, 0.96: None}
    assert {each: result.seconds_to(each) for each in asked} == asked
    lost_again = ex.ExperimentResult(ex.ExperimentConfig(), a_run((0.5, 0.95, 0.85)))
    assert lost_again.seconds_to(0.9) is None


@pytest.mark.parametrize("lost", [False, True])
def test_a_record_gives_back_what_was_written(tmp_path, lost):
    result = a_result((0.5, 0.75), seed=4, name="x", lost=lost)
    ex.write_record(result, tmp_path / "one.json")
    assert ex.read_record(tmp_path / "one.json", result.config) == result
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_a_damaged_record_is_refused_at_every_byte(tmp_path):
    path, made = tmp_path / "one.json", ex.ExperimentConfig()
    ex.write_record(ex.ExperimentResult(made, a_run((0.5,))), path)
    with pytest.raises(ex.RecordError, match="another training"):
        ex.read_record(path, ex.ExperimentConfig(seed=1))
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ex.RecordError, match="Delete the file"):
                ex.read_record(path, made)


# --- tables ------------------------------------------------------------------------------------


def test_a_row_has_mean_error_and_spread_of_its_seeds():
    values = (0.90, 0.92, 0.97)
    row = ex.table(seeds_of("a", values))["a"]
    assert row.accuracy == pytest.approx(0.93)
    deviation = math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2)
    assert row.standard_error == pytest.approx(deviation / math.sqrt(3))
    assert (row.lowest, row.highest, row.seeds, row.diverged) == (0.90, 0.97, 3, 0)
    assert row.seconds is None


def test_seconds_are_the_median_over_all_seeds_those_that_never_held_inside():
    reached, never = (0.5, 0.95), (0.5, 0.5)
    two_of_three = ex.table(seeds_of("a", (reached, never, reached)), accuracy=0.9)["a"]
    assert (two_of_three.reached, two_of_three.seconds) == (2, 2.0)
    half = ex.table(seeds_of("a", (reached, never)), accuracy=0.9)["a"]
    assert (half.reached, half.seconds) == (1, None)


def test_a_diverged_seed_is_counted_and_never_averaged():
    results = [*seeds_of("a", (0.9, 0.8)), a_result(seed=2, lost=True)]
    table = ex.table(results, accuracy=0.7)
    assert (table["a"].seeds, table["a"].diverged) == (3, 1)
    assert table["a"].accuracy == pytest.approx(0.85)
    assert ex.table([a_result(lost=True)], accuracy=0.7)["a"].accuracy is None


def test_a_row_never_mixes_recipes():
    with pytest.raises(ValueError, match="other values of virtual_workers"):
        ex.table([a_result(), a_result(seed=1, virtual_workers=2)])
    with pytest.raises(ValueError, match="have each seed once"):
        ex.table([a_result(), a_result()])


def test_compare_pairs_the_seeds():
    # the seeds differ by far more than the recipes: only pairs see the difference
    first = seeds_of("first", (0.50, 0.70, 0.90))
    second = seeds_of("second", (0.46, 0.67, 0.87), virtual_workers=2)
    found = ex.compare(first, second)
    assert found.mean == pytest.approx(0.1 / 3)
    assert found.clear
    assert ex.compare(second, first).mean == pytest.approx(-0.1 / 3)
    diverged = a_result(seed=2, name="second", lost=True, virtual_workers=2)
    lost = ex.compare(first, [*second[:2], diverged])
    assert (len(lost.values), lost.diverged) == (2, (0, 1))
    assert not ex.compare(first[:1], second[:1]).clear  # one pair shows nothing about chance
    with pytest.raises(ValueError, match=r"`second` must share a seed with \[0, 1, 2\]"):
        ex.compare(first, [a_result(seed=7)])


def is_clear(values):
    return ex.PairedDifference("a", "b", tuple(values)).clear


def test_clear_is_students_t_and_needs_more_from_fewer_seeds():
    # two-sided 95 % quantiles, printed in any table of Student's t; degrees of freedom 1, 2, 4, 9
    for pairs, quantile in ((2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262)):
        spread = np.linspace(-1, 1, pairs)
        spread /= np.std(spread, ddof=1) / math.sqrt(pairs)
        assert not is_clear(spread + 0.99 * quantile)
        assert is_clear(spread - 1.01 * quantile)
    assert not is_clear([0.5])
    assert not is_clear([])
    assert not is_clear([0.5, 0.5])  # two equal differences: the test set is finite
    assert not is_clear([0.3, 0.3 + 1e-16])
    assert is_clear([0.5, 0.5, 0.5])


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_interval_is_that_of_scipys_paired_test(seeds):
    first, second = np.random.default_rng(seeds).normal(size=(2, seeds))
    oracle = stats.ttest_rel(first, second)
    assert ex.confidence_interval(first - second) == pytest.approx(oracle.confidence_interval(0.95))
    assert is_clear(first - second) == (oracle.pvalue < 0.05)
    assert ex.confidence_interval([1.0]) is None
