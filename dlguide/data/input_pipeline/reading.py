"""The first stage: whole batches read by Python, with their labels and random numbers."""

from __future__ import annotations

import re
import threading
from typing import Any

import numpy as np

from dlguide.data.input_pipeline.order import draws
from dlguide.data.input_pipeline.sources import Source
from dlguide.errors import DataError


class Cache:
    """What has been read, kept in memory: bytes as they were stored, or decoded pixels.

    A rank meets other samples in each epoch, so after some epochs each rank holds nearly the
    whole data set: count on `ranks` times its size for a node.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self.nbytes = kind, 0
        self._held: dict[int, tuple[bytes, tuple[int, ...], np.ndarray]] = {}
        self._lock = threading.Lock()

    def get(self, number: int) -> tuple[bytes, tuple[int, ...], np.ndarray] | None:
        """Give bytes, shape and labels of a sample, or None where it has not been read yet."""
        return self._held.get(number)

    def put(self, number: int, data: bytes, shape: tuple[int, ...], labels: np.ndarray) -> None:
        """Keep a sample."""
        with self._lock:
            if number not in self._held:
                self._held[number] = (data, shape, labels)
                self.nbytes += len(data)

    def __getstate__(self) -> str:
        return self.kind  # another process reads for itself

    def __setstate__(self, kind: str) -> None:
        self.__init__(kind)


class Reader:
    """Reads one epoch's samples of one rank, piece by piece; several threads may."""

    def __init__(
        self,
        source: Source,
        cache: Cache,
        throttle: Any,
        pieces: list[np.ndarray],
        chance: tuple[int, int, int],
        decoder: Any,
        stack: str | None = None,
    ) -> None:
        self.source, self.cache, self.throttle, self.stack = source, cache, throttle, stack
        self.pieces, self.chance, self.decoder = pieces, chance, decoder
        self.failures: dict[int, Exception] = {}

    def read(self, piece: int) -> tuple[Any, ...]:
        """Read a piece."""
        numbers = self.pieces[int(piece)]
        seed, epoch, count = self.chance
        random = draws(seed, epoch, numbers, count)
        try:
            if not self.source.encoded:
                images, labels = self.source.read(numbers, self.throttle)
                return images, labels, random
            if self.cache.kind == "none":
                data, labels = self.source.read(numbers, self.throttle)
                shapes = np.zeros((len(data), 3), np.int32)
            else:
                data, shapes, labels = self._cached(numbers)
                if self.stack is not None:
                    return self._stacked(numbers, data, shapes), labels, random
        except Exception as error:
            # TensorFlow hands on the text of an error; `Epoch` raises the error itself.
            self.failures[int(piece)] = error
            raise
        return np.array(data, object), shapes, labels, random

    def _cached(self, numbers: np.ndarray) -> tuple[list[bytes], np.ndarray, np.ndarray]:
        held = [self.cache.get(number) for number in numbers.tolist()]
        missing = np.array([n for n, one in zip(numbers, held, strict=True) if one is None], int)
        if len(missing):
            data, labels = self.source.read(missing, self.throttle)
            fresh = {}
            for number, one, its_labels in zip(missing.tolist(), data, labels, strict=True):
                shape: tuple[int, ...] = (0, 0, 0)
                if self.cache.kind == "decoded":
                    one, shape = self._decoded(number, one)
                self.cache.put(number, one, shape, its_labels)
                fresh[number] = one, shape, its_labels
            held = [
                fresh[n] if one is None else one
                for n, one in zip(numbers.tolist(), held, strict=True)
            ]
        data, shapes, labels = zip(*held, strict=True)
        return list(data), np.array(shapes, np.int32), np.array(labels, np.int32)

    def _stacked(self, numbers: np.ndarray, data: list[bytes], shapes: np.ndarray) -> np.ndarray:
        """Put pixels of equal shape into one array."""
        other = int(np.argmax((shapes != shapes[0]).any(axis=1)))
        if other:
            found = [(int(numbers[at]), tuple(shapes[at].tolist())) for at in (0, other)]
            raise unequal(self.stack, *found)
        return np.frombuffer(b"".join(data), np.uint8).reshape(len(data), *shapes[0])

    def _decoded(self, number: int, data: bytes) -> tuple[bytes, tuple[int, ...]]:
        try:
            pixels = np.asarray(self.decoder(data))
        except Exception as error:
            raise undecodable(self.source, number, error) from error
        return pixels.tobytes(), pixels.shape


def unequal(name: str, one: tuple[int, Any], other: tuple[int, Any]) -> DataError:
    """Make the error for images of different sizes, which no batch can hold."""
    return DataError(
        f"{name}: images differ in size: sample {one[0]} has {one[1]}, sample {other[0]} has "
        f"{other[1]} (rows, columns, channels). Add `ResizedCrop` or `CentreCrop`."
    )


def undecodable(source: Source, number: int, error: Exception) -> DataError:
    """Make the error for a sample that was read well and is no image."""
    return source.damaged(number, f"no image that can be decoded: {said(error)}")


def said(error: Exception) -> str:
    """Take the first line of an error's text, without TensorFlow's own places."""
    text = str(getattr(error, "message", error)).strip().split("\n")[0]
    return re.sub(r"\{\{.*?\}\} *| *\[Op:.*\]|[. ]+$", "", text)
