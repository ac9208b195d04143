"""Figures of areas under ROC curves: every finding, its interval where it belongs, words for it."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from dlguide import plots

ONE = [("Edema", 0.9, 0.85, 0.93), ("Mass", 0.6, 0.5, 0.7), ("mean", 0.75, 0.7, 0.8)]
OTHER = [("Mass", 0.8, 0.75, 0.84), ("Edema", 0.7, 0.6, 0.78), ("mean", 0.75, 0.72, 0.78)]


def bars(axes, number):
    """Findings from top to bottom with the ends of a net's intervals."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    lines = axes.containers[number].lines[2][0].get_segments()
    order = sorted(range(len(lines)), key=lambda row: lines[row][0][1])
    return {
        name: (lines[row][0][0], lines[row][1][0]) for name, row in zip(names, order, strict=True)
    }


def test_intervals_stand_at_their_findings_whatever_the_order():
    axes = plots.areas_under_curves({"one": ONE, "other": OTHER}).axes[0]
    assert bars(axes, 0)["Mass"] == pytest.approx((0.5, 0.7))
    assert bars(axes, 1)["Mass"] == pytest.approx((0.75, 0.84))
    assert bars(axes, 1)["Edema"] == pytest.approx((0.6, 0.78))


def test_findings_go_from_the_highest_to_the_lowest_and_the_mean_is_apart():
    axes = plots.areas_under_curves({"one": ONE[::-1]}).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Edema", "Mass", "mean"]
    low, high = axes.get_ylim()
    assert low > high  # the first one on top


def test_published_values_are_marked_where_there_are_some():
    axes = plots.areas_under_curves({"one": ONE}, {"Mass": 0.87, "Hernia": 0.9}).axes[0]
    marks = next(line for line in axes.lines if line.get_label() == "published CheXNet")
    assert list(marks.get_xdata()) == [0.87]
    assert list(marks.get_ydata()) == [1]


def test_words_tell_means_and_how_many_differences_are_told():
    shown = plots.areas_under_curves({"one": ONE, "other": OTHER})._repr_html_()
    assert "one 0.750, other 0.750" in shown
    assert "Highest for Edema (0.90), lowest for Mass (0.60)" in shown
    gains = [("Edema", 0.2, 0.1, 0.3), ("Mass", -0.2, -0.3, -0.1), ("Hernia", 0.1, -0.1, 0.3)]
    shown = plots.area_gains({"a - b": gains})._repr_html_()
    assert "3 findings" in shown
    assert "above 0 in 2" in shown
    assert "one side of 0 in 2" in shown


def test_area_under_the_drawn_curve_is_the_count_of_pairs():
    rng = np.random.default_rng(0)
    labels, scores = rng.random(80) < 0.4, rng.normal(size=80).round(1)
    axes = plots.roc_curves({"one": (labels, scores), "other": (labels, -scores)}).axes[0]
    area = roc_auc_score(labels, scores)
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == [f"one: area {area:.3f}", f"other: area {1 - area:.3f}"]
    alarms, hits = axes.lines[0].get_data()
    assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0, 0, 1, 1)
    with pytest.raises(ValueError, match="`judged` must hold both a 0 and a 1, got 'one: 0 ones'"):
        plots.roc_curves({"one": ([0, 0], [1, 2])})


def test_file_is_written(tmp_path):
    plots.area_gains({"a - b": ONE}, tmp_path / "gains.png")
    assert (tmp_path / "gains.png").stat().st_size > 1000


def test_nets_must_be_few_and_of_equal_findings():
    with pytest.raises(ValueError, match="`areas` must hold 1 to 3 nets, got 0"):
        plots.areas_under_curves({})
    with pytest.raises(ValueError, match="`areas` must be of equal findings"):
        plots.area_gains({"a": ONE, "b": ONE[:2]})
