"""Published series, predictions held against them, and their picture.

Tests dlguide.scaling.predict.held_out and dlguide.plots.predicted_errors.
"""

from __future__ import annotations

import pytest

from dlguide import plots, published
from dlguide.scaling import predict
from dlguide.scaling.predict.held_out import Held


def test_every_published_row_is_in_one_series():
    grouped = predict.published_series(least=1)
    rows = [row for row in published.load("throughput") if row["table"] != "6.3.4 text"]
    rows += published.load("throughput_tensorflow")
    assert sum(map(len, grouped.values())) == len(rows)
    for row in rows:
        assert any(points.get(row["workers"]) == row["images_per_s"] for points in grouped.values())


def test_series_are_those_of_the_tables():
    grouped = predict.published_series()
    assert all(len(points) >= 4 for points in grouped.values())
    horovod = grouped["guide: Horovod + PyTorch"]
    assert horovod == {1: 208, 4: 768, 8: 1497, 16: 2942, 32: 5796}  # guide, Table 9
    assert len([name for name in grouped if name.startswith("thesis")]) == 5


def test_law_that_a_fit_sees_is_held_and_what_lies_above_is_not_seen():
    law = {p: 100.0 * p / (1 + 0.1 * (p - 1) / p) for p in (1, 2, 4, 8, 16, 32)}
    held = predict.held_out(law)
    assert [each.workers for each in held] == [16, 32]
    assert [each.measured for each in held] == [law[16], law[32]]
    assert all(abs(each.error) < 0.05 and each.inside for each in held)
    broken = predict.held_out(law | {16: 1.0, 32: 2.0})
    for before, after in zip(held, broken, strict=True):
        assert after.predicted == before.predicted
        assert not after.inside
        assert after.error > 1000


def test_left_out_counts_are_not_seen():
    law = {p: 100.0 * p for p in (1, 4, 8, 16)}
    with_neighbours = law | {2: 120.0}
    assert predict.held_out(with_neighbours, without=[2]) == predict.held_out(law)
    assert predict.held_out(with_neighbours) != predict.held_out(law)
    assert predict.held_out({1: 100.0, 8: 700.0}) == ()
    with pytest.raises(ValueError, match="two numbers of workers"):
        predict.held_out(law, upto=1)


HELD = {
    "a": [Held(16, 110, 90, 130, 100), Held(32, 150, 140, 160, 200)],
    "none above 8": [],
    "b": [Held(16, 50, 49, 51, 50)],
}


def test_picture_shows_predicted_over_measured_and_the_interval():
    drawn = plots.predicted_errors(HELD)
    axes = drawn.axes[0]
    assert [each.get_text() for each in axes.get_yticklabels()] == ["a", "b"]
    marks = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [line.get_xdata()[0] for line in marks] == pytest.approx([1.1, 0.75, 1.0])
    intervals = [tuple(line.get_xdata()) for line in axes.lines if len(line.get_xdata()) == 2]
    assert intervals[:3] == [(0.9, 1.3), (0.7, 0.8), (0.98, 1.02)]
    assert [line.get_label() for line in marks] == ["16 workers", "32 workers", "16 workers"]
    assert "a: 1.10 at 16, 0.75 at 32." in drawn._repr_html_()


def test_nothing_to_draw_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one prediction"):
        plots.predicted_errors({"a": []})
    plots.predicted_errors(HELD, path=tmp_path / "errors.png")
    assert (tmp_path / "errors.png").stat().st_size > 1000
