"""The pictures of points show each set where it lies, and the outline where it should.

Tests dlguide.plots.densities.
"""

import numpy as np
import pytest

from dlguide import plots
from dlguide.data.mixtures import Ring


def test_shade_is_the_share_of_the_points_and_lies_where_they_do():
    points = np.concatenate([np.tile([[1.53, -0.53]], (30, 1)), np.tile([[-2.0, 2.0]], (10, 1))])
    axes = plots.densities({"two places": points}, limit=3.0).axes[0]
    (image,) = axes.images
    shares = np.asarray(image.get_array())
    assert shares.sum() == pytest.approx(1)
    row, column = np.unravel_index(shares.argmax(), shares.shape)
    left, right, bottom, top = image.get_extent()
    x = left + (column + 0.5) * (right - left) / shares.shape[1]
    y = bottom + (row + 0.5) * (top - bottom) / shares.shape[0]
    assert (x, y) == (pytest.approx(1.53, abs=0.05), pytest.approx(-0.53, abs=0.05))
    assert shares[:, : shares.shape[1] // 2].sum() == pytest.approx(0.25)


def test_points_beyond_the_panel_are_said_in_its_title():
    points = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, -9.0]])
    drawn = plots.densities({"some": points, "none": points[:1]}, limit=3.0)
    assert [axes.get_title() for axes in drawn.axes] == ["some\n(2 beyond)", "none"]
    assert np.asarray(drawn.axes[0].images[0].get_array()).sum() == pytest.approx(1 / 3)


def test_outline_stands_where_the_density_is_a_tenth():
    ring = Ring(modes=1, radius=1.0, deviation=0.4)
    axes = plots.densities({"ring": np.zeros((1, 2))}, ring.density).axes[0]
    outline = np.concatenate(axes.collections[0].get_paths()[0].to_polygons())
    apart = np.linalg.norm(outline - ring.centres[0], axis=1)
    assert np.allclose(apart, 0.4 * np.sqrt(2 * np.log(10)), atol=0.02)


def test_panels_of_an_unfinished_row_are_empty_and_alt_text_names_the_sets():
    points = np.zeros((2, 2))
    drawn = plots.densities({"a": points, "b": points, "c": points}, columns=2)
    assert [axes.axison for axes in drawn.axes] == [True, True, True, False]
    assert "3 panels: a; b; c." in drawn._repr_html_()


def test_picture_is_written(tmp_path):
    plots.densities({"a": np.zeros((2, 2))}, path=tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match=r"`clouds` must hold at least one set"):
        plots.densities({})
    with pytest.raises(ValueError, match=r"`clouds` must hold points of shape"):
        plots.densities({"a": np.zeros((3, 3))})
    with pytest.raises(ValueError, match=r"`limit` must be a positive number"):
        plots.densities({"a": np.zeros((3, 2))}, limit=0)
