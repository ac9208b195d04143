"""Where samples come from: what all sources have in common, arrays, and lists of files."""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.manifest import open_file, read_exactly
from dlguide.errors import require

REQUEST_NBYTES = 1 << 20


class Source(ABC):
    """Numbered samples; `read` may be called from several threads at once.

    Attributes: name, count (samples), label_shape (of one sample's labels), encoded (whether
    `read` gives bytes that have yet to be decoded).
    """

    name: str
    count: int
    label_shape: tuple[int, ...] = ()
    encoded = True

    @abstractmethod
    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        """Read samples.

        Args:
            numbers: of the samples, int64.
            throttle: makes it slow, or None.

        Returns:
            tuple: list of bytes, or array of images; labels, int32.

        Raises:
            DataError: when a sample is not as it was written; names file and record.
        """

    @abstractmethod
    def damaged(self, number: int, what: str) -> DamageError:
        """Make the error for a sample that was read well and cannot be used.

        Args:
            number: of the sample.
            what: is wrong.

        Returns:
            DamageError: to raise.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the files that nobody reads at the moment; reading opens them again."""

    def labels_of(self, labels: list[tuple[int, ...]], numbers: np.ndarray) -> np.ndarray:
        """Put labels into one array."""
        wanted = math.prod(self.label_shape)
        for number, one in zip(numbers.tolist(), labels, strict=True):
            if len(one) != wanted:
                raise self.damaged(number, f"has {len(one)} labels, the first sample {wanted}")
            if not all(map(_in_32_bits, one)):
                raise self.damaged(number, f"has labels {one} that 32 bits do not hold")
        return np.array(labels, np.int32).reshape(len(labels), *self.label_shape)


class ArraySource(Source):
    """Images that lie in memory; they are used as they are.

    Args:
        name: of the data.
        images: uint8, or float32 in [0, 1]; shape (samples, rows, columns, channels).
        labels: whole numbers within 32 bits; shape (samples,) or (samples, labels).
    """

    encoded = False

    def __init__(self, name: str, images: np.ndarray, labels: np.ndarray) -> None:
        require(images.ndim == 4, "images", "have 4 dimensions", images.shape)
        require(len(labels) == len(images), "labels", f"be {len(images)}", len(labels))
        require(len(images) > 0, "images", "hold at least one sample", len(images))
        must, then = "be uint8 or float32", "Scale others to [0, 1], then `astype(np.float32)`."
        require(images.dtype in (np.uint8, np.float32), "images", must, str(images.dtype), then)
        whole = np.issubdtype(labels.dtype, np.integer)
        require(whole, "labels", "be whole numbers", str(labels.dtype), "Number the classes.")
        for label in (labels.min(), labels.max()) if labels.size else ():
            require(_in_32_bits(label), "labels", "fit into 32 bits", int(label))
        self.name, self.count = name, len(images)
        self.images, self.labels = images, labels.astype(np.int32, copy=False)
        self.label_shape = labels.shape[1:]

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        """Gather whole batches, without a step for each sample."""
        images = self.images[numbers]
        if throttle is not None:
            throttle.take(0, 1, images.nbytes)
        return images, self.labels[numbers]

    def close(self) -> None:
        """Nothing is open."""

    def damaged(self, number: int, what: str) -> DamageError:
        """Name the image."""
        return DamageError(Damage(self.name, what, number), "Look at the array.")


class FileSource(Source):
    """A list of files, each with its label; nothing says what their bytes should be.

    Args:
        files: (path, label or tuple of labels) of each; a link to a file is followed, labels are
            whole numbers within 32 bits.
        name: of the data.
    """

    def __init__(self, files: Sequence[tuple[Any, Any]], name: str) -> None:
        require(len(files) > 0, "source", "hold at least one file", len(files))
        self.name, self.count = name, len(files)
        self.paths = tuple(os.path.abspath(path) for path, _ in files)
        first = files[0][1]
        self.label_shape = (len(first),) if isinstance(first, tuple | list) else ()
        self.labels = [_whole(label, path) for path, label in files]

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        """Read file after file."""
        data = []
        for number in numbers.tolist():
            path = Path(self.paths[number])
            descriptor, nbytes = _opened(path)
            try:
                data.append(read_exactly(descriptor, nbytes, 0, path))
            finally:
                os.close(descriptor)
            if throttle is not None:
                throttle.take(1, max(1, math.ceil(nbytes / REQUEST_NBYTES)), nbytes)
        return data, self.labels_of([self.labels[number] for number in numbers], numbers)

    def close(self) -> None:
        """Nothing stays open."""

    def damaged(self, number: int, what: str) -> DamageError:
        """Name the file."""
        damage = Damage(self.paths[number], what, number)
        return DamageError(damage, "Restore the file from its source, or take it off the list.")


def _in_32_bits(label: Any) -> bool:
    return -(2**31) <= label < 2**31


def _whole(label: Any, path: Any) -> tuple[int, ...]:
    """Give one label or several as a tuple of ints."""
    labels = tuple(label) if isinstance(label, tuple | list) else (label,)
    fit = all(isinstance(one, Integral) and _in_32_bits(one) for one in labels)
    must = "have whole numbers within 32 bits as labels"
    require(fit, "source", must, label, f"It is the label of {os.fspath(path)}.")
    return tuple(int(one) for one in labels)


def _opened(path: Path) -> tuple[int, int]:
    """Open a file, also one behind links: a list of files often consists of these."""
    try:
        return open_file(path)
    except DamageError:
        if not path.is_symlink():
            raise
    return open_file(Path(os.path.realpath(path)))
