"""Experiments: configs, which trainings there are, records, tables and comparisons.

Tests dlguide.training.experiments. Results are made by hand here and the oracle is a closed form;
`test_experiments_run` trains.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dlguide.measure import TrainingResult
from dlguide.training import experiments as ex
from dlguide.training.experiments import config, differences, running


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
        return ex.ExperimentResult(made, (), ex.Divergence(1, 3))
    return ex.ExperimentResult(made, (a_run(curve, images_per_s),))


def seeds_of(name, accuracies, **changes):
    return [a_result(one, seed, name, **changes) for seed, one in enumerate(accuracies)]


# --- settings ----------------------------------------------------------------------------------


def test_the_rate_follows_the_global_batch_by_its_rule():
    plain = ex.ExperimentConfig(
        batch_per_worker=128, virtual_workers=16, ranks=2, base_rate=0.05, base_batch=128
    )
    assert plain.global_batch == 4096
    assert plain.rate == pytest.approx(0.05)
    assert replace(plain, rate_scaling="linear").rate == pytest.approx(1.6)
    assert replace(plain, rate_scaling="sqrt").rate == pytest.approx(0.05 * math.sqrt(32))


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


def test_constant_warmup_holds_the_base_rate_and_jumps():
    found = rates(warmup="constant", warmup_epochs=2)
    assert found == pytest.approx([0.05] * 20 + [1.6] * 880)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"warmup": "gradual", "warmup_epochs": 4, "epochs": 4}, "`warmup_epochs` must be less"),
        ({"warmup": "gradual"}, "`warmup_epochs` must be more than 0"),
        ({"warmup": "gently", "warmup_epochs": 1}, "`warmup` must be one of"),
        (
            {"samples": 100, "batch_per_worker": 32, "virtual_workers": 4},
            "`batch_per_worker` must give a global batch of at most the 100 samples of mnist",
        ),
        ({"decay": "step"}, "`boundaries` must name the epochs"),
        ({"decay": "step", "boundaries": (9,)}, "must"),
        ({"rate_scaling": "cubic"}, "`rate_scaling` must be one of"),
        ({"optimizer": "lasr"}, "Did you mean lars?"),
        ({"model": lambda: None}, "`model` must be a text"),
        ({"virtual_workers": 0}, "`virtual_workers` must be a whole number of at least 1"),
        ({"base_rate": 0}, "`base_rate` must be a positive number"),
        ({"momentum": -1}, "`momentum` must be a number of at least 0"),
        ({"momentum": 1.0}, "`momentum` must be below 1"),
        ({"dtype": "float23"}, "Did you mean float32?"),
        ({"dropout": 7.0}, "`dropout` must be None or a fraction"),
        ({"dropout": "much"}, "`dropout` must be None or a fraction"),
    ],
)
def test_an_impossible_config_is_refused_when_it_is_made(changes, said):
    with pytest.raises(ValueError, match=said):
        ex.ExperimentConfig(**changes)


def test_a_setting_survives_json_and_numbers_of_numpy():
    setting = ex.ExperimentConfig(
        samples=np.int64(500), base_rate=np.float32(0.5), decay="step", boundaries=np.array([1, 2]),
        seed=np.int64(3), warmup_epochs=1,
    )  # fmt: skip
    again = ex.ExperimentConfig.from_dict(json.loads(json.dumps(setting.as_dict())))
    assert again == setting
    assert again.key() == setting.key()
    with pytest.raises(ValueError, match="`record` must be one of"):
        ex.ExperimentConfig.from_dict({"virtual_workrs": 3})


def test_one_training_has_one_key_and_another_one_has_another():
    one = ex.ExperimentConfig()
    same = [
        replace(one, name="other"),
        replace(one, rate_scaling="linear"),  # the global batch is the base batch
        replace(one, warmup_epochs=2.0),  # of no warmup
        replace(one, boundaries=(2,)),
        replace(one, trust=0.1),
    ]
    assert {each.key() for each in same} == {one.key()}
    others = [
        replace(one, seed=1),
        replace(one, virtual_workers=2),
        replace(one, virtual_workers=2, rate_scaling="linear"),
        replace(one, optimizer="lars"),
        replace(one, optimizer="lars", trust=0.1),
        replace(one, warmup="gradual", warmup_epochs=2.0),
        replace(one, decay="step", boundaries=(2,)),
        replace(one, momentum=0.8),
    ]
    keys = {each.key() for each in others} | {one.key(), one.key("data of one's own")}
    assert len(keys) == len(others) + 2


# --- which trainings ---------------------------------------------------------------------------


def test_one_factor_changes_one_thing_and_repeats_nothing():
    base = ex.ExperimentConfig(base_batch=32, batch_per_worker=32, rate_scaling="linear")
    made = ex.one_factor(
        base, {"virtual_workers": (1, 8, 32), "rate_scaling": ("none", "linear")}, seeds=(0, 1)
    )
    assert [one.name for one in made[::2]] == [
        "baseline",
        "virtual_workers 8",
        "virtual_workers 32",
    ]
    assert [one.seed for one in made] == [0, 1] * 3
    for one in made:
        assert replace(one, virtual_workers=1, name="", seed=0) == base


def test_fields_that_change_together_are_one_factor():
    base = ex.ExperimentConfig(virtual_workers=32)
    factor = ("rate_scaling", "warmup", "warmup_epochs")
    values = [("linear", None, 0), ("linear", "gradual", 2)]
    made = ex.one_factor(base, {factor: values})
    assert [one.name for one in made][1:] == [
        "rate_scaling linear, warmup none, warmup_epochs 0",
        "rate_scaling linear, warmup gradual, warmup_epochs 2",
    ]
    assert (made[2].rate_scaling, made[2].warmup, made[2].warmup_epochs) == (
        "linear",
        "gradual",
        2.0,
    )


def test_factors_that_cannot_be_are_refused():
    base = ex.ExperimentConfig()
    with pytest.raises(ValueError, match="Did you mean virtual_workers"):
        ex.one_factor(base, {"virtual_worker": (2,)})
    with pytest.raises(ValueError, match="`factors` must be one of"):
        ex.one_factor(base, {"seed": (2,)})
    with pytest.raises(ValueError, match="`factors` must have 2 values for rate_scaling, warmup"):
        ex.one_factor(base, {("rate_scaling", "warmup"): [("linear",)]})
    with pytest.raises(ValueError, match="`warmup_epochs` must be less"):
        ex.one_factor(base, {("warmup", "warmup_epochs"): [("gradual", 9)]})
    with pytest.raises(ValueError, match="`seeds` must differ"):
        ex.one_factor(base, {}, seeds=(1, 1))
    with pytest.raises(ValueError, match="`seeds` must hold at least one"):
        ex.each_seed({"a": base}, seeds=())
    assert "name" not in config.FACTORS


# --- one result --------------------------------------------------------------------------------


def test_held_is_the_first_epoch_after_which_the_accuracy_is_never_lost():
    result = ex.ExperimentResult(
        ex.ExperimentConfig(), (a_run((0.5, 0.91, 0.89, 0.92, 0.95), train_s=2.0),)
    )
    assert result.time_to_accuracy(0.9) == ex.TimeToAccuracy(8.0, 2.0, 4)
    assert result.time_to_accuracy(0.4) == ex.TimeToAccuracy(2.0, 0.5, 1)
    assert result.time_to_accuracy(0.95) == ex.TimeToAccuracy(10.0, 2.5, 5)
    assert result.time_to_accuracy(0.96) is None
    lost_again = ex.ExperimentResult(ex.ExperimentConfig(), (a_run((0.5, 0.95, 0.85)),))
    assert lost_again.time_to_accuracy(0.9) is None
    with pytest.raises(ValueError, match="95 % is"):
        result.time_to_accuracy(95)


def test_the_slowest_rank_determines_time_and_speed():
    runs = (a_run(train_s=1.0, images_per_s=90.0), a_run(train_s=3.0, images_per_s=80.0))
    result = ex.ExperimentResult(ex.ExperimentConfig(ranks=2), runs)
    assert result.train_s == (3.0, 6.0)
    assert result.images_per_s == 80.0
    assert result.test_error == pytest.approx((0.5, 0.1))


def test_a_diverged_training_has_no_accuracy_and_no_times():
    result = ex.ExperimentResult(ex.ExperimentConfig(ranks=2), (), ex.Divergence(2, 3))
    assert result.diverged
    assert (result.accuracy, result.images_per_s, result.train_s) == (None, None, ())
    assert result.time_to_accuracy(0.1) is None
    assert not a_result().diverged


@pytest.mark.parametrize("lost", [False, True])
def test_a_record_gives_back_what_was_written(tmp_path, lost):
    result = a_result((0.5, 0.75), seed=4, name="x", lost=lost)
    running.write_record(result, tmp_path / "one.json")
    assert running.read_record(tmp_path / "one.json", result.config) == result
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_a_damaged_record_is_refused_at_every_byte(tmp_path):
    path, made = tmp_path / "one.json", ex.ExperimentConfig()
    running.write_record(ex.ExperimentResult(made, (a_run((0.5,)),)), path)
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 7):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(ex.RecordError, match="Delete the file"):
                running.read_record(path, made)


def test_a_record_of_another_training_is_refused(tmp_path):
    running.write_record(a_result(), tmp_path / "one.json")
    with pytest.raises(ex.RecordError, match="another training"):
        running.read_record(tmp_path / "one.json", ex.ExperimentConfig(seed=1))


# --- tables ------------------------------------------------------------------------------------


def test_a_row_has_mean_error_and_spread_of_its_seeds():
    values = (0.90, 0.92, 0.97)
    row = ex.table(seeds_of("a", values))["a"]
    assert row.accuracy == pytest.approx(0.93)
    deviation = math.sqrt((0.03**2 + 0.01**2 + 0.04**2) / 2)
    assert row.deviation == pytest.approx(deviation)
    assert row.standard_error == pytest.approx(deviation / math.sqrt(3))
    assert (row.lowest, row.highest, row.seeds, row.diverged) == (0.90, 0.97, 3, 0)
    assert row.seconds is None


def test_seconds_are_the_median_over_all_seeds_those_that_never_held_inside():
    reached, never = (0.5, 0.95), (0.5, 0.5)
    two_of_three = ex.table(seeds_of("a", (reached, never, reached)), accuracy=0.9)[0]
    assert (two_of_three.reached, two_of_three.seconds) == (2, 2.0)
    half = ex.table(seeds_of("a", (reached, never)), accuracy=0.9)[0]
    assert (half.reached, half.seconds) == (1, None)


def test_a_diverged_seed_is_counted_and_never_averaged():
    results = [*seeds_of("a", (0.9, 0.8)), a_result(seed=2, lost=True)]
    table = ex.table(results, accuracy=0.7)
    assert (table[0].seeds, table[0].diverged) == (3, 1)
    assert table[0].accuracy == pytest.approx(0.85)
    assert "(1 diverged)" in str(table)
    gone = ex.table([a_result(lost=True)], accuracy=0.7)
    assert gone[0].accuracy is None
    assert "all diverged" in str(gone)
    assert "never" in str(gone)


def test_a_row_never_mixes_recipes():
    with pytest.raises(ValueError, match="other values of virtual_workers"):
        ex.table([a_result(), a_result(seed=1, virtual_workers=2)])
    with pytest.raises(ValueError, match="have each seed once"):
        ex.table([a_result(), a_result()])


def test_by_a_field_takes_what_differs_in_it_alone():
    results = [
        *seeds_of("a", (0.9, 0.8)),
        *seeds_of("b", (0.7, 0.6), virtual_workers=4),
        *seeds_of("c", (0.5, 0.4), virtual_workers=4, epochs=9),
        *seeds_of("again", (0.7, 0.6), virtual_workers=4),
    ]
    table = ex.table(results, by="virtual_workers")
    assert [(row.name, row.seeds) for row in table] == [
        ("virtual_workers 1", 2),
        ("virtual_workers 4", 2),
    ]
    assert table["virtual_workers 4"].accuracy == pytest.approx(0.65)
    with pytest.raises(ValueError, match="Did you mean virtual_workers"):
        ex.table(results, by="virtual_worker")


def test_by_a_field_takes_no_other_rule_where_the_rule_makes_no_difference():
    # with the first one's batch, which is the base batch, both rules are one training
    results = [
        *seeds_of("a", (0.9, 0.8), batch_per_worker=32),
        *seeds_of("scaled", (0.7, 0.6), batch_per_worker=64, rate_scaling="linear"),
        *seeds_of("b", (0.5, 0.4), batch_per_worker=64),
    ]
    table = ex.table(results, by="batch_per_worker")
    assert table["batch_per_worker 64"].accuracy == pytest.approx(0.45)
    scaled = [
        *seeds_of("b", (0.5,), batch_per_worker=64),
        *seeds_of("c", (0.7,), batch_per_worker=64, rate_scaling="linear"),
    ]
    assert [row.name for row in ex.table(scaled, by="rate_scaling")] == [
        "rate_scaling none",
        "rate_scaling linear",
    ]


def test_by_a_field_leaves_out_what_does_not_go_with_the_first_ones_value():
    results = [
        *seeds_of("gradual", (0.9,), warmup="gradual", warmup_epochs=2),
        *seeds_of("stepping", (0.8,), warmup="stepping", warmup_epochs=2),
        *seeds_of("none", (0.7,)),
    ]
    found = [row.name for row in ex.table(results, by="warmup")]
    assert found == ["warmup gradual", "warmup stepping"]


def test_a_table_prints_a_line_for_each_row_in_columns():
    results = [
        *seeds_of("a", (0.9, 0.8)),
        *seeds_of("longer name", ((0.5, 0.9),) * 2, virtual_workers=2),
    ]
    text = str(ex.table(results, accuracy=0.85)).splitlines()
    assert len(text) == 3
    assert "s until 85 % held" in text[0]
    assert "85.00 ± 5.00" in text[1]
    assert "80.00 to 90.00" in text[1]
    assert "(1 of 2)" in text[1]
    assert text[2].startswith("longer name")


def test_compare_pairs_the_seeds():
    # the seeds differ by far more than the recipes: only pairs see the difference
    first = seeds_of("first", (0.50, 0.70, 0.90))
    second = seeds_of("second", (0.46, 0.67, 0.87), virtual_workers=2)
    found = ex.compare(first, second)
    assert found.mean == pytest.approx(0.1 / 3)
    assert found.standard_error == pytest.approx(0.01 / 3)
    assert found.clear
    assert str(found).startswith("first is 3.33 points above second (standard error 0.33, 3 pairs")
    back = ex.compare(second, first)
    assert back.mean == pytest.approx(-0.1 / 3)
    assert "second is 3.33 points below first" in str(back)


def test_clear_is_students_t_and_needs_more_from_fewer_seeds():
    # two-sided 95 % quantiles, printed in any table of Student's t; degrees of freedom 1, 2, 4, 9
    for pairs, quantile in ((2, 12.706), (3, 4.303), (5, 2.776), (10, 2.262)):
        assert differences.t_factor(pairs) == pytest.approx(quantile, abs=6e-4)
        spread = np.linspace(-1, 1, pairs)
        spread /= differences.standard_error(spread)
        assert not ex.is_clear(spread + 0.99 * quantile)
        assert ex.is_clear(spread - 1.01 * quantile)
    assert differences.t_factor(1) == math.inf
    assert not ex.is_clear([0.5])
    assert not ex.is_clear([])
    assert not ex.is_clear([0.5, 0.5])  # two equal differences: the test set is finite
    assert not ex.is_clear([0.3, 0.3 + 1e-16])
    assert ex.is_clear([0.5, 0.5, 0.5])


@pytest.mark.parametrize("seeds", [2, 3, 7])
def test_the_interval_is_that_of_scipys_paired_test(seeds):
    first, second = np.random.default_rng(seeds).normal(size=(2, seeds))
    oracle = stats.ttest_rel(first, second)
    assert ex.confidence_interval(first - second) == pytest.approx(oracle.confidence_interval(0.95))
    assert ex.is_clear(first - second) == (oracle.pvalue < 0.05)
    assert ex.confidence_interval([1.0]) is None


@pytest.mark.parametrize("pairs", [2, 3, 5])
def test_one_comparison_of_equals_in_twenty_is_called_clear(pairs):
    values = np.random.default_rng(pairs).normal(size=(4000, pairs))
    alarms = np.mean([ex.is_clear(row) for row in values])
    assert alarms == pytest.approx(0.05, abs=0.015)  # 4 standard errors of the share


def test_a_clear_difference_says_how_many_standard_errors_it_exceeds():
    found = ex.PairedDifference("a", "b", (-0.04, -0.03, -0.02, -0.05, -0.01))
    assert "clear, more than 2.8 standard errors" in str(found)
    assert found.interval[1] < 0
    fewer = replace(found, values=found.values[-2:])
    assert "not distinguishable from chance" in str(fewer)


def test_compare_reports_when_nothing_can_be_concluded():
    first = seeds_of("first", (0.50, 0.70))
    assert "not distinguishable from chance" in str(ex.compare(first, seeds_of("b", (0.52, 0.69))))
    alone = ex.compare(first[:1], seeds_of("b", (0.4,)))
    assert not alone.clear
    assert "shows nothing about chance" in str(alone)
    with pytest.raises(ValueError, match=r"`second` must share a seed with \[0, 1\]"):
        ex.compare(first, [a_result(seed=7)])


def test_compare_leaves_a_diverged_pair_out_and_reports_it():
    first = seeds_of("first", (0.9, 0.8, 0.7))
    second = [*seeds_of("second", (0.8, 0.7)), a_result(seed=2, name="second", lost=True)]
    found = ex.compare(first, second)
    assert (found.pairs, found.diverged) == (2, (0, 1))
    assert "But second diverged with 1 seed, left out here." in str(found)
    none = ex.compare([a_result(lost=True)], [a_result(name="b")])
    assert "no seed with which neither diverged" in str(none)


def test_the_standard_error_is_that_of_the_formula():
    values = np.random.default_rng(0).normal(size=7)
    expected = math.sqrt(((values - values.mean()) ** 2).sum() / 6 / 7)
    assert differences.standard_error(values) == pytest.approx(expected)
    assert differences.standard_error([]) is None


# --- regions of the batch ----------------------------------------------------------------------


GOOD, BAD = (0.90, 0.92, 0.91), (0.80, 0.83, 0.81)


def by_batch(**recipes):
    results = []
    for name, (speed, accuracies) in recipes.items():
        size = int(name[1:])
        results += seeds_of(name, accuracies, batch_per_worker=size, images_per_s=speed)
    return results


def test_region_b_lies_between_too_slow_and_too_inaccurate():
    found = ex.best_batch(
        by_batch(
            b128=(100.0, BAD), b8=(20.0, GOOD), b32=(95.0, (0.91, 0.91, 0.90)), b16=(91.0, GOOD)
        )
    )
    assert found.batches == (8, 16, 32, 128)
    assert found.regions == ("A", "B", "B", "C")
    assert found.interval == (16, 32)
    assert str(found).startswith("Region B: 16 to 32 images per worker.")
    assert "Region A (below 90 % of the highest throughput): 8." in str(found)
    assert "Region C (clearly less accurate than the best): 128." in str(found)


def test_a_dip_between_good_batches_ends_no_region():
    found = ex.best_batch(
        by_batch(b8=(95.0, GOOD), b16=(80.0, BAD), b32=(100.0, (0.91, 0.91, 0.90)))
    )
    assert found.regions == ("B", "B", "B")


def test_there_may_be_no_batch_that_serves_both():
    found = ex.best_batch(by_batch(b8=(20.0, GOOD), b16=(50.0, BAD), b32=(100.0, BAD)))
    assert found.regions == ("A", "AC", "C")
    assert found.interval is None
    assert str(found).startswith("No batch serves both")


def test_a_batch_that_diverges_with_one_seed_is_neither_best_nor_in_region_b():
    lost = a_result(seed=2, name="b64", lost=True, batch_per_worker=64, images_per_s=110.0)
    often = seeds_of("b64", (0.98, 0.99), batch_per_worker=64, images_per_s=110.0)
    made = by_batch(b8=(100.0, GOOD), b16=(105.0, GOOD))
    found = ex.best_batch([*made, *often, lost])
    assert found.regions == ("B", "B", "C")
    gone = [
        a_result(seed=s, name=f"b{b}", lost=True, batch_per_worker=b)
        for b in (8, 16)
        for s in (0, 1)
    ]
    assert set(ex.best_batch(gone).regions) <= {"C", "AC"}


def test_a_batch_that_diverges_is_too_large_and_one_seed_shows_no_region_c():
    lost = [a_result(seed=s, name="l", lost=True, batch_per_worker=64) for s in range(3)]
    found = ex.best_batch([*by_batch(b8=(95.0, GOOD), b16=(100.0, GOOD)), *lost])
    assert found.regions == ("B", "B", "C")
    one = ex.best_batch(by_batch(b8=(95.0, (0.9,)), b16=(100.0, (0.5,))))
    assert one.regions == ("B", "B")
    with pytest.raises(ValueError, match="hold two batches or more"):
        ex.best_batch(by_batch(b8=(95.0, GOOD)))
