"""Pictures of experiments show the means, bands, errors and regions of the results given.

Tests dlguide.plots.experiments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_experiments import a_result, a_run, seeds_of

from dlguide import plots
from dlguide.training import experiments as ex

CURVES = ((0.5, 0.9), (0.7, 0.8))


def results():
    lost = a_result(seed=2, name="naive", lost=True, workers=4)
    return [*seeds_of("baseline", CURVES), *seeds_of("naive", CURVES[::-1], workers=4), lost]


def test_lines_are_means_over_seeds_over_epochs_and_seconds():
    drawn = plots.experiments(results(), accuracy=0.75)
    epochs, seconds, final = drawn.axes
    assert [line.get_label() for line in epochs.lines][:2] == ["baseline", "naive (1 diverged)"]
    assert list(epochs.lines[0].get_ydata()) == pytest.approx([60.0, 85.0])
    assert list(epochs.lines[0].get_xdata()) == [1, 2]
    assert list(seconds.lines[0].get_xdata()) == [1.0, 2.0]
    assert epochs.lines[-1].get_ydata()[0] == 75.0
    assert [text.get_text() for text in final.get_yticklabels()] == ["baseline", "naive"]
    assert list(final.lines[0].get_xdata()) == pytest.approx([90.0, 80.0])


def test_the_standard_error_stands_at_the_end():
    final = plots.experiments(results()).axes[2]
    (bar,) = [each for each in final.collections if each.get_segments()][:1]
    (left, _), (right, _) = bar.get_segments()[0]
    assert right - left == pytest.approx(2 * np.std([90, 80], ddof=1) / np.sqrt(2))


def test_seven_recipes_have_seven_colours_and_42_have_different_looks():
    made = [a_result((0.5, 0.9), name=f"recipe {k}", batch=1 + k) for k in range(42)]
    lines = plots.experiments(made).axes[0].lines[:42]
    assert len({line.get_color() for line in lines[:7]}) == 7
    assert len({(line.get_color(), line.get_marker()) for line in lines}) == 42
    courses = {one.setting.name: one.setting.recipe().at(5) for one in made[:28]}
    lines = plots.schedules(courses).axes[0].lines
    assert len({line.get_color() for line in lines[:7]}) == 7
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 28


def test_a_recipe_that_always_diverges_is_named_and_not_drawn():
    drawn = plots.experiments([*results(), a_result(name="wild", lost=True)])
    labels = [text.get_text() for text in drawn.axes[0].get_legend().get_texts()]
    assert labels[-1] == "wild (all diverged)"
    assert [text.get_text() for text in drawn.axes[2].texts] == ["diverged"]
    assert "wild diverges" in drawn._repr_html_()


def test_errors_have_a_panel_each_on_one_scale_with_the_loss_beside():
    drawn = plots.errors(results())
    first, second, *twins = drawn.axes
    assert [axes.get_title() for axes in (first, second)] == ["baseline", "naive"]
    assert first.get_ylim() == second.get_ylim()
    assert list(first.lines[-1].get_ydata()) == pytest.approx([40.0, 15.0])
    assert list(twins[0].lines[-1].get_ydata()) == pytest.approx([1.0, 0.5])
    assert "baseline: test error 15.0 % at the end" in drawn._repr_html_()


def test_training_errors_share_the_axis_where_they_were_counted():
    class Counted(type(a_run())):
        train_accuracy = (0.6, 0.8)

    values = {name: value for name, value in vars(a_run()).items() if name != "train_accuracy"}
    run = Counted(**values) if "train_accuracy" not in vars(a_run()) else replace(
        a_run(), train_accuracy=(0.6, 0.8)
    )  # fmt: skip
    (axes,) = plots.errors([ex.Result(ex.Setting(name="a"), (run,))]).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [
        pytest.approx([50.0, 10.0]),
        pytest.approx([40.0, 20.0]),
    ]


def test_a_panel_of_what_diverged_says_so():
    drawn = plots.errors([a_result((0.5, 0.9)), a_result(name="wild", lost=True)])
    assert [text.get_text() for text in drawn.axes[1].texts] == ["diverged"]


def test_regions_stand_over_their_batches(tmp_path):
    good, bad = (0.90, 0.92, 0.91), (0.80, 0.83, 0.81)
    made = [
        *seeds_of("a", good, batch=8, images_per_s=10.0),
        *seeds_of("b", good, batch=16, images_per_s=95.0),
        *seeds_of("c", bad, batch=64, images_per_s=100.0),
    ]
    regions = ex.best_batch(made)
    drawn = plots.batches(regions, path=tmp_path / "regions.png")
    speed, quality = drawn.axes
    assert [(text.get_text(), text.xy[0]) for text in speed.texts] == [
        ("A", 8),
        ("B", 16),
        ("C", 64),
    ]
    assert list(speed.lines[0].get_ydata()) == [10.0, 95.0, 100.0]
    assert speed.lines[1].get_ydata()[0] == pytest.approx(90.0)
    assert list(quality.lines[0].get_ydata()) == pytest.approx([91.0, 91.0, 100 * np.mean(bad)])
    assert (tmp_path / "regions.png").stat().st_size > 0
    assert str(regions) in drawn._repr_html_()


def test_nothing_to_draw_is_refused():
    for draw in (plots.experiments, plots.errors):
        with pytest.raises(ValueError, match="`results` must hold at least one Result"):
            draw([])
