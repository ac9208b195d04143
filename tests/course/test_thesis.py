"""Sentences about results follow from their numbers and from the published ones.

Tests dlcourse.thesis. Runs are made by hand; published numbers are read here from the tables of the
sources.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_experiments import a_result, a_run, seeds_of

from dlcourse import thesis
from dlguide import published
from dlguide.training import experiments as ex

GOOD, BAD = (0.90, 0.92, 0.91), (0.80, 0.83, 0.81)
LARGE = {"virtual_workers": 32}
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


def test_one_published_row_is_found_or_refused():
    assert thesis.published_row(RECIPE)["top1_percent"] == 74.662
    with pytest.raises(ValueError, match="match one row of accuracy, 2 match"):
        thesis.published_row({"experiment": 6, "workers": 32})
    with pytest.raises(ValueError, match="0 match"):
        thesis.published_row({"experiment": 12})
    with pytest.raises(ValueError, match="`columns` must be one of"):
        thesis.published_row({"experimnt": 4})


def test_what_the_thesis_calls_on_par_is_no_difference():
    assert thesis.on_par() == pytest.approx((74.662 - 74.298) / 100)


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
    found = thesis.compare_with_published(results, BASE | {"it": columns})
    assert [pair.verdict for pair in found.pairs] == ["baseline", verdict]
    apart = (found.pairs[1].theirs["top1_percent"] - 75.028) / 100
    assert found.pairs[1].their_difference == pytest.approx(apart)
    agree = int(verdict == "agree")
    assert f"{agree} of 1 recipes agree" in str(found)
    assert "one run each" in str(found)


def test_a_published_row_may_have_a_baseline_of_its_own():
    results = [*seeds_of("baseline", GOOD), *seeds_of("naive", BAD, **LARGE)]
    own = {"naive": {"experiment": 4, "workers": 1}}
    found = thesis.compare_with_published(results, BASE | {"naive": NAIVE}, published_baseline=own)
    expected = (top1(experiment=4, workers=32) - top1(experiment=4, workers=1)) / 100
    assert found.pairs[1].their_difference == pytest.approx(expected)
    assert "4.28 points below its baseline. They agree." in str(found)


def test_a_recipe_that_diverges_is_below():
    results = [
        *seeds_of("baseline", (0.9, 0.91)),
        *(a_result(seed=seed, name="naive", lost=True, **LARGE) for seed in (0, 1)),
    ]
    found = thesis.compare_with_published(results, BASE | {"naive": NAIVE})
    assert found.pairs[1].verdict == "agree"


def test_one_seed_tells_no_agreement():
    results = [*seeds_of("baseline", (0.9,)), *seeds_of("naive", (0.1,), **LARGE)]
    found = thesis.compare_with_published(results, BASE | {"naive": NAIVE})
    assert found.pairs[1].verdict == "undecided"
    assert "One seed does not show whether they agree." in str(found)
    assert "0 of 0 recipes agree with the published ones. 1 cannot be decided." in str(found)
    # a divergence speaks for itself
    lost = [*seeds_of("baseline", (0.9,)), a_result(name="naive", lost=True, **LARGE)]
    found = thesis.compare_with_published(lost, BASE | {"naive": NAIVE})
    assert found.pairs[1].verdict == "agree"


def test_names_that_are_not_there_are_refused():
    results = seeds_of("baseline", (0.9, 0.91))
    with pytest.raises(ValueError, match="`pairs` must be one of baseline"):
        thesis.compare_with_published(results, BASE | {"naive": NAIVE})
    with pytest.raises(ValueError, match="`baseline` must be one of"):
        thesis.compare_with_published(results, BASE, baseline="base")


# --- the last batch ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "batch", "workers"), [(53, 6, 3), (12, 4, 3), (13, 4, 3), (1, 5, 1), (100, 7, 4)]
)
def test_the_last_batch_is_what_dealing_out_leaves(samples, batch, workers):
    own = len([*range(samples), *range(-samples % workers)][::workers])  # filled up, dealt out
    *_, last = [len(range(own)[at : at + batch]) for at in range(0, own, batch)]
    assert thesis.last_batch(samples, batch, workers) == last


def test_the_last_batches_of_the_thesis():
    found = [thesis.last_batch(1_281_167, 128, workers) for workers in (8, 16, 24, 32)]
    assert found == [18, 73, 6, 101]
    assert thesis.last_batch(1_281_167, 32, 32) == 5  # experiment 7


# --- curves ------------------------------------------------------------------------------------


def with_loss(name, losses, accuracies, **changes):
    pairs = zip(losses, accuracies, strict=True)
    runs = [a_run((0.5, 0.5, one), loss=tuple(loss)) for loss, one in pairs]
    return [
        ex.ExperimentResult(ex.ExperimentConfig(name=name, seed=seed, epochs=3, **changes), (run,))
        for seed, run in enumerate(runs)
    ]


FLAT = with_loss("flat", [(2.0, 1.0, 0.5), (2.0, 1.2, 0.7), (2.0, 0.8, 0.6)], (0.90, 0.92, 0.91))


def test_the_gap_is_that_of_the_mean_curves_after_the_warmup():
    moved = with_loss(
        "moved", [(9.0, 2.0, 1.5), (9.0, 2.2, 1.9), (9.0, 1.6, 1.6)], (0.90, 0.93, 0.90),
        warmup="gradual", warmup_epochs=1,
    )  # fmt: skip
    found = thesis.curve_gap(moved, FLAT)
    apart = np.array([[1.0, 1.0], [1.0, 1.2], [0.8, 1.0]])
    assert found.epochs == (2, 3)
    assert found.gap == pytest.approx(np.abs(apart.mean(axis=0)).mean())
    assert found.error == pytest.approx(apart.std(axis=0, ddof=1).mean() / np.sqrt(3))
    assert found.aligned is False
    assert found.curve == "training loss"
    assert "not aligned" in str(found)
    assert "A false alarm." in str(found)  # the accuracies cannot be told apart


@pytest.mark.parametrize(
    ("shift", "accuracies", "said"),
    [
        (0.0, (0.90, 0.93, 0.90), "The curves predicted it."),
        (0.0, (0.80, 0.82, 0.81), "The curves did not predict it."),
        (0.5, (0.80, 0.82, 0.81), "The curves predicted it."),
    ],
)
def test_what_the_curves_foretell_is_held_against_the_end(shift, accuracies, said):
    losses = [np.add(one.loss, shift + 0.01 * seed) for seed, one in enumerate(FLAT)]
    other = with_loss("other", losses, accuracies, virtual_workers=2)
    found = thesis.curve_gap(other, FLAT)
    assert found.aligned is (shift == 0.0)
    assert said in str(found)


def test_one_seed_cannot_tell_and_what_does_not_go_together_is_refused():
    found = thesis.curve_gap(FLAT[:1], FLAT[:1])
    assert found.aligned is None
    assert "one seed does not show" in str(found)
    with pytest.raises(ValueError, match="`baseline` must train 3 epochs too"):
        thesis.curve_gap(FLAT, seeds_of("short", (0.9, 0.9), epochs=2))
    with pytest.raises(ValueError, match="share a seed with which neither diverged"):
        thesis.curve_gap(FLAT, [a_result(name="lost", lost=True, epochs=3)])


# --- the research questions --------------------------------------------------------------------


def test_rq1_tells_speed_time_and_accuracy_of_small_batches():
    small = seeds_of("small", GOOD, batch_per_worker=16, images_per_s=50.0)
    large = seeds_of("large", GOOD, batch_per_worker=64, images_per_s=200.0)
    answer = thesis.small_batches(small, large)
    assert "the throughput is 0.25 times as high" in answer.ours
    assert "takes 1.00 s instead of 1.00 s" in answer.ours
    one, many, one_large, many_large = (
        row["images_per_s"]
        for batch in (32, 128)
        for workers in (1, 32)
        for row in published.load("throughput")
        if (row["batch_per_worker"], row["workers"]) == (batch, workers)
        and row["framework"] == "Horovod 0.15.2 + TensorFlow 1.12.0"
    )
    assert (
        f"is {many / one / 0.32:.0f} % instead of {many_large / one_large / 0.32:.0f} %"
        in answer.thesis
    )
    assert "take 8 h instead of 6.6 h" in answer.thesis
    with pytest.raises(ValueError, match="`small` must have less than the 16 images"):
        thesis.small_batches(large, small)


def test_rq2_tells_speed_up_and_efficiency_for_each_number_of_ranks():
    alone = seeds_of("a", (0.9,))
    two = [replace(one, config=replace(one.config, ranks=2, name="b")) for one in alone]
    two = [replace(one, runs=(a_run((0.9,), images_per_s=170.0),) * 2) for one in two]
    answer = thesis.speed_up([*alone, *two])
    assert answer.ours == "2 ranks are 1.70 times as fast as one, an efficiency of 85 %."
    assert "22.5 times shorter (148.27 h to 6.6 h)" in answer.thesis  # notes to its Table 12
    assert "29.4 times" in answer.thesis
    assert "27.5 times" in answer.thesis
    with pytest.raises(ValueError, match="be of 1 rank and of more"):
        thesis.speed_up(alone)


def test_rq2_says_what_diverged():
    alone = seeds_of("a", (0.9,))
    lost = a_result(lost=True)
    two = [replace(one, config=replace(one.config, ranks=2)) for one in (*alone, lost)]
    answer = thesis.speed_up([*alone, two[1]])
    assert answer.ours == "With 2 ranks every run diverged."
    answer = thesis.speed_up([lost, two[0]])
    assert answer.ours == "Every run of 1 rank diverged: there is no speed to compare with."


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ((0.905, 0.915, 0.91), "no remaining loss is visible"),
        ((0.88, 0.90, 0.89), "a clear loss remains"),
        ((0.80, 0.85, 0.80), "not distinguishable from chance here"),
        ((0.60, 0.62, 0.61), "The recipe does harm: it loses 20.33 points on naive."),
        ((0.93, 0.95, 0.94), "even better than the baseline"),
    ],
)
def test_rq3_says_whether_the_recipe_mends_what_the_batch_spoils(recipe, said):
    base, naive = seeds_of("baseline", GOOD), seeds_of("naive", BAD, **LARGE)
    scaled = seeds_of("recipe", recipe, rate_scaling="linear", **LARGE)
    answer = thesis.large_batches(base, naive, scaled)
    assert said in answer.ours
    assert answer.ours.startswith("With a global batch 32 times as large naive is")
    assert "loses 4.28 points when nothing else changes" in answer.thesis
    assert "guide reaches 76.1 % with 14336" in answer.thesis
    assert str(answer).startswith("RQ3: ")


def test_rq3_counts_recipes_that_come_through():
    base, scaled = (
        seeds_of("baseline", GOOD),
        seeds_of("recipe", GOOD, rate_scaling="linear", **LARGE),
    )
    lost = [a_result(seed=seed, name="naive", lost=True, **LARGE) for seed in range(3)]
    hot = seeds_of("hot", BAD, rate_scaling="sqrt", **LARGE)
    answer = thesis.large_batches(base, scaled, lost)
    assert "The recipe does harm: it diverges with more seeds than recipe." in answer.ours
    answer = thesis.large_batches(base, lost, scaled, without_warmup=hot)
    assert "Only the recipe does not diverge with any seed." in answer.ours
    assert "hot is" in answer.ours
