"""Reading a data set from its published files into memory."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np

from dlguide.data.datasets.images import Dataset
from dlguide.data.datasets.originals import ORIGINALS, Original, find, paths, restoring
from dlguide.data.idx import read_idx
from dlguide.errors import DataError, require_known


def names() -> tuple[str, ...]:
    """List the data sets that `load` knows, those that come with the course first.

    Returns:
        tuple: names that `load` takes. `present` says which of them are on this machine.
    """
    return tuple(ORIGINALS)


def present(folder: str | os.PathLike | None = None) -> tuple[str, ...]:
    """List the data sets whose files are on this machine.

    Args:
        folder: the data folder, as for `load`.

    Returns:
        tuple: names out of `names()`; whether the files are undamaged, `load` finds out.

    Raises:
        MissingComponentError: when the data folder does not exist.
    """
    return tuple(name for name in ORIGINALS if all(path.is_file() for path in paths(name, folder)))


def image_shape(name: str) -> tuple[int, int, int]:
    """Tell the shape of a data set's images without reading it.

    Args:
        name: one of `names()`.

    Returns:
        tuple: rows, columns, channels.

    Raises:
        ValueError: when there is no such data set.

    >>> image_shape("cifar10")
    (32, 32, 3)
    """
    return ORIGINALS[require_known(name, names(), "name")].image


def load(name: str = "mnist", folder: str | os.PathLike | None = None) -> Dataset:
    """Read a data set from its files as first published.

    Each file is held against its SHA-256 checksum before it is used, so that a damaged or
    truncated one is never trained on. Nothing is downloaded: "mnist" comes with the course,
    `dlguide data fetch` gets the others. CIFAR-10 is read in its binary version only; the one
    for Python is a pickle, which can run any code.

    In float32 the images of "mnist" and "fashion_mnist" take 220 MB, those of "cifar10" 737 MB.

    Args:
        name: one of `names()`.
        folder: the data folder that holds a folder of this name; None takes $DLGUIDE_DATA or the
            repository's `data`.

    Returns:
        Dataset: for "mnist" and "fashion_mnist" images (60000, 28, 28, 1) and
            (10000, 28, 28, 1), for "cifar10" (50000, 32, 32, 3) and (10000, 32, 32, 3).

    Raises:
        ValueError: when there is no such data set; the message lists those there are.
        DataError: when a file is damaged; the message names the file, the expected and the
            found checksum and how to restore it.
        MissingComponentError: when the data folder or the data set is not there; says how to
            get it, also without a network.

    Source:
        LeCun, Cortes, Burges: The MNIST database of handwritten digits (1998); Xiao, Rasul,
        Vollgraf: Fashion-MNIST, arXiv:1708.07747; Krizhevsky: Learning Multiple Layers of
        Features from Tiny Images (2009).
    """
    require_known(name, names(), "name")
    found = find(name, folder)
    read = _read_cifar if name == "cifar10" else _read_idx_files
    return read(name, list(zip(found, ORIGINALS[name].files, strict=True)))


def _read_idx_files(name: str, files: list[tuple[Path, Original]]) -> Dataset:
    parts = [
        read_idx(path, file.sha256, file.shape, restoring(name, path.parent))
        for path, file in files
    ]
    classes = ORIGINALS[name].classes
    for number in (1, 3):
        _require_labels(parts[number], classes, files[number][0], name)
    train_images, train_labels, test_images, test_labels = parts
    return Dataset(
        name,
        _as_images(train_images),
        train_labels.astype(np.int32),
        _as_images(test_images),
        test_labels.astype(np.int32),
        classes,
    )


def _read_cifar(name: str, files: list[tuple[Path, Original]]) -> Dataset:
    classes = ORIGINALS[name].classes
    splits = []
    for part in (files[:-1], files[-1:]):
        total = sum(file.shape[0] for _, file in part)
        images = np.empty((total, *ORIGINALS[name].image), np.float32)
        labels = np.empty(total, np.int32)
        at = 0
        for path, file in part:
            records = _read_records(path, file, name)
            _require_labels(records[:, 0], classes, path, name)
            rows = slice(at, at + len(records))
            labels[rows] = records[:, 0]
            # a file has all red values of an image, then all green, then all blue ones
            planes = records[:, 1:].reshape(-1, 3, 32, 32)
            np.divide(planes.transpose(0, 2, 3, 1), np.float32(255), out=images[rows])
            at = rows.stop
        splits += [images, labels]
    return Dataset(name, *splits, classes)


def _read_records(path: Path, file: Original, name: str) -> np.ndarray:
    try:
        contents = path.read_bytes()
    except OSError as error:
        then = restoring(name, path.parent)
        raise DataError(f"{path} cannot be read: {error.strerror}. {then}") from error
    found = hashlib.sha256(contents).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{path} is damaged or not the original file: expected SHA-256 {file.sha256} "
            f"({file.nbytes} bytes), found {found} ({len(contents)} bytes). "
            f"{restoring(name, path.parent)}"
        )
    if len(contents) != file.shape[0] * file.shape[1]:
        shape = f"{file.shape[0]} records of {file.shape[1]} bytes"
        then = restoring(name, path.parent)
        raise DataError(f"{path} has {len(contents)} bytes, must hold {shape}. {then}")
    return np.frombuffer(contents, np.uint8).reshape(file.shape)


def _require_labels(labels: np.ndarray, classes: int, path: Path, name: str) -> None:
    wrong = np.flatnonzero(labels >= classes)
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"{path}, sample {first}: label {int(labels[first])} must be below {classes}. "
            f"{restoring(name, path.parent)}"
        )


def _as_images(pixels: np.ndarray) -> np.ndarray:
    images = pixels.astype(np.float32)[..., np.newaxis]
    images /= 255
    return images
