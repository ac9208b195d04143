"""Ranks that are killed on purpose: formulas, times of failures, the training that goes on."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from lanes import long

from dlcourse import faults


@pytest.mark.parametrize(("mtbf", "best"), [(24 * 60, 117), (6 * 60, 57), (15, 9.1)])
def test_daly_is_the_published_interval(mtbf, best):
    # minutes; Daly 2006, figures 3 to 5: a checkpoint of 5 minutes
    assert faults.daly(5, mtbf) == pytest.approx(best, rel=0.006)


def test_young_is_the_first_term_of_daly():

    assert faults.daly(1e-6, 1e6) == pytest.approx(faults.young(1e-6, 1e6), rel=1e-5)
    assert faults.daly(20, 10) == 10


@pytest.mark.parametrize("case", [(2.0, 0.25, 1.5), (0.3, 0.25, 0.0), (6.0, 1.0, 4.0)])
def test_goodput_is_that_of_gaps_drawn_one_by_one(case):
    interval, save, restart = case
    gaps = np.random.default_rng(1).exponential(8.0, 400_000)
    kept = interval * np.floor(np.maximum(gaps - restart, 0) / (interval + save)).sum()
    assert faults.goodput(*case, 8.0) == pytest.approx(kept / gaps.sum(), rel=0.01)


def test_the_best_interval_is_where_goodput_is_largest():
    taus = np.geomspace(0.1, 10, 400)
    found = [faults.goodput(tau, 0.25, 1.5, 8.0) for tau in taus]
    assert taus[np.argmax(found)] == pytest.approx(faults.daly(0.25, 8.0), rel=0.02)


def test_gaps_are_one_of_each_part_of_the_exponential_distribution():
    for seed in range(5):
        gaps = faults.gaps(8.0, seed, 10)
        assert sorted(np.floor(10 * -np.expm1(-gaps / 8.0)).astype(int)) == list(range(10))
        assert gaps.tolist() == faults.gaps(8.0, seed, 10).tolist()
    many = np.concatenate([faults.gaps(8.0, seed, 10) for seed in range(2000)])
    assert many.mean() == pytest.approx(8.0, rel=0.01)
    assert many.std() == pytest.approx(8.0, rel=0.02)


def test_what_a_training_noted_is_added_up(tmp_path):
    lines = ["begins 0 101", "step 1 102", "step 2 103", "saved 2 103.5", "step 3 104.5"]
    lines += ["begins 2 109", "step 3 110", "step 4 111", "saved 4 111.5"]  # died at 106
    lines += ["step 5 112.5", "step 6 113.5", "saved 6 114"]
    (tmp_path / "log").write_text("".join(f"{line} 2\n" for line in lines))
    run = faults.read(tmp_path, 100.0, [6.0, 12.0])
    assert run.parts == [(2.0, 2, 3.5), (2.0, 2, 11.5), (2.0, 2, 14.0)]
    assert run.step_s == 1.0
    assert run.save_s == [0.5, 0.5, 0.5]
    assert run.restart_s == [1.0, 3.0]
    assert run.repeated == 1
    assert [run.steps(until) for until in (1, 6, 12)] == [0, 2, 4]
    assert run.goodput == pytest.approx(2.0 / 6)


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("ranks", "kills"), [(2, 1), *long((3, 3))])
def test_a_training_that_is_killed_ends_as_the_calm_one(ranks, kills, tmp_path):
    job = {"every": 60, "steps": 300, "ranks": ranks}
    calm = faults.train(tmp_path / "calm", **job)
    # five checkpoints take at least 2.5 s, so that each kill comes before the end
    gaps = [calm.restart_s[0] + 1.2, *[2.4] * (kills - 1)]
    killed = faults.train(tmp_path / "killed", gaps, save_s=0.5, **job)
    assert killed.steps() == calm.steps() == 300
    digests = {
        hashlib.sha256((tmp_path / name / "saved").read_bytes()).hexdigest()
        for name in ("calm", "killed")
    }
    assert len(digests) == 1
    assert killed.events[0].when < killed.deaths[0]
    assert killed.events[-1].when > killed.deaths[-1]


@pytest.mark.timeout(120)
def test_an_elastic_training_goes_on_with_the_rank_that_is_left(tmp_path):
    run = faults.train_elastic(tmp_path, every=20, steps=100, at_step=52)
    assert run.steps() == 100
    begun = [(each.ranks, each.step) for each in run.events if each.what == "begins"]
    assert begun == [(2, 0), (1, 40)]
    assert run.repeated in (11, 12)  # rank 0 may die before it notes its last step
