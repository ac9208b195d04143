"""The course of a training over several jobs adds up."""

from __future__ import annotations

import itertools

import pytest

from dlcourse import job_chains

BEFORE = {"queue": 3600.0, "staging": 600.0, "start": 60.0}


def test_links_of_a_chain_pay_what_comes_before_again_and_again():
    found = job_chains.spans(90, 600.0, 20 * 3600.0, BEFORE, per_job=10)
    assert job_chains.totals(found) == {
        "queue": 9 * 3600.0, "staging": 9 * 600.0, "start": 9 * 60.0, "training": 90 * 600.0,
        "lost": 0.0,
    }  # fmt: skip
    assert found[-1].job == 9
    assert found[-1].end_s == sum(job_chains.totals(found).values())
    assert all(first.end_s == second.start_s for first, second in itertools.pairwise(found))


def test_job_that_begins_anew_loses_what_is_not_saved():
    # 3600 - 660 = 2940 s for epochs of 600 s: four, and 540 s are lost
    found = job_chains.spans(10, 600.0, 3600.0, BEFORE)
    trained = [each.end_s - each.start_s for each in found if each.kind == "training"]
    assert trained == [2400.0, 2400.0, 1200.0]
    assert [each.job for each in found if each.kind == "lost"] == [1, 2]
    assert job_chains.totals(found)["lost"] == 2 * 540.0
    with pytest.raises(ValueError, match=r"`limit_s` must leave time for 1 epochs of 600 s"):
        job_chains.spans(10, 600.0, 1200.0, BEFORE)
    with pytest.raises(ValueError, match=r"leave time for 5 epochs"):
        job_chains.spans(10, 600.0, 3600.0, BEFORE, per_job=5)


def test_picture_has_a_bar_for_each_span_and_says_how_long_each_way_takes():
    ways = {
        "anew": job_chains.spans(10, 600.0, 3600.0, BEFORE),
        "chain": job_chains.spans(10, 600.0, 3600.0, BEFORE, per_job=2),
    }
    figure = job_chains.draw(ways)
    (axes,) = figure.axes
    assert len(axes.patches) == sum(map(len, ways.values()))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["anew", "chain"]
    ends = [
        max(p.get_x() + p.get_width() for p in axes.patches if round(p.get_y() + 0.3) == row)
        for row in (0, 1)
    ]
    assert ends == pytest.approx([found[-1].end_s / 3600 for found in ways.values()])
    assert "chain: 7.58 h, 5 jobs" in figure._repr_html_()
