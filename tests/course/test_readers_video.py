"""Sequences of KITTI come out as clips for video prediction; every layout goes into a format."""

import shutil

import layout_writers
import numpy as np
import pytest
from imagenet_writers import write_folders

from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.video import kitti_tracking, street_scenes
from dlcourse.usecases.video.kitti_tracking import clips
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


def read_all(folder, **options):
    names = kitti_tracking.names(folder)
    return [kitti_tracking.read(folder, name, **options) for name in names]


# --- clips -------------------------------------------------------------------------------------


def test_six_frames_in_and_six_out_follow_each_other(made):
    found = clips(read_all(made))
    # 30 frames hold two clips, 11 none, 14 one; no clip goes from one drive into the next
    assert found.places == ((0, 0), (0, 12), (2, 0))
    for clip in found:
        frames = np.stack([one.pixels for one in DRIVES[clip.video]])
        assert np.array_equal(clip.past, frames[clip.first : clip.first + 6])
        assert np.array_equal(clip.future, frames[clip.first + 6 : clip.first + 12])
        assert clip.past.dtype == np.uint8
    assert [one.first for one in found[1:]] == [12, 0]
    with pytest.raises(IndexError):
        found[3]


@pytest.mark.parametrize(("before", "after", "step"), [(1, 1, 1), (6, 6, 1), (4, 2, 3), (11, 3, 5)])
def test_all_clips_that_fit_are_there_and_no_other(before, after, step):
    found = clips(DRIVES, before, after, step)
    whole = before + after
    expected = [
        (number, first)
        for number, drive in enumerate(DRIVES)
        for first in range(0, len(drive), step)
        if first + whole <= len(drive)
    ]
    assert list(found.places) == expected
    clip = found[-1]
    assert (len(clip.past), len(clip.future)) == (before, after)


def test_a_damaged_frame_stops_its_clip_and_is_named(copy):
    found = clips(read_all(copy))
    (copy / "image_02/0000/000013.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert found[0].first == 0
    with pytest.raises(DataError, match=r"0000/000013\.png: no image that can be read"):
        found[1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"before": 0}, "`before` must be a whole number of at least 1, got 0"),
        ({"after": 1.5}, "`after` must be a whole number of at least 1, got 1.5"),
        ({"step": 0}, "`step` must be a whole number of at least 1, got 0"),
        ({"size": (16, 0)}, "`size` must be a whole number of at least 1, got 0"),
        ({"size": (16,)}, "`size` must be rows and columns"),
        ({"before": 25}, r"`videos` must hold one of at least 31 frames for clips of 25 \+ 6, got"),
    ],
)
def test_clips_that_cannot_be_are_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        clips(DRIVES, **arguments)


# --- sequences ---------------------------------------------------------------------------------


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
                {f"0001/{one.index:06d}.png": ((1, one.index), one.encoded()) for one in drive},
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
