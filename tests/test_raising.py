"""The form of the house's errors."""

import re

import numpy as np
import pytest

from dlguide import errors


def test_require_says_what_must_hold_what_came_and_the_next_step():
    text = "`ranks` must be at most the 2 cores this process may use, got 5. Use fewer ranks."
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        errors.require(
            False, "ranks", "be at most the 2 cores this process may use", 5, "Use fewer ranks."
        )


@pytest.mark.parametrize("value", [1, 7, np.int64(7)])
def test_require_count_returns_a_plain_int(value):
    assert type(errors.require_count(value, "ranks")) is int
    assert errors.require_count(value, "ranks") == value


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "2", None])
def test_require_count_refuses_all_but_whole_numbers_from_the_least(value):
    with pytest.raises(ValueError, match=r"`ranks` must be a whole number of at least 1, got"):
        errors.require_count(value, "ranks")


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), True, "2", None])
def test_require_positive_refuses_all_but_finite_positive_numbers(value):
    with pytest.raises(ValueError, match=r"`latency_s` must be a positive number, got"):
        errors.require_positive(value, "latency_s")


def test_require_known_lists_the_names_and_offers_the_nearest():
    text = "`net` must be one of mlp, mnist_cnn, got 'mnist_cn'. Did you mean mnist_cnn?"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        errors.require_known("mnist_cn", ["mnist_cnn", "mlp"], "net")
