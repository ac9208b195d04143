"""Writing a `tf.train.Example` with features of any name, without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from dlguide.errors import require

Values = Sequence[bytes] | Sequence[int] | Sequence[float]
_LISTS = {bytes: 1, float: 2, int: 3}


def encode_features(features: Mapping[str, Values]) -> bytes:
    """Write features as the message that `formats.features` and TensorFlow read.

    Source:
        Protocol Buffers, Encoding (wire format); TensorFlow, example.proto and feature.proto.
    """
    entries = []
    for name, values in features.items():
        kinds = {type(value) for value in values}
        known = len(kinds) <= 1 and kinds <= set(_LISTS)
        require(known, name, "be a list of bytes, of whole numbers or of floats", list(values))
        feature = b""
        for kind in kinds:
            feature = _part(_LISTS[kind], _list(kind, values))
        entries.append(_part(1, _part(1, name.encode()) + _part(2, feature)))
    return _part(1, b"".join(entries))


def _list(kind: type, values: Values) -> bytes:
    if kind is bytes:
        return b"".join(_part(1, value) for value in values)
    if kind is float:
        return _part(1, struct.pack(f"<{len(values)}f", *values))
    return _part(1, b"".join(_number(value) for value in values))


def _part(number: int, contents: bytes) -> bytes:
    """Join a field's number, the length of its contents and the contents."""
    return _number(number << 3 | 2) + _number(len(contents)) + contents


def _number(value: int) -> bytes:
    """Write a whole number 7 bits at a time, the lowest first; a negative one as 64 bits."""
    rest, groups = value % 2**64, []
    while rest > 127:
        groups.append(rest % 128 + 128)
        rest //= 128
    return bytes([*groups, rest])
