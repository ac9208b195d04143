"""Synthetic data follow from seed and index, can be learned, and show what their labels say."""

import io

import numpy as np
import pytest
import synthetic_properties as properties
from PIL import Image

from dlcourse import synthetic


def test_a_sample_depends_on_seed_and_index_alone():
    properties.assert_seed_and_index_alone(
        lambda count, seed=5: synthetic.images(7, 40, count, seed)
    )


# --- pictures ----------------------------------------------------------------------------------


def features(samples, side):
    """Pixels at low resolution and their squares, one row per sample."""
    rows = []
    for sample in samples:
        shape = (side, side)
        small = Image.fromarray(sample.pixels).resize(shape, Image.Resampling.BOX)
        rows.append(np.asarray(small, np.float64).ravel() / 255)
    return np.array(rows)


@pytest.mark.parametrize("classes", [2, 10])
def test_nearest_class_mean_recognises_pictures_of_another_seed(classes):
    train, test = (synthetic.images(classes, 32, 300, seed) for seed in (1, 2))
    train_labels, test_labels = (
        np.array([picture.label for picture in part]) for part in (train, test)
    )
    train_rows, test_rows = features(train, 8), features(test, 8)
    means = np.array([train_rows[train_labels == k].mean(0) for k in range(classes)])
    found = ((test_rows[:, None] - means) ** 2).sum(2).argmin(1)
    assert (found == test_labels).mean() > 1 / classes + 0.3


def test_pictures_decode_to_the_stated_shape():
    for picture in synthetic.images(3, 48, 12, 4):
        decoded = Image.open(io.BytesIO(picture.encoded()))
        assert (decoded.format, decoded.mode, decoded.size) == ("JPEG", "RGB", (48, 48))
        assert np.abs(np.asarray(decoded, float) - picture.pixels).mean() < 12
