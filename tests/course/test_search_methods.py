"""Methods of search: budgets are those of the closed form, learning pays.

Tests the methods of dlcourse.search, and dlcourse.small_mlp.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import search, small_mlp
from dlguide.data.datasets import Dataset

SPACE = {"x": search.Uniform(0.0, 1.0), "y": search.Uniform(0.0, 1.0)}
MIXED = {
    "rate": search.LogUniform(1e-4, 1.0),
    "width": search.Integer(1, 100),
    "kind": search.Choice(("a", "b", "c")),
}


def bowl(parameters, epochs, seed):
    return (parameters["x"] - 0.31) ** 2 + (parameters["y"] - 0.74) ** 2


def mixed(parameters, epochs, seed):
    far = (math.log10(parameters["rate"]) + 1.3) ** 2 + 2 * (parameters["width"] / 100 - 0.7) ** 2
    return far + 0.3 * (parameters["kind"] != "b")


# --- successive halving ------------------------------------------------------------------------


def test_rungs_are_those_of_the_hyperband_paper():
    # Table 1 of Li et al. 2018: n_i and r_i for R = 81 and factor 3, bracket s = 4
    plan = search.Halving(81, 1, 3).plan()
    assert [(rung.trials, rung.epochs) for rung in plan] == [
        (81, 1), (27, 3), (9, 9), (3, 27), (1, 81),
    ]  # fmt: skip


@given(st.integers(1, 300), st.integers(1, 5), st.integers(2, 5))
def test_budget_is_the_sum_of_the_closed_form(trials, epochs, factor):
    halving = search.Halving(trials, epochs, factor)
    rungs = range(math.floor(math.log(trials, factor) + 1e-9) + 1)
    assert len(halving.plan()) == len(rungs)
    spent = sum(rung.spent for rung in halving.plan())
    assert spent == sum(trials // factor**rung * epochs * factor**rung for rung in rungs)


def test_a_search_spends_the_budget_and_lets_the_best_go_on():
    halving = search.Halving(20, 2, 3)
    found = search.run(bowl, SPACE, halving, seed=2, show=False)
    assert found.epochs == 20 * 2 + 6 * 6 + 2 * 18
    for rung in (1, 2):
        before = [trial for trial in found.trials if trial.rung == rung - 1]
        here = [trial for trial in found.trials if trial.rung == rung]
        best = sorted(before, key=lambda trial: trial.score)[: len(here)]
        assert [trial.parameters for trial in here] == [trial.parameters for trial in best]
    assert found.best().rung == 2


def test_what_failed_does_not_go_on():
    def half(parameters, epochs, seed):
        return math.nan if parameters["x"] < 0.8 else parameters["y"]

    found = search.run(half, SPACE, search.Halving(18), show=False)
    good = sum(not trial.failed for trial in found.trials if trial.rung == 0)
    assert 0 < good < 6
    assert len([trial for trial in found.trials if trial.rung == 1]) == good
    assert not any(trial.failed for trial in found.trials if trial.rung)


# --- tree-structured Parzen estimators ---------------------------------------------------------


@pytest.mark.parametrize(("space", "objective"), [(SPACE, bowl), (MIXED, mixed)])
def test_tpe_comes_several_times_nearer_than_random_with_the_same_budget(space, objective):
    def best(method):
        runs = [search.run(objective, space, method, seed=s, show=False) for s in range(20)]
        assert {found.epochs for found in runs} == {48}
        return np.array([found.best().score for found in runs])

    random, learned = best(search.Random(48)), best(search.TPE(48))
    assert learned.mean() < random.mean() / 3
    assert (learned < random).sum() >= 15


@pytest.mark.parametrize("places", [[], [0.5], [0.0, 0.02, 1.0], [0.3] * 9])
def test_parzen_density_is_positive_integrates_to_one_and_is_drawn_from(places):
    parzen = search.estimator(search.Uniform(0, 1), places)
    at = (np.arange(20_000) + 0.5) / 20_000
    density = parzen.density(at)
    assert density.min() > 0
    assert density.mean() == pytest.approx(1.0, abs=1e-3)
    drawn = parzen.draw(np.random.default_rng(0), 8000)
    assert 0 <= drawn.min() <= drawn.max() <= 1
    expected = density.reshape(10, -1).mean(axis=1) / 10
    assert np.histogram(drawn, 10, (0, 1))[0] / 8000 == pytest.approx(expected, abs=0.03)


# --- the small net -----------------------------------------------------------------------------


def blobs(samples=240):
    random = np.random.default_rng(0)
    labels = np.arange(samples) % 10
    images = random.normal(0.2, 0.1, (samples, 784))
    images[np.arange(samples), labels] += 2.0
    pixels = images.reshape(samples, 28, 28, 1).astype(np.float32)
    data = Dataset("blobs", pixels, labels, pixels[:40], labels[:40])
    return small_mlp.Images.of(data, 200, 40)


def test_small_net_learns_and_says_its_validation_error():
    images = blobs()
    weights, errors = small_mlp.train({"rate": 0.05, "batch": 20, "width": 24}, 12, 0, images)
    assert len(errors) == 12
    assert errors[-1] < 0.1 < errors[0]
    assert errors[-1] == small_mlp.error(weights, images.validation, images.validation_labels)
    assert [weight.shape for weight in weights] == [(784, 24), (24,), (24, 10), (10,)]


def test_one_step_of_the_small_net_is_that_of_keras():
    import keras

    images = blobs()
    weights = small_mlp.initial_weights(3, 8)
    net = keras.Sequential(
        [keras.Input((784,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(10)]
    )
    net.set_weights(weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.SGD(0.1, small_mlp.MOMENTUM), loss, jit_compile=False)
    net.fit(images.train, images.train_labels, batch_size=200, epochs=1, verbose=0)
    came, _ = small_mlp.train({"rate": 0.1, "batch": 200, "width": 8}, 1, 3, images)
    for mine, theirs in zip(came, net.get_weights(), strict=True):
        assert np.allclose(mine, theirs, atol=1e-5)


def test_failed_trials_are_never_among_the_good(monkeypatch):
    def trial(number, score, error=""):
        place = {"x": 0.1 * (number + 1), "y": 0.5}
        return search.Trial(number, place, 1, 0, score, (), 0, 0.0, 1.0, error)

    parts, estimator = [], search.estimator
    monkeypatch.setattr(
        search, "estimator", lambda kind, places: parts.append(places) or estimator(kind, places)
    )
    known = [*(trial(number, math.inf, "ValueError") for number in range(7)), trial(7, 0.5)]
    search._suggest(SPACE, known, 0, 8)
    good, others = parts[:2]
    assert good == pytest.approx([0.8])
    assert len(others) == 7
