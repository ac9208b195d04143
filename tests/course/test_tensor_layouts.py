"""Layouts in memory against NumPy's reshapes and transpositions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlcourse import onednn


@pytest.mark.parametrize("tag", ["abcd", "acdb", "cdba", "dcab"])
def test_plain_layout_is_a_transposition(tag):
    array = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    right = array.transpose(["abcd".index(letter) for letter in tag]).ravel()
    assert np.array_equal(onednn.arrange(array, tag), right)


def test_blocked_layout_is_a_reshape_and_a_transposition():
    array = np.arange(2 * 32 * 3 * 5).reshape(2, 32, 3, 5)
    right = array.reshape(2, 2, 16, 3, 5).transpose(0, 1, 3, 4, 2).ravel()
    assert np.array_equal(onednn.arrange(array, "aBcd16b"), right)


def test_one_dimension_in_two_blocks_is_a_reshape_and_a_transposition():
    array = np.arange(16 * 32).reshape(16, 32)  # 16 = 4 x 4 of a around 8 of b, as for int8
    right = array.reshape(1, 4, 4, 4, 8).transpose(0, 3, 1, 4, 2).ravel()
    assert np.array_equal(onednn.arrange(array, "AB4a8b4a"), right)


@settings(max_examples=50, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9)] * 4),
    st.sampled_from(["abcd", "acdb", "aBcd4b", "aBcd16b", "ABcd4b4a", "Acdb8a"]),
)
def test_every_element_has_a_place_of_its_own(shape, tag):
    places = onednn.addresses(shape, tag)
    assert places.shape == shape
    assert len(np.unique(places)) == places.size
    array = np.random.default_rng(0).random(shape)
    memory = onednn.arrange(array, tag)
    assert places.max() < memory.size
    assert np.array_equal(memory[places], array)
    assert np.count_nonzero(memory) == array.size
