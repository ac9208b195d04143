"""A published row is found by its columns; the last batch of an epoch is what dealing out leaves.

Tests dlcourse.thesis.
"""

from __future__ import annotations

import pytest

from dlcourse import thesis

RECIPE = {"experiment": 6, "workers": 32, "framework": "Horovod"}


def test_one_published_row_is_found_or_refused():
    assert thesis.published_row(RECIPE)["top1_percent"] == 74.662
    with pytest.raises(ValueError, match="match one row of accuracy, 2 match"):
        thesis.published_row({"experiment": 6, "workers": 32})
    with pytest.raises(ValueError, match="0 match"):
        thesis.published_row({"experiment": 12})
    with pytest.raises(ValueError, match="`columns` must be one of"):
        thesis.published_row({"experimnt": 4})


@pytest.mark.parametrize(
    ("samples", "batch", "workers"), [(53, 6, 3), (12, 4, 3), (13, 4, 3), (1, 5, 1), (100, 7, 4)]
)
def test_the_last_batch_is_what_dealing_out_leaves(samples, batch, workers):
    own = len([*range(samples), *range(-samples % workers)][::workers])  # filled up, dealt out
    *_, last = [len(range(own)[at : at + batch]) for at in range(0, own, batch)]
    assert thesis.last_batch(samples, batch, workers) == last


def test_the_last_batches_of_the_thesis():
    found = [thesis.last_batch(1_281_167, 128, workers) for workers in (8, 16, 24, 32)]
    assert found == [18, 73, 6, 101]
    assert thesis.last_batch(1_281_167, 32, 32) == 5  # experiment 7
