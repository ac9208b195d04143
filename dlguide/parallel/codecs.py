"""Codecs of gradients: top-k, threshold, one bit and bfloat16, for NumPy and for TensorFlow.

A codec encodes an array as a message of few bytes and decodes it, with losses. `payload` is the
size of the message, known before there is any array. Values that are not finite come out of every
codec as not finite. Messages for TensorFlow hold the same numbers, in one or two tensors instead
of one row of bytes, and can be made in graphs.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlguide.errors import require, require_positive


class Codec(ABC):
    """Encodes an array as a message of few bytes and decodes it, with losses."""

    @abstractmethod
    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Return the size of a message (bytes)."""

    @abstractmethod
    def encode(self, array: np.ndarray) -> np.ndarray:
        """Return the message of an array, as bytes."""

    @abstractmethod
    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return the array that a message describes."""

    @abstractmethod
    def encode_tensor(self, tensor: Any) -> tuple[Any, ...]:
        """Return the message of a TensorFlow tensor, as one or two tensors."""

    @abstractmethod
    def decode_tensor(self, message: Sequence[Any], shape: Any, dtype: Any) -> Any:
        """Return the TensorFlow tensor that a message describes."""


@dataclass(frozen=True)
class TopK(Codec):
    """Send the largest values and their indices, and no others.

    k = fraction of the size, at least 1; a message has k (4 + itemsize) bytes. Of equal
    magnitudes the one with the lower index goes first, so that every run chooses alike.

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
        """Return k for an array of `size` values."""
        return min(size, max(1, round(self.fraction * size)))

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return self.count(math.prod(shape)) * (4 + itemsize)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the k largest values, then their indices, as bytes."""
        flat = array.reshape(-1)
        places = largest(flat, self.count(flat.size))
        return joined(flat[places], places.astype(np.int32))

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Put the values back at their indices, 0 elsewhere."""
        array = np.zeros(math.prod(shape), dtype)
        at = self.count(array.size) * array.itemsize
        array[message[at:].view(np.int32)] = message[:at].view(dtype)
        return array.reshape(shape)

    def encode_tensor(self, tensor: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        flat = tf.reshape(tensor, [-1])
        infinite = tf.constant(math.inf, flat.dtype)
        sizes = tf.where(tf.math.is_nan(flat), infinite, tf.abs(flat))
        _sizes, places = tf.math.top_k(sizes, self.count(flat.shape[0]))  # lower places first
        return tf.gather(flat, places), places

    def decode_tensor(self, message: Sequence[Any], shape: Any, dtype: Any) -> Any:
        import tensorflow as tf

        values, places = message
        return tf.reshape(tf.scatter_nd(places[:, None], values, [math.prod(tuple(shape))]), shape)


@dataclass(frozen=True)
class Threshold(Codec):
    """Send +threshold, 0 or -threshold for each value, in 2 bits: n / 4 bytes.

    A value of at least the threshold becomes the threshold, however large it is; the remainder
    stays in the error. Strom's original sent 4 bytes for each value beyond the threshold and none
    for the others: fewer bytes than this while less than 1 in 16 is beyond it. The fourth code
    marks values that are not finite.

    Source:
        Strom, Interspeech (2015); the 2-bit compression of MXNet's kvstore.

    >>> Threshold(0.5).encode(np.array([0.7, -0.2, -9.0, 0.5, 0.1]))
    array([73,  0], dtype=uint8)
    """

    threshold: float = 0.5

    def __post_init__(self) -> None:
        require_positive(self.threshold, "threshold")

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
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
        """Return one of the three values (or NaN) for each code."""
        codes = (message[:, None] >> np.array([6, 4, 2, 0], np.uint8)) & 3
        values = np.array([0, self.threshold, -self.threshold, np.nan], dtype)
        return values[codes.reshape(-1)[: math.prod(shape)]].reshape(shape)

    def encode_tensor(self, tensor: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        flat = tf.reshape(tensor, [-1])
        limit = tf.constant(self.threshold, flat.dtype)
        codes = tf.where(flat >= limit, 1, tf.where(flat <= -limit, 2, 0))
        return (_packed(tf.where(tf.math.is_finite(flat), codes, 3), 2),)

    def decode_tensor(self, message: Sequence[Any], shape: Any, dtype: Any) -> Any:
        import tensorflow as tf

        values = tf.constant([0, self.threshold, -self.threshold, math.nan], dtype)
        return tf.reshape(
            tf.gather(values, _unpacked(message[0], 2, math.prod(tuple(shape)))), shape
        )


@dataclass(frozen=True)
class OneBit(Codec):
    """Send the sign of each value, and for each column the mean of the values with that sign.

    A column belongs to one output of a layer, an index of the last dimension; an array of one
    dimension is one column. The means are the two values with the least squared error. n / 8
    bytes, rounded up, and 2 values per column.

    Source:
        Seide et al., 1-Bit SGD, Interspeech (2014), section 3; CNTK's `DataParallelSGD`.

    >>> OneBit().decode(OneBit().encode(np.array([1.0, 3.0, -1.0])), (3,), np.float64)
    array([ 2.,  2., -1.])
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return -(-math.prod(shape) // 8) + 2 * columns(shape) * itemsize

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Write the means of the negative and of the other values by column, then the signs."""
        matrix = array.reshape(-1, columns(array.shape))
        positive = matrix >= 0
        means = [
            np.where(chosen, matrix, 0).sum(0, dtype=array.dtype)
            / np.maximum(chosen.sum(0), 1).astype(array.dtype)
            for chosen in (~positive, positive)
        ]
        return joined(np.stack(means), np.packbits(positive))

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return for each sign the mean of its column."""
        width, size = columns(shape), math.prod(shape)
        at = 2 * width * np.dtype(dtype).itemsize
        low, high = message[:at].view(dtype).reshape(2, width)
        positive = np.unpackbits(message[at:], count=size).reshape(-1, width)
        return np.where(positive, high, low).reshape(shape)

    def encode_tensor(self, tensor: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        matrix = tf.reshape(tensor, [-1, columns(tuple(tensor.shape))])
        positive = matrix >= 0
        means = []
        for chosen in (tf.logical_not(positive), positive):
            count = tf.math.count_nonzero(chosen, 0, dtype=matrix.dtype)
            total = tf.reduce_sum(tf.where(chosen, matrix, tf.zeros_like(matrix)), 0)
            means.append(total / tf.maximum(count, tf.ones_like(count)))
        codes = tf.cast(tf.reshape(positive, [-1]), tf.int32)
        return tf.concat(means, 0), _packed(codes, 1)

    def decode_tensor(self, message: Sequence[Any], shape: Any, dtype: Any) -> Any:
        import tensorflow as tf

        low, high = tf.split(message[0], 2)
        codes = _unpacked(message[1], 1, math.prod(tuple(shape)))
        return tf.reshape(
            tf.where(tf.reshape(codes, [-1, columns(tuple(shape))]) == 1, high, low), shape
        )


@dataclass(frozen=True)
class BFloat16(Codec):
    """Send each value in 16 bits with the exponent of float32: 2 n bytes.

    Neither MPI nor Horovod 0.28 adds bfloat16, so the messages are gathered, and every rank adds
    them in the array's own precision, which rounds only once.
    """

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        return 2 * math.prod(shape)

    def encode(self, array: np.ndarray) -> np.ndarray:
        """Round to the nearest bfloat16."""
        import ml_dtypes

        return array.reshape(-1).astype(ml_dtypes.bfloat16).view(np.uint8)

    def decode(self, message: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Widen to the dtype of the array."""
        import ml_dtypes

        return message.view(ml_dtypes.bfloat16).astype(dtype).reshape(shape)

    def encode_tensor(self, tensor: Any) -> tuple[Any, ...]:
        import tensorflow as tf

        return (tf.bitcast(tf.cast(tf.reshape(tensor, [-1]), tf.bfloat16), tf.uint16),)

    def decode_tensor(self, message: Sequence[Any], shape: Any, dtype: Any) -> Any:
        import tensorflow as tf

        return tf.reshape(tf.cast(tf.bitcast(message[0], tf.bfloat16), dtype), shape)


def columns(shape: tuple[int, ...]) -> int:
    """Return the number of columns of an array as a matrix, one for each output of a layer."""
    return shape[-1] if len(shape) > 1 else 1


def largest(flat: np.ndarray, count: int) -> np.ndarray:
    """Return the indices of the largest magnitudes; among equals those with lower indices.

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
    """Join arrays to one message of bytes."""
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])


def _packed(codes: Any, bits: int) -> Any:
    """Write codes of so many bits one after the other into bytes, the first in the highest bits."""
    import tensorflow as tf

    codes = tf.pad(codes, [[0, -codes.shape[0] % (8 // bits)]])
    weights = tf.constant([1 << (8 - bits - at) for at in range(0, 8, bits)], tf.int32)
    return tf.cast(tf.reduce_sum(tf.reshape(codes, [-1, 8 // bits]) * weights, 1), tf.uint8)


def _unpacked(message: Any, bits: int, size: int) -> Any:
    import tensorflow as tf

    places = tf.constant([8 - bits - at for at in range(0, 8, bits)], tf.uint8)
    codes = tf.bitwise.right_shift(message[:, None], places)
    codes = tf.bitwise.bitwise_and(codes, tf.constant((1 << bits) - 1, tf.uint8))
    return tf.cast(tf.reshape(codes, [-1])[:size], tf.int32)
