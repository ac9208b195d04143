"""The course of a training over several jobs adds up."""

from __future__ import annotations

import itertools

import pytest

from dlcourse import job_chains

BEFORE = {"queue": 3600.0, "staging and start": 660.0}


def test_links_of_a_chain_pay_what_comes_before_again_and_again():
    found = job_chains.spans(90 * 600.0, 20 * 3600.0, BEFORE, 60.0, per_job_s=6000.0)
    assert job_chains.totals(found) == {
        "queue": 9 * 3600.0, "staging and start": 9 * 660.0, "training": 90 * 600.0,
        "saving": 9 * 60.0, "lost": 0.0,
    }  # fmt: skip
    assert found[-1].job == 9
    assert found[-1].end_s == sum(job_chains.totals(found).values())
    assert all(first.end_s == second.start_s for first, second in itertools.pairwise(found))
    assert job_chains.waste(found) == pytest.approx(9 * 720 / (9 * 720 + 54_000))


def test_job_that_is_killed_loses_what_is_not_saved():
    # 3600 - 660 = 2940 s for 600 s and 60 s of saving each: four, and 300 s are lost
    found = job_chains.spans(6000.0, 3600.0, BEFORE, 60.0, every_s=600.0)
    trained = [each.end_s - each.start_s for each in found if each.kind == "training"]
    assert trained == [2400.0, 2400.0, 1200.0]
    assert [each.job for each in found if each.kind == "lost"] == [1, 2]
    assert job_chains.totals(found)["lost"] == 2 * 300.0
    assert job_chains.totals(found)["saving"] == 10 * 60.0


def test_job_that_is_warned_saves_once_and_loses_nothing():
    found = job_chains.spans(6000.0, 3600.0, BEFORE, 60.0, warn_s=120.0)
    trained = [each.end_s - each.start_s for each in found if each.kind == "training"]
    assert trained == [2820.0, 2820.0, 360.0]  # 3600 - 660 - 120
    assert job_chains.totals(found)["saving"] == 3 * 60.0
    assert job_chains.totals(found)["lost"] == 0.0
