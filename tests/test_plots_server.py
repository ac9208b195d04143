"""The pictures of parameter servers show the times and the staleness they were given.

Tests dlguide.plots.server.
"""

import numpy as np
import pytest

from dlguide import plots

TIMES = {
    "one": [[(5.0, 5.1), (5.3, 5.4)], [(5.0, 5.3), (5.3, 5.5)]],
    "two": [[(1.0, 1.1), (1.1, 1.2)], [(1.0, 1.2), (1.2, 1.3)]],
}


def spans(bars):
    boxes = [path.get_extents() for path in bars.get_paths()]
    return [(box.x0, box.x1) for box in boxes]


def test_steps_and_waits_lie_where_they_were_measured():
    drawn = plots.worker_timeline(TIMES)
    for axes, rows in zip(drawn.axes, TIMES.values(), strict=True):
        start = rows[0][0][0]
        for worker, row in enumerate(rows):
            waiting, computing = axes.collections[2 * worker : 2 * worker + 2]
            assert np.allclose(spans(computing), 1e3 * (np.array(row) - start))
            gap = (row[0][1] - start, row[1][0] - start)
            assert np.allclose(spans(waiting), [1e3 * np.array(gap)])
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == ["worker 0", "worker 1"]
    first, second = (axes.get_xlim() for axes in drawn.axes)
    assert first == second


def test_the_words_say_how_long_and_how_busy():
    words = plots.worker_timeline(TIMES)._repr_html_()
    assert "one: 500 ms, workers compute 50 percent, 100 percent" in words


def test_bars_are_shares_of_the_gradients():
    axes = plots.staleness({"a": [0, 0, 2, 2, 2], "b": [1]}).axes[0]
    hatches = {bar.get_hatch() for bar in axes.patches}
    assert len(hatches) == 2, "bars of two names differ in more than their colour"
    heights = [bar.get_height() for bar in axes.patches]
    assert np.allclose(heights, [40, 0, 60, 0, 100])
    middles = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    assert np.allclose(middles, [-0.2, 0.8, 1.8, 0.2, 1.2])
    assert (
        "a: mean 1.2; b: mean 1.0"
        in plots.staleness({"a": [0, 0, 2, 2, 2], "b": [1]})._repr_html_()
    )


@pytest.mark.parametrize(
    ("draw", "nothing"),
    [
        (plots.worker_timeline, {}),
        (plots.worker_timeline, {"a": []}),
        (plots.worker_timeline, {"a": [[(0.0, 1.0)], []]}),
        (plots.staleness, {}),
        (plots.staleness, {"a": []}),
    ],
)
def test_nothing_to_draw_is_refused(draw, nothing):
    with pytest.raises(ValueError, match="must h"):
        draw(nothing)


def test_pictures_are_written(tmp_path):
    plots.staleness({"a": [0, 1]}, tmp_path / "s.png")
    plots.worker_timeline(TIMES, tmp_path / "t.png")
    assert (tmp_path / "s.png").stat().st_size > 1000
    assert (tmp_path / "t.png").stat().st_size > 1000
