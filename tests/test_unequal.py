"""Unequal workers get shares that finish together, and steps that do not wait in vain.

Tests dlguide.parallel.parameter_server.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlguide.parallel.parameter_server import backup_workers, proportional_shards


@given(st.integers(20, 5000), st.lists(st.floats(0.1, 1000), min_size=1, max_size=20))
def test_shares_add_up_and_differ_from_the_exact_ones_by_less_than_one(samples, speeds):
    parts = proportional_shards(samples, speeds)
    exact = samples * np.array(speeds) / sum(speeds)
    assert sum(parts) == samples
    assert np.all(np.abs(parts - exact) < 1)


def test_what_rounding_leaves_goes_to_the_largest_remainders():
    assert proportional_shards(10, [5.6, 3.3, 1.1]) == [6, 3, 1]
    assert proportional_shards(10, [4.2, 4.9, 0.9]) == [4, 5, 1]


def test_with_shares_a_slow_worker_costs_what_its_speed_lacks():
    # two workers of 100 samples/s, one of 50: equal shares of 50 last 1 s, these 0.6 s
    speeds = np.array([100, 100, 50])
    assert max(np.array([50, 50, 50]) / speeds) == 1.0
    assert max(np.array(proportional_shards(150, speeds)) / speeds) == 0.6


def test_cut_off_leaves_out_the_worker_that_is_always_slow_and_nobody_of_equals():
    equal = np.full((4, 8), 0.01)
    assert backup_workers(equal) == 0
    one_slow = equal.copy()
    one_slow[:, 3] = 0.04
    assert backup_workers(one_slow) == 1
    # a little slower is worth waiting for: 8 gradients in 11 ms are more than 7 in 10
    a_little = equal.copy()
    a_little[:, 3] = 0.011
    assert backup_workers(a_little) == 0


def test_cut_off_uses_most_gradients_in_a_second_by_trying_all():
    random = np.random.default_rng(5)
    times = np.where(random.random((50, 12)) < 0.1, 0.05, 0.01) * random.uniform(0.9, 1.1, (50, 12))
    used_per_s = []
    for k in range(12):
        seconds = sum(sorted(step)[12 - k - 1] for step in times.tolist())
        used_per_s.append((12 - k) * len(times) / seconds)
    assert backup_workers(times) == int(np.argmax(used_per_s))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: proportional_shards(2, [1, 1, 1]),
            "`samples` must be a whole number of at least 3, got 2",
        ),
        (lambda: proportional_shards(5, [1, 0]), "`speeds` must be a list of numbers above 0"),
        (lambda: proportional_shards(5, []), "`speeds` must be a list of numbers above 0"),
        (
            lambda: proportional_shards(5, [1, float("nan")]),
            "`speeds` must be a list of numbers above 0",
        ),
        (lambda: backup_workers(np.ones(3)), "`step_s` must be a table of times above 0"),
        (lambda: backup_workers(np.zeros((2, 3))), "`step_s` must be a table of times above 0"),
    ],
)
def test_nonsense_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
