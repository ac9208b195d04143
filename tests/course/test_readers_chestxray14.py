"""ChestX-ray14 as it is delivered, in folders with a table and lists; and its faults."""

import re
import shutil

import layout_writers
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlguide.errors import DataError, MissingComponentError

TABLE, TRAIN = "Data_Entry_2017.csv", "train_val_list.txt"
RADIOGRAPHS = phantoms.chest(22, 32, seed=3)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """22 radiographs, 5 in a folder."""
    folder = tmp_path_factory.mktemp("delivered") / "chest"
    return layout_writers.write_chestxray14(folder, RADIOGRAPHS, images_per_folder=5)


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "chest")
    return tmp_path / "chest"


def replace_line(path, line, text):
    lines = path.read_text().splitlines()
    lines[line - 1 : line] = [text] if isinstance(text, str) else text
    path.write_text("\n".join(lines) + "\n")


def line_of(path, line):
    return path.read_text().splitlines()[line - 1]


# --- what is delivered is what is read ---------------------------------------------------------


def test_images_lie_in_numbered_folders_and_are_found_there(made):
    folders = sorted(path.name for path in made.iterdir() if path.is_dir())
    assert folders == [f"images_{number:03d}" for number in range(1, 6)]
    assert len(list((made / "images_005/images").iterdir())) == 2
    read = [one for split in ("train", "test") for one in chestxray14.read(made, split)]
    written = {one.name: one for one in RADIOGRAPHS}
    assert sorted(one.name for one in read) == sorted(written)
    assert all(np.array_equal(one.pixels, written[one.name].pixels) for one in read)


def test_files_and_labels_are_listed_for_a_pipeline(made):
    found = chestxray14.read(made)
    for (path, labels), one in zip(found.items(), found, strict=True):
        assert path.name == one.name
        assert path.is_file()
        assert labels == tuple(one.labels.astype(int).tolist())


# --- what is wrong is named --------------------------------------------------------------------


def test_images_that_were_not_unpacked_are_counted_and_named(copy):
    shutil.rmtree(copy / "images_002")
    names = (copy / TRAIN).read_text().split()
    gone = [name for name in names if name in {one.name for one in RADIOGRAPHS[5:10]}]
    text = f"{len(gone)} of the {len(names)} radiographs of {TRAIN} have no image, the first is "
    with pytest.raises(DataError, match=re.escape(text + gone[0])):
        chestxray14.read(copy)
    for folder in copy.glob("images_*"):
        shutil.rmtree(folder)
    with pytest.raises(MissingComponentError, match=r"images at .*images, nor at .*images_001"):
        chestxray14.read(copy)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda cells: [*cells[:1], "x", *cells[1:]], "13 columns, must be 11"),
        # without the comma at the end, a column too many has the length of a published line
        (lambda cells: [*cells[:-1], "x"], "12 columns, must be 11"),
        (lambda cells: cells[:6] + cells[7:], "must be F or M and PA or AP"),
        (lambda cells: cells[:8] + cells[9:], "size and spacing must be positive numbers"),
        (lambda cells: [*cells[:7], "0", *cells[8:]], "size and spacing must be positive"),
        (lambda cells: [*cells[:9], "nan", *cells[10:]], "size and spacing must be positive"),
        (lambda cells: ['"' + cells[0], *cells[1:]], "1 columns, must be 11"),
        (lambda cells: [], "0 columns, must be 11"),
    ],
)
def test_missing_and_extra_columns_are_named(copy, change, text):
    path = copy / TABLE
    replace_line(path, 5, ",".join(change(line_of(path, 5).split(","))))
    with pytest.raises(DataError, match=rf"{TABLE}, line 5: {text}"):
        chestxray14.read(copy)


def test_files_that_were_exchanged_are_refused(copy):
    table, names = (copy / TABLE).read_bytes(), (copy / TRAIN).read_bytes()
    (copy / TABLE).write_bytes(names)
    with pytest.raises(DataError, match=rf"{TABLE}, line 1: must be 'Image Index,Finding Labels"):
        chestxray14.read(copy)
    (copy / TABLE).write_bytes(table)
    (copy / TRAIN).write_bytes(table)
    with pytest.raises(DataError, match=rf"{TRAIN}, line 1: 'Image Index,.* does not stand in"):
        chestxray14.read(copy)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_table_gives_an_error_with_its_line_or_rows_that_can_be(made, tmp_path, data):
    lines = (made / TABLE).read_bytes().splitlines(keepends=True)
    kind = data.draw(st.sampled_from(["byte", "cut", "twice", "away", "exchanged"]))
    one = data.draw(st.integers(1, len(lines) - 1))
    if kind == "byte":
        line = bytearray(lines[one])
        line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
        lines[one] = bytes(line)
    elif kind == "cut":
        # up to its last number, of which a digit less would not be noticed
        lines[one:] = [lines[one][: data.draw(st.integers(1, len(lines[one]) - 8))]]
    elif kind == "twice":
        lines.insert(data.draw(st.integers(1, len(lines))), lines[one])
    elif kind == "away":
        del lines[one]
    else:
        cells = lines[one].split(b",")
        cells[0], cells[1] = cells[1], cells[0]
        lines[one] = b",".join(cells)
    if not (tmp_path / "chest").exists():
        shutil.copytree(made, tmp_path / "chest")
    (tmp_path / "chest" / TABLE).write_bytes(b"".join(lines))
    said, rows = "", ()
    try:
        rows = chestxray14.read(tmp_path / "chest").rows
    except DataError as error:
        said = str(error)
    if kind != "byte":
        assert said
    assert re.match(rf"$|.*({TABLE}|_list\.txt)(, line \d+: .|: no text from byte|: patient)", said)
    # a digit of an age can become another without a trace; the images cannot
    assert all(row.name.startswith(f"{row.patient:08d}_") for row in rows)
