"""One sample and its bytes: a `tf.train.Example` message, written and read without TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory, text_format

from dlguide.errors import require


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


def require_sample(sample: Any) -> None:
    """Refuse a sample that cannot be written in every format without loss."""
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


# TensorFlow's example.proto and feature.proto, as far as they are used here.
_PROTO = """
name: "example.proto" package: "dlguide" syntax: "proto3"
message_type {
  name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES }
}
message_type {
  name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT }
}
message_type {
  name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 }
}
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 oneof_index: 0 type_name: ".dlguide.BytesList" }
  field { name: "float_list" number: 2 oneof_index: 0 type_name: ".dlguide.FloatList" }
  field { name: "int64_list" number: 3 oneof_index: 0 type_name: ".dlguide.Int64List" }
}
message_type {
  name: "Features"
  field {
    name: "feature" number: 1 label: LABEL_REPEATED
    type_name: ".dlguide.Features.FeatureEntry"
  }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type_name: ".dlguide.Feature" }
  }
}
message_type {
  name: "Example" field { name: "features" number: 1 type_name: ".dlguide.Features" }
}
"""
_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(text_format.Parse(_PROTO, descriptor_pb2.FileDescriptorProto()))
_Example = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("dlguide.Example"))
_Features = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("dlguide.Features"))
# What `encode` writes before the data: the lengths of what they lie in, each a varint.
_VARINT = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_BEFORE = re.compile(_VARINT.join([rb"\n", rb"\n", rb"\n\x04data\x12", rb"\n", rb"\n", b""]))
HEAD_NBYTES = 64  # more than `_BEFORE` needs
_SMALL = 4096
_LISTS = {bytes: "bytes_list", float: "float_list", int: "int64_list"}


def encode_features(values: Mapping[str, Sequence[bytes | int | float]]) -> bytes:
    """Write lists of bytes, whole numbers or floats by name as a `tf.train.Example`."""
    example = _Example()
    for name, each in values.items():
        feature = example.features.feature[name]
        if each:
            getattr(feature, _LISTS[type(each[0])]).value.extend(each)
    return example.SerializeToString(deterministic=True)


def features(record: bytes) -> dict[str, list]:
    """Read all lists of a `tf.train.Example`.

    Raises:
        MalformedError: when the bytes are no such message.
    """
    return {
        name: list(getattr(one, one.WhichOneof("kind") or "bytes_list").value)
        for name, one in _parsed(record).items()
    }


def _parsed(record: bytes) -> Any:
    try:
        return _Example.FromString(record).features.feature
    except message.DecodeError as error:
        raise MalformedError("it is no tf.train.Example") from error


def encode(sample: Sample, number: int) -> bytes:
    """Write a sample as a `tf.train.Example` with the features data, key, labels and number.

    `number`, its place in the data set, shows a reader that no other record is there.
    """
    facts = {"data": [sample.data], "key": [sample.key.encode()], "labels": sample.labels}
    return encode_features({**facts, "number": [number]})


def find_data(head: bytes, nbytes: int) -> tuple[int, int] | None:
    """Return where the data begins and ends in a message of `nbytes` bytes, from its first ones.

    None where the message is not laid out as `encode` does.
    """
    found = _BEFORE.match(head)
    if found is None:
        return None
    ends = []
    for group, length in enumerate(found.groups(), 1):
        value = 0
        for byte in length[::-1]:
            value = value << 7 | byte & 127
        ends.append(found.end(group) + value)
    whole, *inner = ends
    end = inner[0]
    return (found.end(), end) if whole == nbytes >= end and inner == [end] * 4 else None


def decode(record: bytes, number: int) -> Sample:
    """Read the sample that a message holds."""
    # Of a small message a copy of the data costs less than finding it.
    place = find_data(record[:HEAD_NBYTES], len(record)) if len(record) >= _SMALL else None
    if place is not None:
        sample = decode_rest(record[place[0] : place[1]], record[place[1] :], number)
        if sample is not None:
            return sample
    found = _parsed(record)
    data = found["data"].bytes_list.value
    return _sample(data[0] if len(data) == 1 else None, found, number)


def decode_rest(data: bytes, rest: bytes, number: int) -> Sample | None:
    """Make a sample of its data and of the message after it; None if that has data, too."""
    try:
        found = _Features.FromString(rest).feature
    except message.DecodeError as error:
        raise MalformedError("it is no tf.train.Example") from error
    return None if "data" in found else _sample(data, found, number)


def _sample(data: bytes | None, found: Any, number: int) -> Sample:
    claimed, labels = found["number"].int64_list.value[:], found["labels"].int64_list.value[:]
    if claimed != [number]:
        raise MalformedError(f"it claims to be record {claimed}, not [{number}]")
    key = found["key"].bytes_list.value
    if data is None or len(key) != 1:
        raise MalformedError("it has not one list of bytes `data` and one `key`")
    try:
        return Sample(data, tuple(labels), key[0].decode())
    except UnicodeDecodeError as error:
        raise MalformedError(f"its key {key[0][:40]!r} is not UTF-8") from error
