"""Published layouts are written and read back, and what is wrong in them is named by its place."""

import io
import shutil

import layout_writers
import numpy as np
import pytest
from imagenet_writers import write_folders
from PIL import Image

from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.video import kitti_tracking, street_scenes
from dlguide.data import synthetic
from dlguide.data.readers import imagenet
from dlguide.errors import DataError, MissingComponentError

TABLE, TRAIN, TEST = "Data_Entry_2017.csv", "train_val_list.txt", "test_list.txt"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """One small data set in each layout."""
    base = tmp_path_factory.mktemp("layouts")
    write_folders(
        base / "imagenet",
        synthetic.images(3, 32, 9, seed=1, vary=True),
        synthetic.images(3, 32, 6, seed=2),
    )
    layout_writers.write_chestxray14(base / "chest", phantoms.chest(44, 32, seed=3))
    drives = [street_scenes.driving(frames, 48, seed=frames) for frames in (5, 3)]
    layout_writers.write_kitti(base / "kitti", drives)
    return base


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "data")
    return tmp_path / "data"


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- what is written is what is published ------------------------------------------------------


def test_chestxray14_has_its_table_and_lists(made):
    lines = (made / "chest" / TABLE).read_text().splitlines()
    assert lines[0] == (
        "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,"
        "View Position,OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
    )
    one = phantoms.chest(44, 32, seed=3)[7]
    assert lines[8].split(",") == [
        *(one.name, one.finding_labels, str(one.follow_up), str(one.patient), str(one.age)),
        *(one.gender, one.view, "32", "32", "0.143", "0.143", ""),
    ]
    train, test = ((made / "chest" / file).read_text().split() for file in (TRAIN, TEST))
    assert sorted(train + test) == sorted(line.split(",")[0] for line in lines[1:])
    assert not {name[:8] for name in train} & {name[:8] for name in test}
    assert test


# --- what is written is what is read -----------------------------------------------------------


def test_imagenet_is_read_back(made):
    for split, count, seed in (("train", 9, 1), ("val", 6, 2)):
        written = synthetic.images(3, 32, count, seed, vary=split == "train")
        found = imagenet.read(made / "imagenet", split)
        assert found.synsets == ("n90000000", "n90000001", "n90000002")
        by_class = sorted(written, key=lambda one: one.label)
        assert [one.label for one in found] == [one.label for one in by_class]
        for one, original in zip(found, by_class, strict=True):
            decoded = np.asarray(Image.open(io.BytesIO(original.encoded())))
            assert np.array_equal(one.pixels, decoded)
            assert one.kind == "jpeg"


def test_chestxray14_is_read_back(made):
    written = {one.name: one for one in phantoms.chest(44, 32, seed=3)}
    read = [one for split in ("train", "test") for one in chestxray14.read(made / "chest", split)]
    assert sorted(one.name for one in read) == sorted(written)
    for one in read:
        original = written[one.name]
        assert np.array_equal(one.pixels, original.pixels)
        for name in ("patient", "follow_up", "age", "gender", "view", "findings"):
            assert getattr(one, name) == getattr(original, name)


def test_kitti_is_read_back(made):
    assert kitti_tracking.names(made / "kitti") == ("0000", "0001")
    for name, frames in (("0000", 5), ("0001", 3)):
        found = kitti_tracking.read(made / "kitti", name)
        assert len(found) == frames
        for one, original in zip(found, street_scenes.driving(frames, 48, frames), strict=True):
            assert np.array_equal(one.pixels, original.pixels)
            assert [label.line() for label in one.labels] == [
                label.line() for label in original.labels
            ]


def test_real_oddities_are_read(copy):
    # ImageNet: a PNG and CMYK pictures called .JPEG; ChestX-ray14: four channels, ages as 058Y
    first = copy / "imagenet/train/n90000000"
    for name, mode, kind in (("n90000000_0", "RGB", "PNG"), ("n90000000_3", "CMYK", "JPEG")):
        Image.new(mode, (20, 30)).save(first / f"{name}.JPEG", kind)
    found = imagenet.read(copy / "imagenet")
    assert [found[k].kind for k in (0, 1)] == ["png", "jpeg"]
    assert all(found[k].pixels.shape == (30, 20, 3) for k in (0, 1))
    radiographs = chestxray14.read(copy / "chest")
    Image.new("RGBA", (32, 32)).save(copy / "chest/images" / radiographs[0].name)
    assert radiographs[0].pixels.shape == (32, 32)
    table = copy / "chest" / TABLE
    lines = table.read_text().splitlines()
    cells = lines[1].split(",")
    cells[4] = f"{int(cells[4]):03d}Y"
    table.write_text("\n".join([lines[0].rstrip(","), ",".join(cells[:-1]), *lines[2:]]))
    assert chestxray14.read(copy / "chest").rows == radiographs.rows
    dont_care = "2 -1 DontCare -1 -1 -10.0 1.0 2.0 9.0 9.0 -1000 -1000 -1000 -10 -1 -1 -1\n"
    with (copy / "kitti/label_02/0000.txt").open("a") as file:
        file.write(2 * dont_care)
    assert [one.kind for one in kitti_tracking.read(copy / "kitti", "0000")[2].labels][-2:] == [
        "DontCare",
        "DontCare",
    ]


# --- what is wrong is named --------------------------------------------------------------------


def test_every_flipped_bit_and_every_cut_of_a_png_is_reported(copy):
    path = copy / "kitti/image_02/0000/000001.png"
    whole = path.read_bytes()
    drive = kitti_tracking.read(copy / "kitti", "0000")
    rng = np.random.default_rng(5)
    for place in [*range(40), *rng.integers(0, len(whole), 100), *range(-16, 0)]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"000001\.png: no image that can be read"):
            drive[1]
    for length in [0, 1, 8, 33, *rng.integers(0, len(whole), 40), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"000001\.png: no image that can be read"):
            drive[1]


def test_cut_jpegs_and_files_that_are_no_images_are_reported(copy):
    found = imagenet.read(copy / "imagenet")
    path = copy / "imagenet/train/n90000000/n90000000_0.JPEG"
    whole = path.read_bytes()
    for content in (b"", b"<html>not found</html>", whole[: len(whole) // 2], whole[:3]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"n90000000_0\.JPEG: no image .* \(\d+ bytes\)"):
            found[0]
    path.unlink()
    with pytest.raises(DataError, match=r"n90000000_0\.JPEG: the image is missing"):
        found[0]


def saved(kind):
    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, kind)
    return data.getvalue()


@pytest.fixture
def others_asked(monkeypatch):
    """Add a decoder to Pillow that would take any bytes, and fails when it is asked."""
    asked = []

    def accept(prefix):
        asked.append(prefix)
        return False

    Image.init()
    monkeypatch.setitem(Image.OPEN, "ANY", (Image.Image, accept))
    monkeypatch.setattr(Image, "ID", ["ANY", *Image.ID])
    return asked


@pytest.mark.parametrize("kind", ["EPS", "TIFF", "GIF", "BMP"])
def test_no_decoder_but_those_of_jpeg_and_png_sees_a_file(kind, copy, others_asked):
    contents = saved(kind)
    radiographs = chestxray14.read(copy / "chest")
    drive = kitti_tracking.read(copy / "kitti", "0000")
    pictures = imagenet.read(copy / "imagenet")
    for path, read in (
        (radiographs.paths[0], lambda: radiographs[0]),
        (drive.images / "000001.png", lambda: drive[1]),
        (pictures.items()[0][0], lambda: pictures[0]),
    ):
        path.write_bytes(contents)
        with pytest.raises(DataError, match=rf"{path.name}: no image that can .* cannot identify"):
            read()
    assert others_asked == []


def change(path, line, old, new):
    lines = path.read_text().splitlines()
    cells = lines[line - 1].split("," if path.suffix == ".csv" else " ")
    cells[old] = new
    lines[line - 1] = ("," if path.suffix == ".csv" else " ").join(cells)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (0, "a.png", "image must be called like 00000001_000.png, got 'a.png'"),
        (1, "Edema|Flu", "'Flu' is none of the 14 findings"),
        (1, "", "'' is none of the 14 findings"),
        (2, "x", "follow-up, patient and age must be numbers"),
        # Python turns no text of more than 4300 digits into a number
        (2, "1" * 5000, "follow-up, patient and age must be numbers"),
        (3, "1" * 5000, "follow-up, patient and age must be numbers"),
        (3, "99", "patient 99 with an image called"),
        (4, "old", "follow-up, patient and age must be numbers"),
        (5, "X", "must be F or M and PA or AP, got 'X'"),
        (6, "LL", "must be F or M and PA or AP"),
        (7, "1,2,3", "14 columns, must be 11"),
    ],
)
def test_a_wrong_cell_of_the_table_is_named(copy, column, value, text):
    change(copy / "chest" / TABLE, 3, column, value)
    with pytest.raises(DataError, match=rf"{TABLE}, line 3: .*{text}"):
        chestxray14.read(copy / "chest")


def test_table_and_lists_are_held_against_each_other(copy):
    chest = copy / "chest"
    table, train = (chest / TABLE).read_text(), (chest / TRAIN).read_text()
    second = table.splitlines()[1]
    for file, content, text in (
        (TABLE, table + second + "\n", r"line 46: .* stands in the table twice"),
        (TABLE, "", "line 1: must be 'Image Index"),
        (TABLE, table.replace("View Position", "View", 1), "line 1: must be"),
        (TRAIN, train + "00009999_000.png\n", "does not stand in Data_Entry_2017"),
        (TRAIN, train + train.splitlines()[0], "stands in the list twice"),
        (TEST, train, "patient 1 also stands in train"),
    ):
        before = (chest / file).read_text()
        (chest / file).write_text(content)
        with pytest.raises(DataError, match=rf"{file}.*{text}"):
            chestxray14.read(chest)
        (chest / file).write_text(before)
    (chest / TRAIN).write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="no text from byte 0"):
        chestxray14.read(chest)


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        (0, "5", "frame 5 of a sequence with 5"),
        (0, "-1", "frame -1 of a sequence with 5"),
        (0, "1.5", "invalid literal for int"),
        (1, "-1", "track must be at least 0"),
        (2, "Boat", "type must be one of Car, .* got 'Boat'"),
        (3, "3", "truncated 0 to 2"),
        (4, "9", "occluded 0 to 3"),
        (5, "nan", "every number must be finite"),
        (6, "1e5", "must be left, top, right, bottom"),
        (7, "-3", "must be left, top, right, bottom"),
        (16, "0 0", "18 columns, must be 17"),
    ],
)
def test_a_wrong_column_of_a_label_is_named(copy, column, value, text):
    change(copy / "kitti/label_02/0000.txt", 2, column, value)
    with pytest.raises(DataError, match=rf"0000\.txt, line 2: .*{text}"):
        kitti_tracking.read(copy / "kitti", "0000")


def test_missing_frames_classes_and_files_are_named(copy):
    (copy / "kitti/image_02/0000/000002.png").unlink()
    with pytest.raises(DataError, match=r"frame 000002\.png is missing, got '000003\.png'"):
        kitti_tracking.read(copy / "kitti", "0000")
    for path in (copy / "kitti/image_02/0001").iterdir():
        path.unlink()
    with pytest.raises(DataError, match="0001: has no frames"):
        kitti_tracking.read(copy / "kitti", "0001")
    (copy / "imagenet/train/n90000000/notes.txt").write_text("")
    with pytest.raises(DataError, match=r"notes\.txt: no \.JPEG file"):
        imagenet.read(copy / "imagenet")
    shutil.rmtree(copy / "imagenet/train/n90000000")
    with pytest.raises(DataError, match=r"n90000000: a class that .*train does not have"):
        imagenet.read(copy / "imagenet", "val")
    (copy / "imagenet/train/n90000000").mkdir()
    with pytest.raises(DataError, match="n90000000: the class has no pictures"):
        imagenet.read(copy / "imagenet")
    (copy / "imagenet/train/cats").mkdir()
    with pytest.raises(DataError, match="cats: no folder of a class"):
        imagenet.read(copy / "imagenet")
    (copy / "kitti/image_02/readme").write_text("")
    with pytest.raises(DataError, match="readme: no sequence"):
        kitti_tracking.names(copy / "kitti")


# --- writing is whole or not at all ------------------------------------------------------------


def test_a_missing_data_set_names_who_gives_it_out(tmp_path):
    for read, origin in (
        (lambda: imagenet.read(tmp_path), "image-net.org .* ILSVRC2012_img_train.tar"),
        (lambda: chestxray14.read(tmp_path), "nihcc.app.box.com"),
        (lambda: kitti_tracking.read(tmp_path, "0000"), "cvlibs.net.* data_tracking_image_2.zip"),
    ):
        with pytest.raises(MissingComponentError, match=f"{origin}.*copied from another"):
            read()


def test_no_bytes_in_a_label_file_give_anything_but_labels_or_an_error(copy):
    path = copy / "kitti/label_02/0000.txt"
    whole, rng = path.read_bytes(), np.random.default_rng(8)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), int(rng.integers(1, 4))):
            damaged[place] = int(rng.integers(256))
        path.write_bytes(damaged[: int(rng.integers(1, 3 * len(whole)))])
        said = ""
        try:
            drive = kitti_tracking.read(copy / "kitti", "0000")
            for frame in drive:
                for label in frame.labels:
                    assert label.frame == frame.index
                    assert 0 <= label.left <= label.right <= frame.pixels.shape[1]
        except DataError as error:
            said = str(error)
        assert not said or "0000.txt, line " in said or "0000.txt: no text from byte" in said
