"""The pictures of a search show the trials, budgets and times they were given.

Tests dlguide.plots.search.
"""

from __future__ import annotations

import numpy as np
import pytest

from dlguide import plots, search
from dlguide.search import makespan

SPACE = {
    "rate": search.LogUniform(1e-3, 1.0),
    "width": search.Integer(8, 64),
    "kind": search.Choice(("a", "b")),
}


def objective(parameters, epochs, seed):
    if parameters["width"] > 56:
        raise ValueError("too wide")
    return parameters["rate"] / epochs


FOUND = search.run(objective, SPACE, search.Halving(27), seed=1, show=False)


def test_every_trial_stands_at_its_parameter_and_score():
    drawn = plots.search_scores(FOUND.trials, FOUND.best(), "error (percent)")
    for axes, name in zip(drawn.axes, SPACE, strict=True):
        rungs = [line for line in axes.lines if "epoch" in line.get_label()]
        for line, epochs in zip(rungs, (1, 3, 9, 27), strict=True):
            trials = [one for one in FOUND.trials if one.epochs == epochs and not one.failed]
            assert list(line.get_xdata()) == [one.parameters[name] for one in trials]
            assert list(line.get_ydata()) == [one.score for one in trials]
        (failed,) = (line for line in axes.lines if line.get_label() == "failed")
        assert len(failed.get_xdata()) == len(FOUND.failed) > 0
        (best,) = (line for line in axes.lines if line.get_label() == "best")
        assert list(best.get_ydata()) == [FOUND.best().score]
        assert axes.get_xlabel() == name
    assert [axes.get_xscale() for axes in drawn.axes] == ["log", "linear", "linear"]
    assert drawn.axes[0].get_ylabel() == "error (percent)"
    assert "error (percent) of" in drawn._repr_html_()


def test_best_so_far_holds_until_a_better_one_and_the_median_is_thick():
    curves = {"a": [([1, 2, 4], [9, 5, 1]), ([1, 3, 4], [7, 6, 3]), ([2, 3], [8, 2])]}
    axes = plots.best_so_far(curves).axes[0]
    thick = max(axes.lines, key=lambda line: line.get_linewidth())
    assert list(thick.get_xdata()) == [2, 3, 4]
    assert list(thick.get_ydata()) == [7, 5, 2]
    assert len(axes.lines) == 4
    assert "median at the end: a 2" in plots.best_so_far(curves)._repr_html_()


def test_bars_are_the_tasks_of_each_rank_and_the_prediction_a_line():
    seconds = [3.0, 1.0, 1.0, 1.0]
    panels = {
        "free": makespan.first_free(seconds, 2),
        "dealt": makespan.beforehand(seconds, 2),
    }
    drawn = plots.rank_bars(panels, {"free": 3.0})
    for axes, bars in zip(drawn.axes, panels.values(), strict=True):
        for rank, row in enumerate(axes.collections):
            boxes = [path.get_extents() for path in row.get_paths()]
            mine = [(bar.start_s, bar.end_s) for bar in bars if bar.rank == rank]
            assert np.allclose([(box.x0, box.x1) for box in boxes], mine)
        assert {text.get_text() for text in axes.texts} == {"0", "1", "2", "3"}
    first, second = drawn.axes
    assert first.get_xlim() == second.get_xlim()
    assert [line.get_xdata()[0] for line in first.lines] == [3.0]
    assert not second.lines
    assert first.get_title("left") == "free: 3.00 s"
    assert "dealt: 4.00 s" in drawn._repr_html_()


def test_projections_count_the_values_of_the_first_parameter():
    grid = [(x, y) for x in (0.25, 0.75) for y in (0.25, 0.75)]
    other = [(0.1, 0.2), (0.4, 0.6), (0.5, 0.1), (0.9, 0.8)]
    drawn = plots.projections({"grid": grid, "random": other}, lambda x: (x - 0.5) ** 2)
    above = drawn.axes[:2]
    assert above[0].get_title() == "grid: 2 values of it, best 0.062"
    assert above[1].get_title() == "random: 4 values of it, best 0.000"
    assert list(drawn.axes[3].lines[0].get_xdata()) == [x for x, _ in other]


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.search_scores([]),
        lambda: plots.search_scores(FOUND.failed),
        lambda: plots.best_so_far({}),
        lambda: plots.best_so_far({"a": []}),
        lambda: plots.rank_bars({"a": []}),
        lambda: plots.projections({}, np.abs),
    ],
)
def test_nothing_to_draw_is_refused(draw):
    with pytest.raises(ValueError, match="must hold"):
        draw()


def test_pictures_are_written(tmp_path):
    plots.search_scores(FOUND.trials, path=tmp_path / "a.png")
    plots.rank_bars({"all": FOUND.trials}, path=tmp_path / "b.png")
    plots.best_so_far({"halving": [FOUND.best_so_far()]}, path=tmp_path / "c.png")
    plots.projections({"p": [(0.1, 0.2)]}, np.abs, path=tmp_path / "d.png")
    assert all((tmp_path / f"{each}.png").stat().st_size > 1000 for each in "abcd")
