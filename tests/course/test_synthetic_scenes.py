"""Phantoms and street scenes follow from seed and index, and show what their labels say."""

from itertools import pairwise

import numpy as np
import pytest
import synthetic_properties as properties
from PIL import Image

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
        (lambda: phantoms.chest(0, 64, 0), "`count` must be a whole number of at least 1"),
        (lambda: phantoms.chest(1, 64, 0, "usual"), "`rates` must be one of even, published"),
        (lambda: street_scenes.driving(1, 8, 0), "`size` must be a whole number of at least 32"),
    ],
)
def test_what_cannot_be_made_is_refused(make, text):
    with pytest.raises(ValueError, match=text):
        make()


# --- chest -------------------------------------------------------------------------------------


def test_each_finding_and_none_are_made_equally_often():
    samples = [phantoms._findings(index, 3, "even") for index in range(1500)]
    counts = {name: sum(name in found for found in samples) for name in FINDINGS}
    assert sum(found == () for found in samples) == 100
    # 100 are made for it, and of the 1300 made for others 6 % have it too
    assert all(100 + 78 - 35 < count < 100 + 78 + 35 for count in counts.values())


def test_published_rates_come_out():
    count = 20_000
    samples = [phantoms._findings(index, 3, "published") for index in range(count)]
    for name, published in phantoms.PUBLISHED.items():
        expected = published / phantoms.PUBLISHED_RADIOGRAPHS * count
        assert sum(name in found for found in samples) == pytest.approx(
            expected, abs=5 * expected**0.5
        )


def test_a_patients_radiographs_are_numbered_from_0_and_share_age_and_gender():
    people = {}
    for one in phantoms.chest(66, 32, 8):
        people.setdefault(one.patient, []).append(one)
    assert sorted(people) == list(range(1, 19))  # three to eleven radiographs
    for all_of_one in people.values():
        assert [one.follow_up for one in all_of_one] == list(range(len(all_of_one)))
        assert len({one.gender for one in all_of_one}) == 1
        assert len({one.age - one.follow_up for one in all_of_one}) == 1
        assert 1 <= all_of_one[0].age <= 94
    first = people[1][0]
    assert first.name == "00000001_000.png"
    assert {one.view for group in people.values() for one in group} == {"PA", "AP"}


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


def test_logistic_regression_tells_every_finding():
    # each finding against none, 128 numbers a picture, other patients to test with
    def row(index, names):
        pixels = phantoms.draw(4, index, index + 1, "PA", names, 48) / 255
        blocks = pixels.reshape(8, 6, 8, 6).swapaxes(1, 2).reshape(64, 36)
        return np.concatenate([blocks.mean(1), blocks.std(1)])

    healthy = [row(index, ()) for index in range(0, 160, 2)]
    scores = {}
    for finding in FINDINGS:
        ill = [row(index, (finding,)) for index in range(1, 160, 2)]
        rows = np.array([one for pair in zip(healthy, ill, strict=True) for one in pair])
        scores[finding] = accuracy_of_regression(rows, np.arange(160) % 2, 100)
    assert min(scores.values()) > 0.65, scores
    assert np.mean(list(scores.values())) > 0.9, scores


def accuracy_of_regression(rows, labels, train):
    """Fit a logistic regression to the first rows and try it on the rest."""
    rows = (rows - rows[:train].mean(0)) / (rows[:train].std(0) + 1e-6)
    weights, bias = np.zeros(rows.shape[1]), 0.0
    for _ in range(300):
        error = 1 / (1 + np.exp(-rows[:train] @ weights - bias)) - labels[:train]
        weights -= 0.1 * (rows[:train].T @ error / train + 0.02 * weights)
        bias -= 0.1 * error.mean()
    return np.mean((rows[train:] @ weights + bias > 0) == labels[train:])


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


def test_vehicles_never_overlap():
    for seed in range(5):
        for frame in range(0, 300, 25):
            lanes = {}
            for one in street_scenes.vehicles(seed, frame):
                lanes.setdefault(one.track % 3, []).append(one)
            for lane in lanes.values():
                for far, near in pairwise(lane):
                    assert far.z - far.size[2] / 2 > near.z + near.size[2] / 2


def test_the_camera_is_kittis_and_the_box_is_its_projection():
    camera = Camera(375, 1242)
    matrix = np.array([[721.5377, 0, 609.5593], [0, 721.5377, 172.854], [0, 0, 1]])
    vehicle = street_scenes.vehicles(3, 20)[0]
    points = np.array(vehicle.corners()) @ matrix.T
    points = points[:, :2] / points[:, 2:]
    label = street_scenes.label(vehicle, 20, camera, 1.0)
    box = label.left, label.top, label.right, label.bottom
    assert box == pytest.approx([*points.min(0), *points.max(0)])


def test_a_line_has_kittis_17_columns():
    frame = street_scenes.driving(50, 48, 3)[20]
    for label in frame.labels:
        columns = label.line().split(" ")
        assert len(columns) == 17
        assert columns[:3] == ["20", str(label.track), label.kind]
        assert columns[3] in "012"
        assert columns[4] in "012"
        left, top, right, bottom = map(float, columns[6:10])
        assert 0 <= left < right <= frame.pixels.shape[1] - 1
        assert 0 <= top < bottom <= frame.pixels.shape[0] - 1
        assert float(columns[15]) == pytest.approx(label.z)
        assert -np.pi <= float(columns[5]) <= np.pi


def test_logistic_regression_tells_vehicles_from_what_is_beside_them():
    rows, labels = [], []
    for frame in street_scenes.driving(400, 96, 12)[::4]:
        image = Image.fromarray(frame.pixels).convert("L")
        for label in frame.labels:
            wide, high = label.right - label.left, label.bottom - label.top
            if label.occluded or label.truncated or high < 6:
                continue
            for shift, is_vehicle in ((0, 1), (1.6 * wide * (1 if label.x > 0 else -1), 0)):
                box = label.left + shift, label.top, label.right + shift, label.bottom
                small = image.crop(tuple(map(round, box))).resize((8, 8), Image.Resampling.BOX)
                rows.append(np.asarray(small, float).ravel() / 255)
                labels.append(is_vehicle)
    rows, labels = np.array(rows), np.array(labels)
    assert len(rows) > 300
    assert accuracy_of_regression(rows, labels, len(rows) * 2 // 3) > 0.85
