"""Walks go where the optimizers' papers say, landscapes are what they look like, evolution falls.

Tests dlcourse.descent.
"""

import numpy as np
import pytest

from dlcourse import descent

LANDSCAPES = [
    descent.bowl(),
    descent.bowl((1.0, 30.0)),
    descent.two_valleys(),
    descent.plateau(),
]


@pytest.mark.parametrize("landscape", LANDSCAPES)
def test_gradient_is_the_slope_of_the_loss(landscape):
    random = np.random.default_rng(1)
    for point in random.uniform(-2, 2, (20, 2)):
        for axis, tiny in enumerate(1e-6 * np.eye(2)):
            rise = landscape.loss(*(point + tiny)) - landscape.loss(*(point - tiny))
            assert np.isclose(landscape.gradient(point)[axis], rise / 2e-6, atol=1e-7, rtol=1e-6)


def test_plain_descent_in_a_bowl_shrinks_each_weight_by_its_curvature():
    points = descent.walk(descent.bowl((1.0, 4.0)).gradient, [2.0, -1.0], 0.3, 25)
    right = np.array([2.0, -1.0]) * (1 - 0.3 * np.array([1.0, 4.0])) ** np.arange(26)[:, None]
    assert np.allclose(points, right, rtol=1e-12, atol=0)


def momentum(gradient, point, rate, steps, m=0.9, nesterov=False):
    velocity, points = np.zeros_like(point), [point]
    for _ in range(steps):
        slope = gradient(points[-1])
        velocity = m * velocity - rate * slope
        points.append(points[-1] + (m * velocity - rate * slope if nesterov else velocity))
    return np.array(points)


def test_walks_of_keras_optimizers_are_those_of_the_papers():
    import keras

    gradient, start = descent.bowl((1.0, 9.0)).gradient, np.array([2.0, 1.0])
    sgd = keras.optimizers.SGD
    for optimizer, right in (
        (sgd(0.1), descent.walk(gradient, start, 0.1, 30)),
        (sgd(0.05, momentum=0.9), momentum(gradient, start, 0.05, 30)),
        (sgd(0.05, 0.9, nesterov=True), momentum(gradient, start, 0.05, 30, nesterov=True)),
    ):
        came = descent.walk(gradient, start, optimizer, 30)
        assert came.shape == (31, 2)
        assert np.allclose(came, right, atol=1e-5), optimizer.name


def sphere(point):
    return float(np.sum(np.square(point)))


def test_generation_is_the_mean_of_its_best_children():
    means, steps = descent.evolve(sphere, np.ones((2, 3)), 3, count=8, parents=3, seed=5)
    assert means.shape == (4, 2, 3)
    for generation in range(3):
        drawn = descent.children(means[generation], steps[generation], 8, 5, generation)
        best = sorted(drawn, key=lambda one: sphere(one[0]))[:3]
        assert np.allclose(means[generation + 1], sum(child for child, _ in best) / 3, rtol=1e-12)
        own = np.prod([size for _, size in best]) ** (1 / 3)
        assert np.isclose(steps[generation + 1], own, rtol=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_evolution_finds_the_bottom_of_a_bowl_and_its_steps_shrink_on_the_way(seed):
    means, steps = descent.evolve(sphere, np.full(5, 2.0), 150, seed=seed)
    assert sphere(means[-1]) < 1e-4 * sphere(means[0])
    assert steps[-1] < 0.1 * steps[0]


def test_largest_rate_is_found_as_closely_as_it_says():
    for limit in (0.0, 0.3, 1.0, 2.999):
        found = descent.largest(lambda rate, limit=limit: rate <= limit, 0.0, 3.0, halvings=12)
        assert limit - 3.0 / 2**12 <= found <= limit
