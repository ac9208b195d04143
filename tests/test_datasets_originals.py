"""Fashion-MNIST and CIFAR-10 in their published files: read when there, never when damaged.

The real files are not in the repository. These tests write small ones of the same form and put
their lengths and checksums in the place of the published ones.
"""

import gzip
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from dlguide.data import datasets
from dlguide.errors import DataError, MissingComponentError

RNG = np.random.default_rng(7)
IDX_FILES = [file.name for file in datasets.ORIGINALS["fashion_mnist"].files]


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.tobytes(), mtime=0)


def publish(monkeypatch, folder, name, contents, shapes):
    """Write files and take their checksums for the published ones."""
    files = []
    whole = zip(datasets.ORIGINALS[name].files, contents, shapes, strict=True)
    for file, content, shape in whole:
        path = folder / name / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        files.append(replace(file, sha256=digest, nbytes=len(content), shape=shape))
    whole = replace(datasets.ORIGINALS[name], files=tuple(files))
    monkeypatch.setitem(datasets.ORIGINALS, name, whole)


@pytest.fixture
def fashion(monkeypatch, tmp_path):
    """Small files in the form of Fashion-MNIST, and the arrays in them."""
    arrays = [
        RNG.integers(0, 256, (12, 28, 28), np.uint8),
        RNG.integers(0, 10, 12).astype(np.uint8),
        RNG.integers(0, 256, (5, 28, 28), np.uint8),
        RNG.integers(0, 10, 5).astype(np.uint8),
    ]
    contents = [idx(array) for array in arrays]
    publish(monkeypatch, tmp_path, "fashion_mnist", contents, [one.shape for one in arrays])
    return tmp_path, arrays


@pytest.fixture
def cifar(monkeypatch, tmp_path):
    """Small files in the form of CIFAR-10, and the records in them."""
    records = [RNG.integers(0, 256, (4, 3073), np.uint8) for _ in range(6)]
    for one in records:
        one[:, 0] = RNG.integers(0, 10, 4)
    contents = [one.tobytes() for one in records]
    publish(monkeypatch, tmp_path, "cifar10", contents, [(4, 3073)] * 6)
    return tmp_path, records


def test_fashion_mnist_is_what_its_files_hold(fashion):
    folder, (train, train_labels, test, test_labels) = fashion
    found = datasets.load("fashion_mnist", folder)
    assert isinstance(found, datasets.Dataset)
    assert np.array_equal(found.train_images[..., 0], train.astype(np.float32) / 255)
    assert np.array_equal(found.test_images[..., 0], test.astype(np.float32) / 255)
    assert np.array_equal(found.train_labels, train_labels)
    assert np.array_equal(found.test_labels, test_labels)
    assert found.train_labels.dtype == np.int32


def test_cifar10_is_what_its_files_hold_pixel_by_pixel(cifar):
    folder, records = cifar
    found = datasets.load("cifar10", folder)
    assert found.train_images.shape == (20, 32, 32, 3)
    assert found.test_images.shape == (4, 32, 32, 3)
    assert found.train_images.dtype == np.float32
    # its page: a label, then 1024 bytes of red, of green and of blue, each row by row
    for sample in range(20):
        record = records[sample // 4][sample % 4]
        assert found.train_labels[sample] == record[0]
        for row, column, channel in ((0, 0, 0), (3, 31, 1), (31, 2, 2), (17, 5, 0)):
            byte = record[1 + 1024 * channel + 32 * row + column]
            assert found.train_images[sample, row, column, channel] == np.float32(byte) / 255
    assert found.test_labels.tolist() == records[5][:, 0].tolist()


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_a_data_set_that_is_not_there_says_how_to_get_it(name, tmp_path):
    with pytest.raises(MissingComponentError) as caught:
        datasets.load(name, tmp_path)
    text = str(caught.value)
    assert str(tmp_path / name) in text
    assert all(file.name in text for file in datasets.ORIGINALS[name].files)
    assert f"With a network: `dlguide data fetch {name}`." in text
    assert "Without: copy these files there from another machine" in text
    assert "DLGUIDE_DATA" in text


def test_present_lists_what_is_complete(fashion, cifar):
    folder, _ = fashion
    assert datasets.present(folder) == ("fashion_mnist", "cifar10")
    (folder / "cifar10/cifar-10-batches-bin/test_batch.bin").unlink()
    assert datasets.present(folder) == ("fashion_mnist",)
    assert "mnist" in datasets.present()
    with pytest.raises(MissingComponentError, match="does not exist"):
        datasets.present(folder / "nowhere")


def damaged(whole):
    """Give each kind of damage once: flipped, cut, longer, empty, of another kind."""
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    return bytes(flipped), whole[:-1], whole[: len(whole) // 2], whole + b"\0", b"", b"<html>"


@pytest.mark.parametrize(
    ("name", "place"), [("fashion_mnist", 0), ("fashion_mnist", 3), ("cifar10", 0), ("cifar10", 5)]
)
def test_any_damage_is_named_with_the_file(fashion, cifar, name, place):
    folder, _ = fashion
    path = folder / name / datasets.ORIGINALS[name].files[place].name
    whole = path.read_bytes()
    for content in damaged(whole):
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"{path.name} is damaged .* `dlguide data fetch"):
            datasets.load(name, folder)
    path.write_bytes(whole)
    assert datasets.load(name, folder).classes == 10


def test_files_that_were_exchanged_are_refused(fashion, cifar):
    folder, _ = fashion
    for one, other in (
        [folder / "fashion_mnist" / name for name in (IDX_FILES[0], IDX_FILES[2])],
        [folder / f"cifar10/cifar-10-batches-bin/data_batch_{number}.bin" for number in (1, 2)],
    ):
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        with pytest.raises(DataError, match=rf"{one.name} is damaged or not the original"):
            datasets.load(one.relative_to(folder).parts[0], folder)


def test_cifar10_is_trained_by_its_name_with_a_net_that_takes_it(cifar, monkeypatch):
    from dlguide.training import SingleProcess, fit

    folder, _ = cifar
    monkeypatch.setenv("DLGUIDE_DATA", str(folder))

    def small():
        import keras

        layers = [keras.Input((32, 32, 3)), keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential(layers)

    run = fit(small, data="cifar10", batch_per_rank=10, comm=SingleProcess())
    assert (run.data, run.samples, run.steps_per_epoch) == ("cifar10", 20, 2)
    assert run.parameters == (32 * 32 * 3 + 1) * 10
    with pytest.raises(ValueError, match="a function as `model` that builds one for 32 x 32 x 3"):
        fit("mnist_cnn", data="cifar10", batch_per_rank=10, comm=SingleProcess())
