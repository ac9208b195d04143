"""Chest X-rays in files: packed by patient and read back, labelled with what is seen."""

import layout_writers
import numpy as np
import pytest
from PIL import Image

from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import data, phantoms
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlguide.data import formats


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return chest_xray.make_phantoms(tmp_path_factory.mktemp("packed") / "made", 44, 32, 3)


def test_no_patient_is_both_trained_and_tested_on(packed):
    found = chest_xray.read(packed)
    assert not set(found.train.patients) & set(found.test.patients)
    assert len(found.train) + len(found.test) == 44
    assert (found.test.patients % 3 == 0).all()


def test_packed_radiographs_are_those_that_were_made(packed):
    made = list(phantoms.chest(44, 32, 3))
    found = chest_xray.read(packed)
    for part, split in ((found.train, "train"), (found.test, "test")):
        mine = [one for one in made if (one.patient % 3 == 0) == (split == "test")]
        assert (part.labels == np.stack([one.labels for one in mine])).all()
        assert part.patients.tolist() == [one.patient for one in mine]
        with formats.open(packed / split) as records:
            assert [one.data for one in records] == [one.encoded() for one in mine]


def test_published_layout_is_read_as_it_is_and_grey(tmp_path):
    made = phantoms.chest(44, 40, 3)
    found = chest_xray.read(layout_writers.write_chestxray14(tmp_path / "unpacked", made))
    assert not found.synthetic
    (data,), labels = found.train.read(np.arange(1))
    first = next(one for one in made if one.patient % 5)
    assert data == first.encoded()
    assert (labels[0] == first.labels).all()
    assert found.train.patients[0] == first.patient
    assert not set(found.train.patients) & set(found.test.patients)


def test_archive_has_labels_of_view_sex_and_age_and_none_of_a_finding(tmp_path):
    folder = chest_xray.make_archive(tmp_path / "archive", 20, 32, 0)
    with formats.open(folder / "train") as records:
        labels = np.array([one.labels for one in records])
        first = records[0].data
    assert first != phantoms.chest(1, 32, 0)[0].encoded()
    made = phantoms.chest(20, 32, data.OTHER_PATIENTS)
    assert labels.tolist() == [[one.view == "AP", one.gender == "F", one.age > 50] for one in made]


def test_view_sex_and_age_are_seen_and_a_marker_is_where_it_was_asked_for(tmp_path):
    one = next(one for one in phantoms.chest(30, 32, 0) if one.gender == "F")
    assert (phantoms.marked(one.pixels) != one.pixels).sum() <= 7
    women, men = ([np.asarray(each.pixels, float) for each in phantoms.chest(120, 32, 0)
                   if each.gender == sex] for sex in "FM")  # fmt: skip
    lower = np.s_[19:24, 8:11]
    assert np.mean([each[lower] for each in women]) > np.mean([each[lower] for each in men]) + 5
    made = chest_xray.make_phantoms(tmp_path / "m", 600, 32, 0, shortcut="Fibrosis")
    found = chest_xray.read(made).train
    lead = np.array([tf_decoded(one)[1:5, 1].min() == 255 for one in
                     found.read(np.arange(len(found)))[0]])  # fmt: skip
    has = found.labels[:, FINDINGS.index("Fibrosis")] == 1
    assert lead[has].mean() == pytest.approx(0.9, abs=0.12)
    assert lead[~has].mean() == pytest.approx(0.1, abs=0.06)


def tf_decoded(data):
    import io

    return np.asarray(Image.open(io.BytesIO(data)))


def test_validation_and_labelled_radiographs_are_of_whole_patients(packed):
    found = chest_xray.read(packed)
    parts = found.with_validation(0.25, 0)
    assert not set(parts.train.patients) & set(parts.validation.patients)
    assert len(parts.train) + len(parts.validation) == len(found.train)
    assert found.with_validation(0.0, 0).validation is None
    few = found.labelled(10, 1)
    assert len(few.train) == 10
    images, labels = few.train.read(np.arange(10))
    assert (labels == few.train.labels).all()
    assert len(images) == 10
    assert few.train.checksum() != found.labelled(10, 2).train.checksum()
