"""Chest X-rays in files: packed by patient, read whole, refused with what was looked for."""

import shutil

import layout_writers
import numpy as np
import pytest
from PIL import Image

from dlcourse.usecases import chest_xray
from dlcourse.usecases.chest_xray import chestxray14, data, phantoms
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlguide.data import formats
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import DataError, MissingComponentError


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return chest_xray.make_phantoms(tmp_path_factory.mktemp("packed") / "made", 44, 32, 3)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unpacked") / "ChestX-ray14"
    return layout_writers.write_chestxray14(folder, phantoms.chest(44, 40, 3))


@pytest.fixture
def copied(packed, tmp_path):
    return shutil.copytree(packed, tmp_path / "copy")


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


def test_published_layout_is_read_as_it_is_and_packed_to_the_same(unpacked, tmp_path):
    plain = chest_xray.read(unpacked)
    small = chest_xray.read(chest_xray.pack(unpacked, tmp_path / "small", size=32))
    for one, other in ((plain.train, small.train), (plain.test, small.test)):
        assert (one.labels == other.labels).all()
        assert (one.patients == other.patients).all()
    data, _ = small.train.source.read(np.arange(1))
    pixels, _ = chestxray14.read_image(next((unpacked / "images").glob("*_000.png")), "L")
    assert pixels.shape == (40, 40)
    import tensorflow as tf

    assert tf.io.decode_png(data[0]).shape == (32, 32, 1)


def test_nothing_there_says_what_was_looked_for_and_found(tmp_path):
    said = r"no chest X-rays at .*nowhere.*Data_Entry_2017.csv.*manifest.json.*found no folder"
    with pytest.raises(MissingComponentError, match=said):
        chest_xray.read(tmp_path / "nowhere")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.jpg").touch()
    with pytest.raises(MissingComponentError, match=r"found cat\.jpg"):
        chest_xray.read(tmp_path / "photos")


def test_records_of_another_data_set_are_refused(tmp_path, copied):
    shutil.rmtree(copied / "train")
    archive = chest_xray.make_archive(tmp_path / "archive", 5, 32, 0)
    shutil.copytree(archive / "train", copied / "train")
    with pytest.raises(DataError, match=r"must be 14 zeros and ones. This is another data set"):
        chest_xray.read(copied)


def test_list_of_patients_must_fit_the_records(copied):
    path = copied / data.PATIENTS
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(DataError, match=r"patients.txt: \d+ lines of train, but .*holds \d+"):
        chest_xray.read(copied)
    path.write_text("\n".join([lines[0], "train twelve", *lines[2:]]) + "\n")
    with pytest.raises(DataError, match=r"patients.txt, line 2: must be like 'train 12'"):
        chest_xray.read(copied)
    test = next(line for line in lines if line.startswith("test"))
    path.write_text("\n".join([test.replace("test", "train"), *lines[1:]]) + "\n")
    with pytest.raises(DataError, match=r"patient \d+ is in both splits"):
        chest_xray.read(copied)


def test_phantoms_made_otherwise_are_not_taken_for_those_asked_for(packed, unpacked):
    assert chest_xray.read(packed).synthetic
    assert not chest_xray.read(unpacked).synthetic
    data.require_same_phantoms(packed, data.phantom_settings(44, 32, 3))
    said = r"`count` must be 44, with which the phantoms at .* were made, got 300"
    with pytest.raises(ValueError, match=said):
        data.require_same_phantoms(packed, data.phantom_settings(300, 32, 3))
    with pytest.raises(ValueError, match="`rates` must be 'even'"):
        data.require_same_phantoms(packed, data.phantom_settings(44, 32, 3, "published"))


def test_archive_must_be_there_and_be_one(tmp_path, packed):
    said = r"no archive to pre-train with at .*nowhere: looked for .*train/manifest.json"
    with pytest.raises(MissingComponentError, match=said):
        chest_xray.check(archive=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"must have 3 labels per radiograph .* has 14"):
        chest_xray.check(archive=packed)
    (tmp_path / "old").mkdir()
    with pytest.raises(MissingComponentError, match="it is not known how the phantoms"):
        data.require_same_phantoms(tmp_path / "old", data.phantom_settings(44, 32, 3))


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
                     found.source.read(np.arange(len(found)))[0]])  # fmt: skip
    has = found.labels[:, FINDINGS.index("Fibrosis")] == 1
    assert lead[has].mean() == pytest.approx(0.9, abs=0.12)
    assert lead[~has].mean() == pytest.approx(0.1, abs=0.06)


def tf_decoded(data):
    import io

    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(data)))


def test_validation_and_labelled_radiographs_are_of_whole_patients(packed):
    found = chest_xray.read(packed)
    parts = found.with_validation(0.25, 0)
    assert not set(parts.train.patients) & set(parts.validation.patients)
    assert len(parts.train) + len(parts.validation) == len(found.train)
    assert found.with_validation(0.0, 0).validation is None
    few = found.labelled(10, 1)
    assert len(few.train) == 10
    images, labels = few.train.source.read(np.arange(10))
    assert (labels == few.train.labels).all()
    assert len(images) == 10
    assert few.train.source.checksum() != found.labelled(10, 2).train.source.checksum()
    with pytest.raises(ValueError, match="`labelled` must be at most the"):
        found.labelled(99, 1)


def variants():
    """What other archives hold: name, conversion, format, by how much a grey value may be off."""
    return [
        ("16 bits", lambda grey: Image.fromarray(np.asarray(grey, np.uint16) * 257), "PNG", 1),
        ("RGBA", lambda grey: grey.convert("RGBA"), "PNG", 1),
        ("palette", lambda grey: grey.convert("P"), "PNG", 1),
        ("JPEG", lambda grey: grey, "JPEG", 16),
        ("CMYK", lambda grey: grey.convert("RGB").convert("CMYK"), "JPEG", 16),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "form", "off"), variants(), ids=lambda one: str(one)[:7]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_odd_files_are_read_as_the_grey_picture_that_they_hold(
    name, change, form, off, channels, unpacked, tmp_path
):
    odd = shutil.copytree(unpacked, tmp_path / "odd")
    path = next(odd.glob("images/*_000.png"))
    grey = Image.open(path)
    change(grey).save(path, form, **({"quality": 95} if form == "JPEG" else {}))
    packed = chest_xray.pack(odd, tmp_path / "packed", size=40)
    for folder in (odd, packed):
        found = chest_xray.read(folder)
        part = next(
            each for each in (found.train, found.test) if int(path.name[:8]) in each.patients
        )
        at = np.flatnonzero(part.patients == int(path.name[:8]))[:1]
        pipeline = Pipeline(part.rows(at).source, 1, shuffle=False, channels=channels)
        with pipeline.epoch() as batches:
            pixels = 255 * np.asarray(next(iter(batches))[0][0])
        difference = np.abs(pixels - np.asarray(grey, float)[..., None])
        assert difference.max() <= off, (name, folder.name)
