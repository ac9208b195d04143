"""What is said of results follows from their numbers, and beside the published ones.

Tests dlguide.training.experiments.against, curves, questions, scaling and regions of batches. Runs
are made by hand; published numbers are read here from the tables of the sources' data.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_experiments import a_result, a_run, seeds_of

from dlguide import published
from dlguide.training import experiments as ex
from dlguide.training.experiments import against, batches, curves, questions, scaling

LARGE = {"workers": 32}
BASE = {"baseline": {"experiment": 5, "workers": 1}}
NAIVE = {"experiment": 4, "workers": 32}
RECIPE = {"experiment": 6, "workers": 32, "framework": "Horovod"}


def top1(**wanted):
    (row,) = [
        row
        for row in published.load("accuracy")
        if all(row[column] == value for column, value in wanted.items())
    ]
    return row["top1_percent"]


# --- beside what was published -----------------------------------------------------------------


def test_a_row_is_singled_out_or_refused():
    assert against.one_row(RECIPE)["top1_percent"] == 74.662
    with pytest.raises(ValueError, match="single out one row of accuracy, 2 fit"):
        against.one_row({"experiment": 6, "workers": 32})
    with pytest.raises(ValueError, match="0 fit"):
        against.one_row({"experiment": 12})
    with pytest.raises(ValueError, match="`columns` must be one of"):
        against.one_row({"experimnt": 4})


def test_what_the_thesis_calls_on_par_is_no_difference():
    assert against.on_par() == pytest.approx((74.662 - 74.298) / 100)


@pytest.mark.parametrize(
    ("ours", "columns", "verdict"),
    [
        ((0.80, 0.81, 0.79), NAIVE, "agree"),  # both clearly below
        ((0.90, 0.93, 0.87), NAIVE, "only theirs"),
        ((0.95, 0.96, 0.94), NAIVE, "differ"),
        # 0.26 points below: less than what is on par
        ((0.90, 0.93, 0.87), {"experiment": 6, "workers": 16}, "agree"),
        ((0.80, 0.81, 0.79), {"experiment": 6, "workers": 16}, "only ours"),
    ],
)
def test_the_verdict_follows_from_both_differences(ours, columns, verdict):
    results = [*seeds_of("baseline", (0.90, 0.91, 0.89)), *seeds_of("it", ours, **LARGE)]
    found = ex.against_published(results, BASE | {"it": columns})
    assert [pair.verdict for pair in found.pairs] == ["baseline", verdict]
    apart = (found.pairs[1].theirs["top1_percent"] - 75.028) / 100
    assert found.pairs[1].theirs_apart == pytest.approx(apart)
    agree = int(verdict == "agree")
    assert f"{agree} of 1 recipes agree" in str(found)
    assert "one run each" in str(found)


def test_a_published_row_may_have_a_baseline_of_its_own():
    results = [*seeds_of("baseline", GOOD), *seeds_of("naive", BAD, **LARGE)]
    own = {"naive": {"experiment": 4, "workers": 1}}
    found = ex.against_published(results, BASE | {"naive": NAIVE}, published_baseline=own)
    expected = (top1(experiment=4, workers=32) - top1(experiment=4, workers=1)) / 100
    assert found.pairs[1].theirs_apart == pytest.approx(expected)
    assert "4.28 points below its baseline. They agree." in str(found)


def test_a_recipe_that_diverges_is_below():
    results = [
        *seeds_of("baseline", (0.9, 0.91)),
        *(a_result(seed=seed, name="naive", lost=True, **LARGE) for seed in (0, 1)),
    ]
    found = ex.against_published(results, BASE | {"naive": NAIVE})
    assert found.pairs[1].verdict == "agree"


def test_one_seed_tells_no_agreement():
    results = [*seeds_of("baseline", (0.9,)), *seeds_of("naive", (0.1,), **LARGE)]
    found = ex.against_published(results, BASE | {"naive": NAIVE})
    assert found.pairs[1].verdict == "cannot be told"
    assert "Whether they agree cannot be told." in str(found)
    assert "0 of 0 recipes agree with what was published. Of 1 it cannot be told." in str(found)
    # a divergence speaks for itself
    lost = [*seeds_of("baseline", (0.9,)), a_result(name="naive", lost=True, **LARGE)]
    found = ex.against_published(lost, BASE | {"naive": NAIVE})
    assert found.pairs[1].verdict == "agree"


def test_names_that_are_not_there_are_refused():
    results = seeds_of("baseline", (0.9, 0.91))
    with pytest.raises(ValueError, match="`pairs` must be one of baseline"):
        ex.against_published(results, BASE | {"naive": NAIVE})
    with pytest.raises(ValueError, match="`baseline` must be one of"):
        ex.against_published(results, BASE, baseline="base")


# --- curves ------------------------------------------------------------------------------------


def with_loss(name, losses, accuracies, **changes):
    pairs = zip(losses, accuracies, strict=True)
    runs = [a_run((0.5, 0.5, one), loss=tuple(loss)) for loss, one in pairs]
    return [
        ex.Result(ex.Setting(name=name, seed=seed, epochs=3, **changes), (run,))
        for seed, run in enumerate(runs)
    ]


FLAT = with_loss("flat", [(2.0, 1.0, 0.5), (2.0, 1.2, 0.7), (2.0, 0.8, 0.6)], (0.90, 0.92, 0.91))


def test_the_gap_is_that_of_the_mean_curves_after_the_warmup():
    moved = with_loss(
        "moved", [(9.0, 2.0, 1.5), (9.0, 2.2, 1.9), (9.0, 1.6, 1.6)], (0.90, 0.93, 0.90),
        warmup="gradual", warmup_epochs=1,
    )  # fmt: skip
    found = curves.aligned(moved, FLAT)
    apart = np.array([[1.0, 1.0], [1.0, 1.2], [0.8, 1.0]])
    assert found.epochs == (2, 3)
    assert found.gap == pytest.approx(np.abs(apart.mean(axis=0)).mean())
    assert found.chance == pytest.approx(apart.std(axis=0, ddof=1).mean() / np.sqrt(3))
    assert found.aligned is False
    assert found.curve == "training loss"
    assert "not aligned" in str(found)
    assert "false alarm" in str(found)  # the accuracies cannot be told apart


@pytest.mark.parametrize(
    ("shift", "accuracies", "said"),
    [
        (0.0, (0.90, 0.93, 0.90), "The curves foretold it."),
        (0.0, (0.80, 0.82, 0.81), "The curves did not foretell it."),
        (0.5, (0.80, 0.82, 0.81), "The curves foretold it."),
    ],
)
def test_what_the_curves_foretell_is_held_against_the_end(shift, accuracies, said):
    losses = [np.add(one.loss, shift + 0.01 * seed) for seed, one in enumerate(FLAT)]
    other = with_loss("other", losses, accuracies, workers=2)
    found = ex.aligned(other, FLAT)
    assert found.aligned is (shift == 0.0)
    assert said in str(found)


def test_one_seed_cannot_tell_and_what_does_not_go_together_is_refused():
    found = ex.aligned(FLAT[:1], FLAT[:1])
    assert found.aligned is None
    assert "one seed cannot tell" in str(found)
    with pytest.raises(ValueError, match="`baseline` must train 3 epochs too"):
        ex.aligned(FLAT, seeds_of("short", (0.9, 0.9), epochs=2))
    with pytest.raises(ValueError, match="share a seed that both came through"):
        ex.aligned(FLAT, [a_result(name="lost", lost=True, epochs=3)])


# --- regions of the batch ----------------------------------------------------------------------


def by_batch(**recipes):
    results = []
    for name, (speed, accuracies) in recipes.items():
        size = int(name[1:])
        results += seeds_of(name, accuracies, batch=size, images_per_s=speed)
    return results


GOOD, BAD = (0.90, 0.92, 0.91), (0.80, 0.83, 0.81)


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
    lost = a_result(seed=2, name="b64", lost=True, batch=64, images_per_s=110.0)
    often = seeds_of("b64", (0.98, 0.99), batch=64, images_per_s=110.0)
    made = by_batch(b8=(100.0, GOOD), b16=(105.0, GOOD))
    found = ex.best_batch([*made, *often, lost])
    assert found.regions == ("B", "B", "C")
    gone = [a_result(seed=s, name=f"b{b}", lost=True, batch=b) for b in (8, 16) for s in (0, 1)]
    assert set(ex.best_batch(gone).regions) <= {"C", "AC"}


def test_a_batch_that_diverges_is_too_large_and_one_seed_shows_no_region_c():
    lost = [a_result(seed=s, name="l", lost=True, batch=64) for s in range(3)]
    found = ex.best_batch([*by_batch(b8=(95.0, GOOD), b16=(100.0, GOOD)), *lost])
    assert found.regions == ("B", "B", "C")
    one = ex.best_batch(by_batch(b8=(95.0, (0.9,)), b16=(100.0, (0.5,))))
    assert one.regions == ("B", "B")
    with pytest.raises(ValueError, match="hold two batches or more"):
        batches.best_batch(by_batch(b8=(95.0, GOOD)))


# --- the research questions --------------------------------------------------------------------


def test_rq1_tells_speed_time_and_accuracy_of_small_batches():
    small = seeds_of("small", GOOD, batch=16, images_per_s=50.0)
    large = seeds_of("large", GOOD, batch=64, images_per_s=200.0)
    answer = questions.small_batches(small, large)
    assert "0.25 times as many images/s" in answer.ours
    assert "takes 1.00 s, not 1.00 s" in answer.ours
    one, many, one_large, many_large = (
        row["images_per_s"]
        for batch in (32, 128)
        for workers in (1, 32)
        for row in published.load("throughput")
        if (row["batch_per_worker"], row["workers"]) == (batch, workers)
        and row["framework"] == "Horovod 0.15.2 + TensorFlow 1.12.0"
    )
    assert (
        f"is {many / one / 0.32:.0f} %, not {many_large / one_large / 0.32:.0f} %" in answer.thesis
    )
    assert "take 8 h, not 6.6 h" in answer.thesis
    with pytest.raises(ValueError, match="`small` must have less than the 16 images"):
        questions.small_batches(large, small)


def test_rq2_tells_speed_up_and_efficiency_for_each_number_of_ranks():
    alone = seeds_of("a", (0.9,))
    two = [replace(one, setting=replace(one.setting, ranks=2, name="b")) for one in alone]
    two = [replace(one, runs=(a_run((0.9,), images_per_s=170.0),) * 2) for one in two]
    answer = questions.speed_up([*alone, *two])
    assert answer.ours == "2 ranks are 1.70 times as fast as one, an efficiency of 85 %."
    assert "22.5 times (148.27 h to 6.6 h)" in answer.thesis  # notes to its Table 12
    assert "29.4 times" in answer.thesis
    assert "27.5 times" in answer.thesis
    with pytest.raises(ValueError, match="be of 1 rank and of more"):
        questions.speed_up(alone)


def test_rq2_says_what_diverged():
    alone = seeds_of("a", (0.9,))
    lost = a_result(lost=True)
    two = [replace(one, setting=replace(one.setting, ranks=2)) for one in (*alone, lost)]
    answer = questions.speed_up([*alone, two[1]])
    assert answer.ours == "With 2 ranks every run diverged."
    answer = questions.speed_up([lost, two[0]])
    assert answer.ours == "Every run of 1 rank diverged: there is no speed to compare with."


def test_speed_up_stands_beside_the_published_one():
    alone = seeds_of("a", (0.9,))
    more = [
        replace(
            one,
            setting=replace(one.setting, ranks=ranks),
            runs=(a_run((0.9,), images_per_s=speed),) * ranks,
        )
        for one in alone
        for ranks, speed in ((2, 170.0), (3, 210.0))
    ]
    found = scaling.against_throughput([*alone, *more])
    steps = {step.workers: step for step in found.steps}
    assert (steps[2].speed_up, steps[2].efficiency) == pytest.approx((1.7, 0.85))
    assert steps[2].published_speed_up == pytest.approx(390.24 / 207.79)  # its Tables 3 and 6
    assert steps[32].published_efficiency == pytest.approx(6104.32 / 207.79 / 32)  # Table 9
    assert (steps[3].published_speed_up, steps[32].speed_up) == (None, None)
    assert "our efficiency is 9 points below theirs" in str(found)
    with pytest.raises(ValueError, match="`batch` must be one that was published"):
        ex.against_throughput([*alone, *more], batch=17)
    with pytest.raises(ValueError, match="hold a run of 1 rank"):
        ex.against_throughput(more)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ((0.905, 0.915, 0.91), "no loss is left to be seen"),
        ((0.88, 0.90, 0.89), "what is left of the loss is clear"),
        ((0.80, 0.85, 0.80), "not to be told from chance here"),
        ((0.60, 0.62, 0.61), "The recipe does harm: it loses 20.33 points on naive."),
        ((0.93, 0.95, 0.94), "even better than the baseline"),
    ],
)
def test_rq3_says_whether_the_recipe_mends_what_the_batch_spoils(recipe, said):
    base, naive = seeds_of("baseline", GOOD), seeds_of("naive", BAD, **LARGE)
    scaled = seeds_of("recipe", recipe, rule="linear", **LARGE)
    answer = questions.large_batches(base, naive, scaled)
    assert said in answer.ours
    assert answer.ours.startswith("With a global batch 32 times as large naive is")
    assert "loses 4.28 points when nothing else changes" in answer.thesis
    assert "the guide reaches 76.1 % with 14336" in answer.thesis
    assert str(answer).startswith("RQ3: ")


def test_rq3_counts_recipes_that_come_through():
    base, scaled = seeds_of("baseline", GOOD), seeds_of("recipe", GOOD, rule="linear", **LARGE)
    lost = [a_result(seed=seed, name="naive", lost=True, **LARGE) for seed in range(3)]
    hot = seeds_of("hot", BAD, rule="sqrt", **LARGE)
    answer = ex.large_batches(base, scaled, lost)
    assert "The recipe does harm: it diverges with more seeds than recipe." in answer.ours
    answer = ex.large_batches(base, lost, scaled, without_warmup=hot)
    assert "Only the recipe comes through with every seed." in answer.ours
    assert "hot is" in answer.ours
