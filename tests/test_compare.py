"""The table of a comparison: slowest rank, speed-up, efficiency, equal work (closed form)."""

from __future__ import annotations

import dataclasses

import pytest
from fake_machine import machine

from dlguide.machine import threads
from dlguide.measure import TrainingResult
from dlguide.training import compare


def make_run(ranks, rank=0, images_per_s=100.0, **changes):
    values = {
        field.name: 0 for field in dataclasses.fields(TrainingResult)
    } | {
        "rank": rank, "ranks": ranks, "threads": 1, "model": "mlp", "data": "mnist",
        "images_per_s": images_per_s, "test_accuracy": (0.9,), "loss": (1.0,), "step_s": (0.1,),
        "wait_s": (0.0,), "phases": (), "versions": {},
        "train_metrics": {}, "test_metrics": {}, "total_s": 1.0 + rank, "samples": 50,
    } | changes  # fmt: skip
    return TrainingResult(**values)


def test_the_slowest_rank_counts_and_efficiency_is_speed_up_per_core():
    runs = [
        [make_run(1, images_per_s=100.0)],
        [make_run(2, 0, images_per_s=170.0), make_run(2, 1, images_per_s=160.0)],
        [make_run(1, images_per_s=150.0, threads=2)],
    ]
    first, second, third = compare.rows(runs)
    assert third.efficiency == pytest.approx(0.75)
    assert (first.speed_up, first.efficiency) == (1.0, 1.0)
    assert second.images_per_s == 160.0
    assert second.speed_up == pytest.approx(1.6)
    assert second.efficiency == pytest.approx(0.8)
    assert second.seconds == 2.0
    assert second.test_accuracy == 0.9


def test_unequal_work_is_not_compared():
    with pytest.raises(ValueError, match="`runs` must do equal work"):
        compare.rows([[make_run(1)], [make_run(2, samples=49)]])
    with pytest.raises(ValueError, match="at least one training"):
        compare.rows([])


def test_a_plan_is_compared_with_one_rank_of_its_threads_and_one_of_all():
    four_cores = machine(4)
    plan = threads.plan(four_cores, ranks=2)
    assert [(each.ranks, each.threads) for each in compare.plans(four_cores, plan)] == [
        (1, 2), (1, 4), (2, 2),
    ]  # fmt: skip
    single = threads.plan(four_cores, ranks=1)
    assert compare.plans(four_cores, single) == [single]
