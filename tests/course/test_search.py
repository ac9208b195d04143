"""A search makes the trials its seed says, orders what failed last, and names what is wrong.

Tests dlcourse.search.
"""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from dlcourse import search
from dlguide.cluster import RankError

pytestmark = pytest.mark.timeout(240)
SPACE = {
    "rate": search.LogUniform(1e-3, 10.0),
    "share": search.Uniform(-1.0, 3.0),
    "width": search.Integer(3, 6),
    "kind": search.Choice(("a", "b", "c")),
}


def valley(parameters, epochs, seed):
    scores = [(parameters["share"] - 0.5) ** 2 + 1 / epoch for epoch in range(1, epochs + 1)]
    return [score + parameters["width"] for score in scores]


# --- spaces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SPACE.values(), ids=repr)
def test_places_and_values_are_inverse(kind):
    for value in (kind.at(place) for place in np.linspace(0, 1, 23)):
        again = kind.at(kind.place(value))
        assert again == value or math.isclose(again, value)


def test_drawn_values_have_the_distribution_they_are_named_after():
    drawn = [search.draw(SPACE, 5, number) for number in range(4000)]
    shares = np.array([one["share"] for one in drawn])
    exponents = np.log10([one["rate"] for one in drawn])
    assert -1 <= shares.min() < -0.98
    assert 2.98 < shares.max() <= 3
    assert np.mean(shares) == pytest.approx(1.0, abs=0.1)
    assert np.histogram(exponents, 4, (-3, 1))[0] == pytest.approx([1000] * 4, abs=150)
    for name, values in (("width", (3, 4, 5, 6)), ("kind", ("a", "b", "c"))):
        counts = [sum(one[name] == value for one in drawn) for value in values]
        assert sum(counts) == 4000
        assert counts == pytest.approx([4000 / len(values)] * len(values), abs=150)


def test_a_trial_depends_on_seed_and_number_alone():
    ten = [search.draw(SPACE, 1, number) for number in range(10)]
    assert [search.draw(SPACE, 1, number) for number in reversed(range(10))] == ten[::-1]
    assert search.draw(SPACE, 2, 0) != ten[0]
    assert len({one["rate"] for one in ten}) == 10
    json.dumps(ten)


def test_grid_has_all_combinations_at_the_middles():
    made = search.grid({"x": search.Uniform(0, 1), "k": search.Choice(("de", "f"))}, 2)
    assert made == [{"x": x, "k": k} for x, k in itertools.product((0.25, 0.75), ("de", "f"))]
    few = search.grid({"n": search.Integer(1, 3)}, 10)
    assert few == [{"n": 1}, {"n": 2}, {"n": 3}]
    rates = [one["r"] for one in search.grid({"r": search.LogUniform(1e-4, 1.0)}, 2)]
    assert rates == pytest.approx([1e-3, 1e-1])


# --- running and results -----------------------------------------------------------------------


def test_best_is_the_least_score_and_the_table_begins_with_it():
    found = search.run(valley, SPACE, search.Random(30, epochs=2), seed=3, show=False)
    by_hand = [valley(search.draw(SPACE, 3, number), 2, 3) for number in range(30)]
    assert [list(trial.history) for trial in found.trials] == by_hand
    assert found.best().score == min(history[-1] for history in by_hand)
    assert found.table().splitlines()[1].split()[0] == str(found.best().number)
    assert found.epochs == 60


def bad(parameters, epochs, seed):
    gives = {3: math.nan, 4: None, 5: "0.5"}
    if parameters["width"] == 6:
        raise ZeroDivisionError("six")
    return gives[parameters["width"]]


def test_what_failed_is_the_worst_and_is_named():
    def some(parameters, epochs, seed):
        return 7.0 if parameters["kind"] == "a" else bad(parameters, epochs, seed)

    found = search.run(some, SPACE, search.Random(60), show=False)
    assert found.best().score == 7.0
    for trial in found.trials:
        if trial.parameters["kind"] == "a":
            assert (trial.failed, trial.score) == (False, 7.0)
            continue
        errors = {3: "finite score, got nan", 4: "got None", 5: "got '0.5'", 6: "ZeroDivisionError"}
        assert errors[trial.parameters["width"]] in trial.error
        assert (trial.failed, trial.score, trial.history) == (True, math.inf, ())


@pytest.mark.parametrize("returned", [None, True, [], math.inf, [1, math.nan]])
def test_objective_that_never_gives_a_score_ends_the_search_with_the_reason(returned):
    message = r"`objective` must give a score in at least one trial .* got '2 failures'. Trial 0: "
    with pytest.raises(ValueError, match=message):
        search.run(lambda *_: returned, SPACE, search.Random(2), show=False)


# --- on ranks ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[2, 3])
def cluster_ranks(request):
    return request.param


@pytest.mark.parametrize(
    "method",
    [search.Grid(2, 2), search.Random(17, 2), search.Halving(18, 1, 3), search.TPE(17, 2)],
    ids=str,
)
@pytest.mark.parametrize("static", [False, True])
def test_any_number_of_ranks_makes_the_same_trials_as_one_process(method, static, cluster):
    alone = search.run(valley, SPACE, method, seed=4, show=False)
    shared = search.run(valley, SPACE, method, cluster, seed=4, static=static, show=False)
    assert shared.same() == alone.same()
    assert shared.ranks == cluster.ranks
    assert {trial.rank for trial in shared.trials} <= set(range(cluster.ranks))
    assert all(0 <= trial.start_s <= trial.end_s <= shared.seconds for trial in shared.trials)


def killer(parameters, epochs, seed):
    import os
    import time

    if parameters["share"] > 2.5:
        time.sleep(0.5)
        os._exit(1)
    return parameters["share"]


def test_rank_that_dies_ends_the_search_and_keeps_the_finished_trials(cluster):
    expected = [search.draw(SPACE, 0, number)["share"] for number in range(40)]
    assert sum(share > 2.5 for share in expected) >= cluster.ranks
    with pytest.raises(RankError) as caught:
        search.run(killer, SPACE, search.Random(40), cluster, show=False)
    kept = caught.value.result.trials
    assert kept
    assert all(trial.score == expected[trial.number] <= 2.5 for trial in kept)
