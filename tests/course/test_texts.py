"""Texts are whole, their tokens go there and back, and every rank draws the same windows.

Tests dlcourse.texts.
"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dlcourse import texts


def test_the_text_is_long_and_ascii():
    novels = texts.novels()
    assert len(novels) > 1_000_000
    assert novels.alphabet.isascii()


@given(text=st.text(min_size=1))
def test_tokens_go_there_and_back(text):
    found = texts.tokens(text)
    assert found.text(found.ids) == text
    assert found.ids.dtype == np.int32
    assert found.ids.max() < found.vocabulary
    assert found.vocabulary == len(set(text))


def test_windows_are_places_of_the_text_and_labels_follow_them():
    found = texts.tokens("".join(map(chr, range(40, 90))))
    inputs, labels = found.windows(length=9, count=200, seed=3, step=5)
    assert inputs.shape == labels.shape == (200, 9)
    assert (labels == inputs + 1).all()
    assert (np.diff(inputs, axis=1) == 1).all()
    assert inputs[:, 0].min() == 0  # every place occurs, also the first and the last
    assert labels[:, -1].max() == 49
    again = found.windows(length=9, count=200, seed=3, step=5)
    assert np.array_equal(again[0], inputs)
    other = found.windows(length=9, count=200, seed=3, step=6)
    assert not np.array_equal(other[0], inputs)
    train, test = found.split(0.2)
    assert (len(train), len(test), test.vocabulary) == (40, 10, 50)
    assert train.text(train.ids) + test.text(test.ids) == found.text(found.ids)
