"""The pictures of deep nets show ratios of gradients and of work to bytes as they are.

Tests dlguide.plots.depth.
"""

from types import SimpleNamespace

import numpy as np
import pytest

from dlguide import plots


def words(figure):
    return figure._repr_html_().split('alt="')[1].split('"')[0]


def test_every_layer_is_drawn_next_to_the_last_one():
    figure = plots.gradients_by_layer({"plain": [1e-6, 1e-4, 1e-2], "other": [8.0, 4.0]})
    plain, other = figure.axes[0].lines
    assert plain.get_xdata().tolist() == [1, 2, 3]
    assert np.allclose(plain.get_ydata(), [1e-4, 1e-2, 1])
    assert np.allclose(other.get_ydata(), [2, 1])
    assert figure.axes[0].get_yscale() == "log"
    assert "plain: 1.0e-04 in the first layer; other: 2.0e+00" in words(figure)


def test_a_layer_without_gradient_has_no_point():
    (line,) = plots.gradients_by_layer({"plain": [0.0, 0.5, 1.0]}).axes[0].lines
    assert line.get_xdata().tolist() == [2, 3]


def test_nets_stand_where_their_work_and_bytes_are(tmp_path):
    nets = [
        SimpleNamespace(name="small", gradient_bytes=10**7, flops_per_gradient_byte=300.0),
        SimpleNamespace(name="large", gradient_bytes=5 * 10**8, flops_per_gradient_byte=20.0),
    ]
    path = tmp_path / "nets.svg"
    figure = plots.footprints(nets, path)
    axes = figure.axes[0]
    points = [line.get_xydata()[0].tolist() for line in axes.lines if line.get_marker() == "o"]
    assert np.allclose(points, [[10, 3], [500, 10]])
    for line in axes.lines[2:]:  # the lines of equal flops a byte
        ratios = line.get_ydata() * 1e9 / (line.get_xdata() * 1e6)
        assert np.allclose(ratios, ratios[0])
    texts = [text.get_text() for text in axes.texts]
    assert texts[:2] == ["small", "large"]
    assert "small 300; large 20" in words(figure)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: plots.gradients_by_layer({}), "`sizes` must hold at least one"),
        (lambda: plots.gradients_by_layer({"a": [1.0, 0.0]}), "one in the last layer"),
        (lambda: plots.gradients_by_layer({"a": [np.nan, 1.0]}), "finite gradients"),
        (lambda: plots.gradients_by_layer({"a": []}), "one in the last layer"),
        (lambda: plots.footprints([]), "`found` must hold at least one"),
    ],
)
def test_nothing_is_not_drawn(draw, text):
    with pytest.raises(ValueError, match=text):
        draw()
