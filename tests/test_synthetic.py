"""Synthetic data follow from seed and index, can be learned, and show what their labels say."""

import io

import numpy as np
import pytest
import synthetic_properties as properties
from PIL import Image

from dlguide.data import synthetic
from dlguide.data.synthetic import Samples, clouds, sample_rng

MAKERS = {
    "images": lambda count, seed=5: synthetic.images(7, 40, count, seed, vary=True),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_sample_depends_on_seed_and_index_alone(name):
    properties.assert_seed_and_index_alone(MAKERS[name])


@pytest.mark.parametrize("name", MAKERS)
def test_slices_are_a_ranks_part(name):
    properties.assert_slices_of_ranks(MAKERS[name])


@pytest.mark.parametrize("name", MAKERS)
def test_samples_can_be_sent_to_another_process(name):
    properties.assert_another_process(MAKERS[name])


def test_the_memory_is_that_of_one_sample():
    properties.assert_memory_of_one_sample(__file__)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: synthetic.images(0, 32, 1, 0), "`classes` must be a whole number of at least 1"),
        (lambda: synthetic.images(2, 8, 1, 0), "`size` must be a whole number of at least 16"),
        (lambda: synthetic.images(2, 32, 1, -1), "`seed` must be a whole number of at least 0"),
        (lambda: synthetic.images(2, 32, 1, 0, "gif"), "`kind` must be one of jpeg, png"),
    ],
)
def test_what_cannot_be_made_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


# --- pictures ----------------------------------------------------------------------------------


def features(samples, side):
    """Pixels at low resolution and their squares, one row a sample."""
    rows = []
    for sample in samples:
        shape = (side, side)
        small = Image.fromarray(sample.pixels).resize(shape, Image.Resampling.BOX)
        rows.append(np.asarray(small, np.float64).ravel() / 255)
    return np.array(rows)


def test_classes_are_balanced():
    labels = [picture.label for picture in synthetic.images(7, 16, 70, 3)]
    assert np.bincount(labels).tolist() == [10] * 7


@pytest.mark.parametrize("classes", [2, 10])
def test_the_nearest_class_mean_tells_pictures_of_another_seed(classes):
    train, test = (synthetic.images(classes, 32, 300, seed) for seed in (1, 2))
    train_labels, test_labels = (
        np.array([picture.label for picture in part]) for part in (train, test)
    )
    train_rows, test_rows = features(train, 8), features(test, 8)
    means = np.array([train_rows[train_labels == k].mean(0) for k in range(classes)])
    found = ((test_rows[:, None] - means) ** 2).sum(2).argmin(1)
    assert (found == test_labels).mean() > 1 / classes + 0.3


def test_a_thousand_classes_look_different():
    # with the same chances only the class makes a difference; smaller ones follow the same rule
    rows = [synthetic._draw(sample_rng(1, "picture", 0), label, 16, 16) for label in range(1000)]
    rows = np.array(rows, np.float32).reshape(1000, -1)
    squares = (rows**2).sum(1)
    distances = squares[:, None] + squares - 2 * rows @ rows.T + 1e12 * np.eye(1000)
    assert (distances.min() / rows.shape[1]) ** 0.5 > 1
    assert (len(synthetic.SHAPES), len(synthetic.TEXTURES)) == (7, 6)


@pytest.mark.parametrize(("kind", "name"), [("jpeg", "JPEG"), ("png", "PNG")])
@pytest.mark.parametrize("vary", [False, True])
def test_pictures_decode_to_the_stated_shape(kind, name, vary):
    shorter = set()
    for picture in synthetic.images(3, 48, 12, 4, kind, vary):
        decoded = Image.open(io.BytesIO(picture.encoded()))
        assert (decoded.format, decoded.mode) == (name, "RGB")
        assert np.asarray(decoded).shape == picture.pixels.shape
        error = np.asarray(decoded, float) - picture.pixels
        assert np.abs(error).mean() < (12 if kind == "jpeg" else 1e-9)
        shorter.add(min(picture.pixels.shape[:2]))
        longer = max(picture.pixels.shape[:2])
        assert longer <= 72 if vary else longer == 48
    assert shorter == {48}


# --- what they are drawn with ------------------------------------------------------------------


def test_clouds_have_a_mean_of_about_0_and_random_numbers_their_own_stream():
    many = np.array([clouds(sample_rng(1, "picture", k), 24, 32, 4) for k in range(40)])
    assert many.shape == (40, 24, 32)
    assert abs(many.mean()) < 0.1
    assert 0.5 < many.std() < 1.5
    streams = [(1, "picture", 2), (1, "findings", 2), (1, "findings", 2, 0), (1, "findings")]
    assert len({sample_rng(*stream).random() for stream in streams}) == 4
    with pytest.raises(ValueError, match="`stream` must be one of"):
        sample_rng(1, "weather")
    assert isinstance(synthetic.images(2, 32, 2, 0), Samples)
