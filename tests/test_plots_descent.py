"""Paths stand where the optimizer was, curves show every cost, and both are told in words.

Tests dlguide.plots.descent.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from dlguide import plots

SADDLE = SimpleNamespace(loss=lambda x, y: x**2 - y, view=(-2, 2, -1, 3), minimum=(0.0, 3.0))
PATHS = {"slow": np.array([[1.0, 0.0], [0.5, 0.5]]), "quick": [(1.0, 0.0), (0.2, 1.0), (0.0, 2.0)]}
CURVES = {"one": ([1, 2, 3], [2.0, 1.0, 0.5]), "two": ([1, 2], [2.0, float("nan")])}


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def labelled(axes):
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def test_every_path_is_drawn_from_the_start_within_the_view():
    figure = plots.descent({"saddle": (SADDLE, PATHS), "again": (SADDLE, {"slow": PATHS["slow"]})})
    first, second = figure.axes
    lines = labelled(first)
    assert list(lines) == ["slow", "quick"]
    assert list(labelled(second)) == ["slow"]
    assert np.allclose(np.transpose(lines["quick"].get_data()), PATHS["quick"])
    assert lines["slow"].get_zorder() > lines["quick"].get_zorder()
    assert (first.get_xlim(), first.get_ylim()) == ((-2, 2), (-1, 3))
    marks = [
        np.ravel(line.get_data()).tolist() for line in first.lines if line not in lines.values()
    ]
    assert marks == [[1.0, 0.0], [0.0, 3.0]]  # the start and the minimum
    assert first.get_title() == "saddle"
    assert first.get_xlabel() == "weight x"


def test_every_start_has_its_ring():
    apart = {"left": [(-1.0, 0.0), (0.0, 0.0)], "right": [(1.0, 0.0), (0.0, 0.0)]}
    (axes,) = plots.descent({"saddle": (SADDLE, apart)}).axes
    rings = [line for line in axes.lines if line.get_fillstyle() == "none"]
    assert [np.ravel(ring.get_data()).tolist() for ring in rings] == [[-1, 0], [1, 0]]


def test_contours_are_levels_of_the_loss():
    (axes,) = plots.descent({"saddle": (SADDLE, PATHS)}).axes
    filled, lines = axes.collections
    for level, segments in zip(lines.levels, lines.allsegs, strict=True):
        for segment in segments:
            assert np.allclose(SADDLE.loss(*segment.T), level, atol=0.01)
    assert np.array_equal(filled.levels, lines.levels)


def test_words_say_where_paths_end():
    said = words(plots.descent({"saddle": (SADDLE, PATHS)}))
    assert "slow ends after 1 steps at (0.5, 0.5), loss -0.25" in said
    assert "quick ends after 2 steps at (0, 2), loss -2" in said


@pytest.mark.parametrize("panels", [{}, {"a": (SADDLE, {})}, {"a": (SADDLE, {"b": [1.0, 2.0]})}])
def test_nothing_to_draw_is_refused(panels):
    with pytest.raises(ValueError, match="`panels` must h"):
        plots.descent(panels)


def test_curves_keep_their_colours_from_panel_to_panel():
    figure = plots.loss_curves({"updates": CURVES, "time (s)": {"two": CURVES["two"]}}, log="xy")
    left, right = figure.axes
    assert labelled(left)["two"].get_color() == labelled(right)["two"].get_color()
    assert labelled(left)["one"].get_color() != labelled(left)["two"].get_color()
    assert list(labelled(left)["one"].get_ydata()) == [2.0, 1.0, 0.5]
    assert [axes.get_xlabel() for axes in (left, right)] == ["updates", "time (s)"]
    assert (left.get_xscale(), left.get_yscale()) == ("log", "log")
    assert left.get_ylim() == right.get_ylim()
    assert "against updates, at the end: one 0.5 at 3" in words(figure)


def test_panels_with_other_trainings_have_legends_of_their_own():
    alike = plots.loss_curves({"updates": CURVES, "time (s)": CURVES})
    assert [axes.get_legend() is None for axes in alike.axes] == [True, False]
    other = plots.loss_curves({"a": {"one": CURVES["one"]}, "b": {"two": CURVES["two"]}})
    told = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in other.axes]
    assert told == [["one"], ["two"]]


def test_axes_are_plain_unless_asked():
    (axes,) = plots.loss_curves({"updates": CURVES}, y="test loss").axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "linear")
    assert axes.get_ylabel() == "test loss"
    assert axes.get_title(loc="left") == "Test loss against updates"


def test_title_of_curves_leaves_out_the_units():
    (axes,) = plots.loss_curves({"time (s)": CURVES}, y="loss (nats)").axes
    assert axes.get_title(loc="left") == "Loss against time"


def test_curves_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="`panels` must have a training under every label"):
        plots.loss_curves({"updates": {}})
    with pytest.raises(ValueError, match="have one y for each x in 'one'"):
        plots.loss_curves({"updates": {"one": ([1, 2], [1.0])}})
    with pytest.raises(ValueError, match="`log` must be"):
        plots.loss_curves({"updates": CURVES}, log="z")


def test_pictures_are_written(tmp_path):
    plots.descent({"saddle": (SADDLE, PATHS)}, path=tmp_path / "paths.png")
    plots.loss_curves({"updates": CURVES}, path=tmp_path / "curves.svg")
    assert (tmp_path / "paths.png").stat().st_size > 10_000
    assert (tmp_path / "curves.svg").stat().st_size > 1_000
