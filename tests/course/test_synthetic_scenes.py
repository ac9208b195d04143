"""Phantoms and street scenes follow from seed and index, and show what their labels say."""

import numpy as np
import pytest
import synthetic_properties as properties
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dlcourse.usecases.chest_xray import phantoms
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.video import street_scenes
from dlcourse.usecases.video.street_scenes import Camera

MAKERS = {
    "chest": lambda count, seed=5: phantoms.chest(count, 48, seed),
    "driving": lambda count, seed=5: street_scenes.driving(count, 48, seed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_sample_depends_on_seed_and_index_alone(name):
    properties.assert_seed_and_index_alone(MAKERS[name])


def test_the_memory_is_that_of_one_sample():
    properties.assert_memory_of_one_sample(__file__)


# --- chest -------------------------------------------------------------------------------------


def test_published_rates_come_out():
    count = 20_000
    samples = [phantoms._findings(index, 3, "published") for index in range(count)]
    for name, published in phantoms.PUBLISHED.items():
        expected = published / phantoms.PUBLISHED_RADIOGRAPHS * count
        assert sum(name in found for found in samples) == pytest.approx(
            expected, abs=5 * expected**0.5
        )


@pytest.mark.parametrize("finding", FINDINGS)
def test_a_finding_changes_what_is_seen_and_only_in_the_chest(finding):
    for index in range(4):
        view = ("PA", "AP")[index % 2]
        without, with_it = (
            phantoms.draw(2, index, index + 1, view, names, 96).astype(int)
            for names in ((), (finding,))
        )
        changed = np.abs(with_it - without) > 16
        assert 15 < changed.sum() < 0.5 * changed.size
        assert not changed[:, :3].any()
        assert not changed[:6].any()


def test_logistic_regression_finds_every_finding():
    # each finding against none, 128 values per picture, other patients to test with
    def row(index, names):
        pixels = phantoms.draw(4, index, index + 1, "PA", names, 48) / 255
        blocks = pixels.reshape(8, 6, 8, 6).swapaxes(1, 2).reshape(64, 36)
        return np.concatenate([blocks.mean(1), blocks.std(1)])

    healthy = [row(index, ()) for index in range(0, 160, 2)]
    scores = {}
    for finding in FINDINGS:
        ill = [row(index, (finding,)) for index in range(1, 160, 2)]
        rows = np.array([one for pair in zip(healthy, ill, strict=True) for one in pair])
        net = make_pipeline(StandardScaler(), LogisticRegression(C=1.0))
        labels = np.arange(160) % 2
        scores[finding] = net.fit(rows[:100], labels[:100]).score(rows[100:], labels[100:])
    assert min(scores.values()) > 0.65, scores
    assert np.mean(list(scores.values())) > 0.9, scores


# --- driving -----------------------------------------------------------------------------------

CAMERA = Camera(150, 497)


def test_boxes_enclose_exactly_the_pixels_of_their_vehicle():
    checked = 0
    for frame in range(0, 200, 15):
        ahead = street_scenes.vehicles(7, frame)
        picture = street_scenes.draw(7, frame, ahead, CAMERA).astype(int)
        for place, vehicle in enumerate(ahead):
            seen = street_scenes.seen_parts(ahead, CAMERA)[place]
            label = street_scenes.label(vehicle, frame, CAMERA, seen)
            if label is None or label.occluded or label.bottom - label.top < 8:
                continue
            rest = [one for one in ahead if one is not vehicle]
            different = (picture != street_scenes.draw(7, frame, rest, CAMERA)).any(2)
            rows, columns = np.nonzero(different)
            drawn = columns.min(), rows.min(), columns.max(), rows.max()
            box = label.left, label.top, label.right, label.bottom
            outside = np.array(drawn) - np.array(box)
            # never outside by more than the pixel that a border cuts, and close all around
            assert np.abs(outside).max() < 2.5, (frame, label, drawn)
            checked += 1
    assert checked > 15
