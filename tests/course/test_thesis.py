"""Sentences about results follow from their numbers and from the published ones.

Tests dlcourse.thesis. Runs are made by hand; published numbers are read here from the tables of the
sources.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_experiments import a_result, a_run, seeds_of

from dlcourse import thesis
from dlguide import published

GOOD, BAD = (0.90, 0.92, 0.91), (0.80, 0.83, 0.81)
LARGE = {"virtual_workers": 32}
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
