"""The codecs of compressed gradients once more, on TensorFlow's tensors and in graphs.

Messages hold what those of `codecs` hold, as one or two tensors instead of one row of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dlguide.parallel.codecs import BFloat16, Codec, OneBit, Threshold, TopK, columns


def encode(codec: Codec, tensor: Any) -> tuple[Any, ...]:
    """Write a tensor as a message."""
    return _CODECS[type(codec)][0](codec, tensor)


def decode(codec: Codec, message: Sequence[Any], shape: Any, dtype: Any) -> Any:
    """Read a message."""
    import tensorflow as tf

    return tf.reshape(_CODECS[type(codec)][1](codec, message, tuple(shape), dtype), shape)


def _encode_top_k(codec: TopK, tensor: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    flat = tf.reshape(tensor, [-1])
    infinite = tf.constant(math.inf, flat.dtype)
    sizes = tf.where(tf.math.is_nan(flat), infinite, tf.abs(flat))
    _sizes, places = tf.math.top_k(sizes, codec.count(flat.shape[0]))  # lower places first
    return tf.gather(flat, places), places


def _decode_top_k(codec: TopK, message: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Any:
    import tensorflow as tf

    values, places = message
    return tf.scatter_nd(places[:, None], values, [math.prod(shape)])


def _encode_threshold(codec: Threshold, tensor: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    flat = tf.reshape(tensor, [-1])
    limit = tf.constant(codec.threshold, flat.dtype)
    codes = tf.where(flat >= limit, 1, tf.where(flat <= -limit, 2, 0))
    return (_packed(tf.where(tf.math.is_finite(flat), codes, 3), 2),)


def _decode_threshold(
    codec: Threshold, message: Sequence[Any], shape: tuple[int, ...], dtype: Any
) -> Any:
    import tensorflow as tf

    values = tf.constant([0, codec.threshold, -codec.threshold, math.nan], dtype)
    return tf.gather(values, _unpacked(message[0], 2, math.prod(shape)))


def _encode_one_bit(codec: OneBit, tensor: Any) -> tuple[Any, ...]:
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


def _decode_one_bit(
    codec: OneBit, message: Sequence[Any], shape: tuple[int, ...], dtype: Any
) -> Any:
    import tensorflow as tf

    low, high = tf.split(message[0], 2)
    codes = _unpacked(message[1], 1, math.prod(shape))
    return tf.where(tf.reshape(codes, [-1, columns(shape)]) == 1, high, low)


def _encode_bfloat16(codec: BFloat16, tensor: Any) -> tuple[Any, ...]:
    import tensorflow as tf

    return (tf.bitcast(tf.cast(tf.reshape(tensor, [-1]), tf.bfloat16), tf.uint16),)


def _decode_bfloat16(
    codec: BFloat16, message: Sequence[Any], shape: tuple[int, ...], dtype: Any
) -> Any:
    import tensorflow as tf

    return tf.cast(tf.bitcast(message[0], tf.bfloat16), dtype)


def _packed(codes: Any, bits: int) -> Any:
    """Write codes of so many bits one after the other into bytes, the first highest."""
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


_CODECS = {
    TopK: (_encode_top_k, _decode_top_k),
    Threshold: (_encode_threshold, _decode_threshold),
    OneBit: (_encode_one_bit, _decode_one_bit),
    BFloat16: (_encode_bfloat16, _decode_bfloat16),
}
