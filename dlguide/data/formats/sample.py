"""One sample and its bytes: a `tf.train.Example` message, written and read without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# How the entry of each feature begins after its length, in the order in which they are written.
_HEADS = tuple(
    bytes([10, len(name)]) + name + b"\x12" for name in (b"key", b"labels", b"number", b"data")
)


class MalformedError(ValueError):
    """Bytes that are not the message they should be; the reader adds file and record."""


@dataclass(frozen=True)
class Sample:
    """One sample: its data as bytes, its labels as whole numbers, and a name.

    This is the smallest record that serves all: an image stays encoded (JPEG, PNG), an array is
    its raw bytes or an npy file; `labels` holds one class number, 14 zeros and ones of a chest
    X-ray, or nothing; `key` says which original it is (a file's name, a patient's number), so
    that one wrong sample among a million can be found again.
    """

    data: bytes
    labels: tuple[int, ...] = ()
    key: str = ""

    @property
    def label(self) -> int:
        """The only label; an error where there are none or several."""
        text = "hold exactly one label where `label` is asked for"
        require(len(self.labels) == 1, "labels", text, self.labels, "Use `labels`.")
        return self.labels[0]


@dataclass(frozen=True)
class Fields:
    """How the three parts of a sample are called in somebody else's records.

    data (name of a bytes feature), labels (of an int64 feature, or empty for none), key (of a
    bytes feature, or empty for none). ImageNet as it is usually converted has
    `Fields("image/encoded", "image/class/label", "image/filename")`, with labels from 1.
    """

    data: str = "data"
    labels: str = "labels"
    key: str = "key"


def require_sample(sample: Any) -> Sample:
    """Return the sample when it can be written, in every format and without loss."""
    require(isinstance(sample, Sample), "sample", "be a formats.Sample", type(sample).__name__)
    require(isinstance(sample.data, bytes), "data", "be bytes", type(sample.data).__name__)
    whole = isinstance(sample.labels, tuple) and all(
        type(label) is int and -(2**63) <= label < 2**63 for label in sample.labels
    )
    require(whole, "labels", "be a tuple of whole numbers of 64 bits", sample.labels)
    require(isinstance(sample.key, str), "key", "be text", type(sample.key).__name__)
    try:
        sample.key.encode()
    except UnicodeEncodeError:
        require(False, "key", "be text that UTF-8 can hold", sample.key, "Replace what is not.")
    return sample


def encode(sample: Sample, number: int) -> bytes:
    """Write a sample as a `tf.train.Example` with the features key, labels, number and data.

    `number`, its place in the data set, shows a reader that no other record stands there.
    """
    numbers = _field(3, _field(1, _varint(number)))
    labels = b"".join(_varint(label) for label in sample.labels)
    parts = [
        _entry(b"key", _field(1, _field(1, sample.key.encode()))),
        _entry(b"labels", _field(3, _field(1, labels) if labels else b"")),
        _entry(b"number", numbers),
        _entry(b"data", _field(1, _field(1, sample.data))),
    ]
    return _field(1, b"".join(parts))


def encode_features(values: Mapping[str, Sequence[bytes | int | float]]) -> bytes:
    """Write lists of any names as a `tf.train.Example`, which `features` and TensorFlow read.

    Args:
        values: by name a list of bytes, of whole numbers or of floats.

    Returns:
        bytes: the message.

    Raises:
        ValueError: when a list holds something else, or two kinds.

    Source:
        Protocol Buffers, Encoding (wire format); TensorFlow, example.proto and feature.proto.
    """
    entries = []
    for name, each in values.items():
        kinds = {type(value) for value in each}
        known = len(kinds) <= 1 and kinds <= {bytes, int, float}
        require(known, name, "be a list of bytes, of whole numbers or of floats", list(each))
        feature = b""
        if bytes in kinds:
            feature = _field(1, b"".join(_field(1, value) for value in each))
        elif float in kinds:
            feature = _field(2, _field(1, struct.pack(f"<{len(each)}f", *each)))
        elif int in kinds:
            feature = _field(3, _field(1, b"".join(map(_varint, each))))
        entries.append(_entry(name.encode(), feature))
    return _field(1, b"".join(entries))


def decode(block: bytes, start: int, end: int, fields: Fields, number: int | None) -> Sample:
    """Read the sample that a message holds."""
    if number is not None and (sample := _written_here(block, start, end, number)) is not None:
        return sample
    found = features(block, start, end)
    if number is not None and found.get("number") != [number]:
        raise MalformedError(f"it claims to be record {found.get('number')}, not [{number}]")
    (data,) = _feature(found, fields.data, bytes, 1)
    labels = tuple(_feature(found, fields.labels, int, None)) if fields.labels else ()
    key = b""
    if fields.key:
        (key,) = _feature(found, fields.key, bytes, 1)
    try:
        return Sample(data, labels, key.decode())
    except UnicodeDecodeError as error:
        raise MalformedError(f"its key {key[:40]!r} is not UTF-8") from error


def _written_here(block: bytes, at: int, end: int, number: int) -> Sample | None:
    """Read a message in the order in which `encode` writes; None for any other, or a wrong one.

    It is several times faster than to look at each field, and most records are ours.
    """
    _, at = _read_varint(block, at + 1, end)
    spans = []
    for head in _HEADS:
        _, at = _read_varint(block, at + 1, end)
        if not block.startswith(head, at):
            return None
        _, at = _read_varint(block, at + len(head), end)
        nbytes, at = _read_varint(block, at + 1, end)
        if nbytes:
            nbytes, at = _read_varint(block, at + 1, end)
        spans.append((at, at + nbytes))
        at += nbytes
    key, labels, claimed, data = spans
    if at != end or block[claimed[0] : claimed[1]] != _varint(number):
        return None
    try:
        return Sample(
            block[data[0] : data[1]],
            tuple(_numbers(block, *labels)),
            block[key[0] : key[1]].decode(),
        )
    except UnicodeDecodeError:
        return None


def features(block: bytes, start: int, end: int) -> dict[str, list]:
    """Read all features of a `tf.train.Example`.

    Args:
        block: bytes among which the message stands.
        start: where it begins (byte).
        end: where it ends (byte).

    Returns:
        dict: by name a list of bytes, of whole numbers or of floats.

    Raises:
        MalformedError: when the bytes are no such message.

    Source:
        Protocol Buffers, Encoding (wire format); TensorFlow, example.proto and feature.proto.
    """
    found: dict[str, list] = {}
    for tag, at, stop in _fields_of(block, start, end):
        if tag != 1:
            continue
        for inner, first, last in _fields_of(block, at, stop):
            if inner != 1:
                continue
            name, values = b"", []
            for part, begins, ends in _fields_of(block, first, last):
                if part == 1:
                    name = block[begins:ends]
                elif part == 2:
                    values = _values(block, begins, ends)
            found[name.decode(errors="replace")] = values
    return found


def _values(block: bytes, start: int, end: int) -> list:
    values: list = []
    for kind, at, stop in _fields_of(block, start, end):
        for tag, first, last in _fields_of(block, at, stop, packed=kind != 1):
            if tag != 1:
                continue
            if kind == 1:
                values.append(block[first:last])
            elif kind == 2:
                if (last - first) % 4:
                    raise MalformedError("a list of floats has a broken length")
                values += struct.unpack(f"<{(last - first) // 4}f", block[first:last])
            elif kind == 3:
                values += _numbers(block, first, last)
    return values


def _numbers(block: bytes, at: int, end: int) -> list[int]:
    values = []
    while at < end:
        number, at = _read_varint(block, at, end)
        values.append(number - 2**64 if number >= 2**63 else number)
    return values


def _fields_of(
    block: bytes, at: int, end: int, packed: bool = False
) -> Iterable[tuple[int, int, int]]:
    """Yield number, begin and end of each field; lone numbers only where `packed` ones may be."""
    while at < end:
        tag, at = _read_varint(block, at, end)
        wire, number = tag & 7, tag >> 3
        if wire == _BYTES:
            nbytes, at = _read_varint(block, at, end)
            if nbytes > end - at:
                raise MalformedError(f"a field claims {nbytes} bytes where {end - at} are left")
            yield number, at, at + nbytes
            at += nbytes
            continue
        begin = at
        if wire == _VARINT:
            _, at = _read_varint(block, at, end)
        elif wire in (_FIXED64, _FIXED32):
            at += 8 if wire == _FIXED64 else 4
        else:
            raise MalformedError(f"there is no wire type {wire}")
        if at > end:
            raise MalformedError("a field goes over the end")
        if packed:
            yield number, begin, at


def _read_varint(block: bytes, at: int, end: int) -> tuple[int, int]:
    if at < end and block[at] < 0x80:
        return block[at], at + 1
    value = shift = 0
    while at < end and shift < 70:
        byte = block[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
    raise MalformedError("a number has no end")


def _feature(found: dict[str, list], name: str, kind: type, count: int | None) -> list:
    values = found.get(name)
    if values is None:
        raise MalformedError(f"it has no feature {name!r}, only {', '.join(sorted(found)) or '-'}")
    fits = all(isinstance(value, kind) for value in values) and count in (None, len(values))
    if not fits:
        raise MalformedError(f"its feature {name!r} is not {count or 'a list of'} {kind.__name__}")
    return values


def _varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _field(number: int, contents: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(contents)) + contents


def _entry(name: bytes, feature: bytes) -> bytes:
    return _field(1, _field(1, name) + _field(2, feature))
