"""How an array becomes few bytes and back: top-k, threshold, one bit, bfloat16, on NumPy arrays.

A codec says with `payload` how many bytes its message has before there is any array. What is not
finite is never hidden: it comes out of every codec as not finite again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from dlguide.errors import require, require_positive


class Codec(ABC):
    """A way to write an array as a message of few bytes, and to read it again, not exactly."""

    @abstractmethod
    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the size of a message."""

    @abstractmethod
    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write an array as a message."""

    @abstractmethod
    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Read a message."""


@dataclass(frozen=True)
class TopK(Codec):
    """Send the largest numbers and their places, and no others.

    k = fraction of the size, at least 1; a message has k (4 + itemsize) bytes. Of equal sizes the
    number with the lower place goes first, so that every run chooses alike.

    Source:
        Aji and Heafield, EMNLP (2017); Lin et al., Deep Gradient Compression, ICLR (2018).

    >>> TopK(0.5).decode(TopK(0.5).encode(np.array([1.0, -3.0, 2.0, -2.0])), (4,), np.float64)
    array([ 0., -3.,  2.,  0.])
    """

    fraction: float = 0.01

    def __post_init__(self) -> None:
        right = require_positive(self.fraction, "fraction") <= 1
        require(right, "fraction", "be above 0 and at most 1", self.fraction)

    def count(self, size: int) -> int:
        """Give k for an array of `size` numbers."""
        return min(size, max(1, round(self.fraction * size)))

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the size of a message (bytes)."""
        return self.count(math.prod(shape)) * (4 + itemsize)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the k largest numbers, then their places, as bytes."""
        flat = array.reshape(-1)
        places = largest(flat, self.count(flat.size))
        return joined(flat[places], places.astype(np.int32))

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Put the numbers back at their places, 0 elsewhere."""
        array = np.zeros(math.prod(shape), dtype)
        at = self.count(array.size) * array.itemsize
        array[message[at:].view(np.int32)] = message[:at].view(dtype)
        return array.reshape(shape)


@dataclass(frozen=True)
class Threshold(Codec):
    """Send for each number one of +threshold, 0, -threshold, in 2 bits: n / 4 bytes.

    A number of at least the threshold becomes the threshold, whatever it is; the rest of it waits
    in the error. Strom, who began it, sent 4 bytes for each number beyond the threshold and none
    for the others: fewer bytes than this while less than 1 in 16 is beyond it. The fourth code
    stands for what is not finite.

    Source:
        Strom, Interspeech (2015); the 2-bit compression of MXNet's kvstore.

    >>> Threshold(0.5).encode(np.array([0.7, -0.2, -9.0, 0.5, 0.1]))
    array([73,  0], dtype=uint8)
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        require_positive(self.threshold, "threshold")

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the size of a message (bytes)."""
        return -(-math.prod(shape) // 4)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the codes, four in a byte, the first in the highest bits."""
        flat = array.reshape(-1)
        codes = np.zeros(4 * self.payload(array.shape, 0), np.uint8)
        here = codes[: flat.size]
        here[flat >= self.threshold], here[flat <= -self.threshold] = 1, 2
        here[~np.isfinite(flat)] = 3
        return codes.reshape(-1, 4) @ np.array([64, 16, 4, 1], np.uint8)

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Put a number of three (or not a number) for each code."""
        codes = (message[:, None] >> np.array([6, 4, 2, 0], np.uint8)) & 3
        values = np.array([0, self.threshold, -self.threshold, np.nan], dtype)
        return values[codes.reshape(-1)[: math.prod(shape)]].reshape(shape)


@dataclass(frozen=True)
class OneBit(Codec):
    """Send the sign of each number, and for each column the mean of those with that sign.

    A column is what belongs to one output of a layer: all places of the last dimension, an array
    of one dimension being one column. The means are the two numbers with the least squared
    error. n / 8 bytes, rounded up, and 2 numbers a column.

    Source:
        Seide et al., 1-Bit SGD, Interspeech (2014), section 3; CNTK's `DataParallelSGD`.

    >>> OneBit().decode(OneBit().encode(np.array([1.0, 3.0, -1.0])), (3,), np.float64)
    array([ 2.,  2., -1.])
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the size of a message (bytes)."""
        return -(-math.prod(shape) // 8) + 2 * columns(shape) * itemsize

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the means of negative and of other numbers by column, then the signs."""
        matrix = array.reshape(-1, columns(array.shape))
        positive = matrix >= 0
        means = [
            np.where(chosen, matrix, 0).sum(0, dtype=array.dtype)
            / np.maximum(chosen.sum(0), 1).astype(array.dtype)
            for chosen in (~positive, positive)
        ]
        return joined(np.stack(means), np.packbits(positive))

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Put for each sign the mean of its column."""
        width, size = columns(shape), math.prod(shape)
        at = 2 * width * np.dtype(dtype).itemsize
        low, high = message[:at].view(dtype).reshape(2, width)
        positive = np.unpackbits(message[at:], count=size).reshape(-1, width)
        return np.where(positive, high, low).reshape(shape)


@dataclass(frozen=True)
class BFloat16(Codec):
    """Send each number in 16 bits with the exponent of float32: 2 n bytes.

    Neither MPI nor Horovod 0.28 adds up bfloat16, so that the words are gathered and every rank
    adds them in the array's own precision, which rounds once only.
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the size of a message (bytes)."""
        return 2 * math.prod(shape)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Round to the nearest number of bfloat16."""
        import ml_dtypes

        return array.reshape(-1).astype(ml_dtypes.bfloat16).view(np.uint8)

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Widen again."""
        import ml_dtypes

        return message.view(ml_dtypes.bfloat16).astype(dtype).reshape(shape)


def columns(shape: tuple[int, ...]) -> int:
    """Give the number of columns of an array seen as a matrix, one for each output of a layer."""
    return shape[-1] if len(shape) > 1 else 1


def largest(flat: np.ndarray, count: int) -> np.ndarray:
    """Find the places of the largest numbers, those with lower places first among equals.

    >>> largest(np.array([1.0, -2.0, 2.0, 2.0]), 2)
    array([1, 2])
    """
    sizes = np.abs(flat)
    sizes[np.isnan(sizes)] = np.inf
    least = np.partition(sizes, flat.size - count)[flat.size - count]
    above = np.flatnonzero(sizes > least)
    equal = np.flatnonzero(sizes == least)[: count - above.size]
    return np.sort(np.concatenate([above, equal]))


def joined(*arrays: np.ndarray) -> np.ndarray:
    """Join arrays to one message."""
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])
