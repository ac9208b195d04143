"""ImageNet as TFRecord shards: what TensorFlow reads and writes, and what is refused."""

import re
import shutil
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imagenet_writers import fields, framed, write_shards

from dlcourse import synthetic
from dlcourse.readers import imagenet_shards
from dlguide.data.formats.sample import encode_features
from dlguide.errors import DataError, MissingComponentError

TRAIN, VALIDATION = synthetic.images(3, 32, 17, seed=1, vary=True), synthetic.images(3, 32, 6, 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small ImageNet: 17 pictures in 5 shards, 6 in 2."""
    folder = tmp_path_factory.mktemp("shards") / "imagenet"
    return write_shards(folder, TRAIN, VALIDATION, (5, 2))


@pytest.fixture
def copy(made, tmp_path):
    shutil.copytree(made, tmp_path / "imagenet")
    return tmp_path / "imagenet"


def one_shard(folder, *records, split="train"):
    """Write records of any contents into one shard, with good checksums."""
    folder.mkdir(exist_ok=True)
    whole = b"".join(map(framed, records))
    (folder / f"{split}-00000-of-00001").write_bytes(whole)
    return folder


# --- what is written is what is read -----------------------------------------------------------


@pytest.mark.parametrize(("split", "pictures"), [("train", TRAIN), ("validation", VALIDATION)])
def test_records_are_read_back(made, split, pictures):
    found = imagenet_shards.read(made, split)
    assert len(found) == len(pictures)
    for number, (one, original) in enumerate(zip(found, pictures, strict=True)):
        assert (one.index, one.label, one.encoded) == (number, original.label, original.encoded())
    assert found[0].name == ("n90000000_0.JPEG" if split == "train" else f"{VAL}_00000001.JPEG")


VAL = "ILSVRC2012_val"


def test_tensorflow_reads_what_is_written_and_its_records_are_read(made, tmp_path):
    import tensorflow as tf

    paths = [str(path) for path in sorted(made.glob("train-*"))]
    one = tf.io.FixedLenFeature
    asked = {"image/encoded": one([], tf.string), "image/class/label": one([], tf.int64)}
    for raw, picture in zip(tf.data.TFRecordDataset(paths), TRAIN, strict=True):
        record = tf.io.parse_single_example(raw, asked)
        assert record["image/encoded"].numpy() == picture.encoded()
        assert record["image/class/label"].numpy() == picture.label + 1

    def feature(values):
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    folder = tmp_path / "theirs"
    folder.mkdir()
    for number in range(2):
        path = folder / f"train-{number:05d}-of-00002"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for picture in TRAIN[number * 4 : number * 4 + 4]:
                named = {name: feature(values) for name, values in fields(picture).items()}
                whole = tf.train.Example(features=tf.train.Features(feature=named))
                writer.write(whole.SerializeToString())
    found = imagenet_shards.read(folder)
    assert [one.label for one in found] == [picture.label for picture in TRAIN[:8]]
    assert [one.encoded for one in found] == [picture.encoded() for picture in TRAIN[:8]]


# --- what is wrong is named --------------------------------------------------------------------


def test_missing_and_mixed_shards_are_named(copy, tmp_path):
    (copy / "train-00003-of-00005").rename(tmp_path / "away")
    with pytest.raises(DataError, match=r"1 of 5 shards are missing.* train-00003-of-00005"):
        imagenet_shards.read(copy)
    (tmp_path / "away").rename(copy / "train-00003-of-00008")
    with pytest.raises(DataError, match=r"holds train-00003-of-00008, which is none of 5 shards"):
        imagenet_shards.read(copy)
    (copy / "train-00003-of-00008").rename(copy / "train-00003-of-00005")
    (copy / "train-00007-of-00005").write_bytes(b"")
    with pytest.raises(DataError, match="holds train-00007-of-00005, which is none of 5"):
        imagenet_shards.read(copy)
    assert len(imagenet_shards.read(copy, "validation")) == 6
    with pytest.raises(MissingComponentError, match="no shards of ImageNet like train-00000-of-0"):
        imagenet_shards.read(tmp_path / "nothing")


def ends(path):
    """Where each record of a file ends."""
    contents, at, found = path.read_bytes(), 0, []
    while at < len(contents):
        at += 16 + struct.unpack_from("<Q", contents, at)[0]
        found.append(at)
    return found


def test_every_cut_and_every_flipped_bit_is_reported_with_file_and_place(copy):
    path = copy / "validation-00001-of-00002"
    whole, rng = path.read_bytes(), np.random.default_rng(3)
    within = [
        length
        for length in (*range(1, 17), *rng.integers(17, len(whole), 20).tolist())
        if length not in ends(path)
    ]
    for length in within:
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"validation-00001-of-00002: record \d+ at byte \d+"):
            imagenet_shards.read(copy, "validation")
    for place in [*range(16), *rng.integers(0, len(whole), 20).tolist(), len(whole) - 1]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"validation-00001-of-00002: record \d+ at byte \d+"):
            list(imagenet_shards.read(copy, "validation"))


def test_a_file_that_changes_after_it_was_indexed_is_seen(copy):
    found = imagenet_shards.read(copy)
    path = copy / "train-00001-of-00005"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="record 3 at byte 12: its bytes do not fit"):
        found[3]
    path.unlink()
    with pytest.raises(DataError, match="record 3 at byte 12: cannot be read: No such file"):
        found[3]


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"image/class/label": [1001]}, "label 1001 must be 1 to 1000"),
        ({"image/class/label": [b"1"]}, "'image/class/label' is not one int"),
        ({"image/class/label": None}, "'image/class/label' is not one int"),
        ({"image/encoded": [b"one", b"two"]}, "'image/encoded' is not one bytes"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_hold_is_named(changed, text, tmp_path):
    good = encode_features(fields(TRAIN[0]))
    bad = encode_features(fields(TRAIN[3], **changed))
    found = imagenet_shards.read(one_shard(tmp_path / "bad", good, bad))
    assert found[0].label == 0
    with pytest.raises(DataError, match=rf"train-00000-of-00001: record 1 at byte \d+: .*{text}"):
        found[1]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_bytes_in_a_record_give_anything_but_a_record_or_an_error(data, tmp_path):
    contents = bytearray(encode_features(fields(TRAIN[0])))
    head = min(len(contents), 400)  # most features are at the beginning
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, head - 1))
        contents[place] = data.draw(st.integers(0, 255))
    found = imagenet_shards.read(one_shard(tmp_path / "fuzzed", bytes(contents)))
    message = ""
    try:
        one = found[0]
        assert 0 <= one.label < 1000
        assert isinstance(one.encoded, bytes)
    except DataError as error:
        message = str(error)
    assert re.match(r"$|.*00000-of-00001: record 0 at byte 12: .", message)
