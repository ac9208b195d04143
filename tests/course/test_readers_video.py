"""Sequences of KITTI are read as video; every layout goes into a format."""

import shutil

import layout_writers
import numpy as np
import pytest
from imagenet_writers import write_folders

from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.video import kitti_tracking, street_scenes
from dlguide.data import formats, synthetic
from dlguide.data.readers import imagenet
from dlguide.errors import DataError

DRIVES = [street_scenes.driving(frames, 32, seed=frames) for frames in (30, 11, 14)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three drives of 30, 11 and 14 frames."""
    return layout_writers.write_kitti(tmp_path_factory.mktemp("kitti") / "training", DRIVES)


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "training")
    return tmp_path / "training"


# --- sequences ---------------------------------------------------------------------------------


def test_sequences_without_labels_are_read_as_video(copy):
    shutil.rmtree(copy / "label_02")
    found = kitti_tracking.read(copy, "0001", labels=False)
    assert len(found) == 11
    assert found.boxes == ((),) * 11
    assert np.array_equal(found[10].pixels, DRIVES[1][10].pixels)


def test_the_last_frame_of_a_cut_sequence_is_missed_by_its_labels(copy):
    path = copy / "label_02/0001.txt"
    lines = path.read_text().splitlines()
    last = [number for number, line in enumerate(lines, 1) if line.startswith("10 ")]
    assert last
    (copy / "image_02/0001/000010.png").unlink()
    with pytest.raises(DataError, match=rf"0001\.txt, line {last[0]}: frame 10 of a sequence with"):
        kitti_tracking.read(copy, "0001")


# --- into the formats --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tfrecord", "folder"])
def test_every_layout_becomes_a_data_set_of_the_house(kind, made, tmp_path):
    pictures = synthetic.images(3, 32, 7, seed=1)
    write_folders(tmp_path / "imagenet", pictures, pictures[:3])
    radiographs = phantoms.chest(9, 32, seed=3)
    layout_writers.write_chestxray14(tmp_path / "chest", radiographs, images_per_folder=4)
    drive = DRIVES[1]
    for number, (found, expected) in enumerate(
        (
            (
                imagenet.read(tmp_path / "imagenet"),
                {
                    f"train/n9000000{one.label}/n9000000{one.label}_{one.index}.JPEG": (
                        (one.label,),
                        one.encoded(),
                    )
                    for one in pictures
                },
            ),
            (
                chestxray14.read(tmp_path / "chest"),
                {
                    one.name: (tuple(one.labels.astype(int).tolist()), one.encoded())
                    for one in radiographs
                    if one.patient % 5
                },
            ),
            (
                kitti_tracking.read(made, "0001"),
                {
                    f"0001/{one.index:06d}.png": (
                        (1, one.index),
                        synthetic.encoded(one.pixels, "png"),
                    )
                    for one in drive
                },
            ),
        )
    ):
        with formats.create(tmp_path / f"packed-{number}", kind) as writer:
            for sample in found.samples():
                writer.append(sample)
        with formats.open(tmp_path / f"packed-{number}") as packed:
            assert len(packed) == len(found) == len(expected)
            for sample, (path, label) in zip(packed, found.items(), strict=True):
                assert (sample.labels, sample.data) == expected[sample.key]
                assert sample.data == path.read_bytes()
                if number < 2:
                    assert sample.labels == (label if isinstance(label, tuple) else (label,))


def test_a_conversion_of_a_damaged_layout_leaves_nothing_under_its_name(tmp_path):
    pictures = synthetic.images(3, 32, 7, seed=1)
    folder = write_folders(tmp_path / "imagenet", pictures, pictures[:3])
    found = imagenet.read(folder)
    path, _ = found.items()[4]
    path.write_bytes(path.read_bytes()[:200])

    def convert():
        with formats.create(tmp_path / "packed", "tfrecord") as writer:
            for sample in found.samples():
                writer.append(sample)

    with pytest.raises(DataError, match=rf"{path.name}: no image"):
        convert()
    assert not (tmp_path / "packed").exists()
