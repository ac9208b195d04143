"""The ring of places: its density, its points, and the verdict on others' points.

Tests dlcourse.adversarial.
"""

import numpy as np
import pytest

from dlcourse.adversarial import Ring


def test_density_is_one_in_all():
    ring = Ring(modes=5, radius=1.0, deviation=0.2)
    axis = np.linspace(-2.5, 2.5, 501)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1)
    assert ring.density(grid).sum() * 0.01**2 == pytest.approx(1, abs=1e-6)


def test_centres_are_on_the_ring_evenly_apart():
    ring = Ring(modes=6, radius=3.0)
    gaps = np.linalg.norm(ring.centres - np.roll(ring.centres, 1, axis=0), axis=1)
    assert np.allclose(np.linalg.norm(ring.centres, axis=1), 3)
    assert np.allclose(gaps, 2 * 3 * np.sin(np.pi / 6))


def test_points_are_spread_as_the_density_says():
    ring = Ring(modes=4, radius=2.0, deviation=0.25)
    points, places = np.asarray(ring.draw((3, 5), 8000)), np.asarray(ring.places((3, 5), 8000))
    apart = points - ring.centres[places]
    for place in range(4):
        own = apart[places == place]
        assert len(own) == pytest.approx(2000, abs=5 * np.sqrt(8000 * 0.25 * 0.75))
        assert np.abs(own.mean(axis=0)).max() < 5 * 0.25 / np.sqrt(len(own))
        assert np.allclose(np.cov(own.T), 0.25**2 * np.eye(2), atol=5 * 0.25**2 * (2 / 2000) ** 0.5)


def test_true_points_visit_all_places_and_the_share_of_good_ones_is_that_of_three_deviations():
    visited, good = Ring(modes=8).visited(Ring(modes=8).draw((0, 1), 20_000))
    assert visited == 8
    assert good == pytest.approx(1 - np.exp(-4.5), abs=0.005)
