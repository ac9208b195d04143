"""The pictures of sequences show the numbers they were given, and their errors.

Tests dlguide.plots.curves.
"""

import numpy as np
import pytest

from dlguide import plots


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def test_forecasts_and_their_errors_are_drawn_and_named():
    years, came = np.arange(1990, 1994), np.array([10.0, 20.0, 30.0, 40.0])
    predicted = {"three more": came + 3, "first unknown": np.array([np.nan, 24, 26, 44])}
    figure = plots.forecasts(years, came, predicted, "spots")
    above, below = figure.axes
    assert np.allclose(above.lines[0].get_ydata(), came)
    assert np.allclose(above.lines[1].get_ydata(), came + 3)
    assert np.allclose(below.lines[0].get_ydata(), 3)
    assert np.allclose(below.lines[1].get_ydata()[1:], [4, -4, 4])
    labels = [text.get_text() for text in below.get_legend().get_texts()]
    assert labels == ["three more: 3", "first unknown: 4"]
    assert "between 10 and 40" in words(figure)


def test_attention_is_drawn_row_by_row_and_told_where_it_looks():
    weights = np.array([[1, 0, 0], [0.25, 0.75, 0], [0.1, 0.6, 0.3]])
    figure = plots.attention_map({"one head": weights}, ["a", " ", "b"])
    axes = figure.axes[0]
    assert np.array_equal(axes.images[0].get_array(), weights)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "␣", "b"]
    assert "one head: a at a (1.00), ␣ at ␣ (0.75), b at ␣ (0.60)" in words(figure)


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: plots.forecasts([1], [1], {}, "x"), "`predicted` must hold 1 to 4, got 0"),
        (
            lambda: plots.forecasts([1], [1], {name: [1] for name in "abcde"}, "x"),
            "`predicted` must hold 1 to 4, got 5",
        ),
        (lambda: plots.forecasts([1, 2], [1, 2], {"a": [1]}, "x"), "`a` must have a value for"),
        (lambda: plots.attention_map({}, "ab"), "`panels` must hold at least one"),
        (lambda: plots.attention_map({"m": np.eye(3)}, "ab"), "`m` must have the shape"),
        (lambda: plots.attention_map({"m": np.ones((2, 2))}, "ab"), "`m` must have rows with the"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, text):
    with pytest.raises(ValueError, match=text):
        draw()
