"""How records stand in a file: TFRecord, and a RecordIO-like form with an index at its end."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.manifest import BLOCK, crc32c, read_exactly

_ENDS = 2**64 - 1


class Framing(ABC):
    """What stands before and after each record's bytes, and around all of them."""

    beginning: bytes = b""
    before_nbytes: int
    after_nbytes: int
    # Whether a file that was cut between two records can be told from a shorter one.
    has_end: bool = False

    @abstractmethod
    def frame(self, nbytes: int, crc: int) -> tuple[bytes, bytes]:
        """Give the bytes before and after a record."""

    @abstractmethod
    def frames(self, nbytes: np.ndarray, crcs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give the bytes around many records at once."""

    @abstractmethod
    def ending(self, offsets: np.ndarray) -> bytes:
        """Give the bytes after the last record."""

    @abstractmethod
    def declared(self, head: bytes) -> int | None:
        """Read a record's length from the bytes before it."""


class TFRecord(Framing):
    """TensorFlow's record file: length, its checksum, the bytes, their checksum.

    Source:
        TensorFlow, TFRecord guide, section "TFRecords format details" (masked CRC-32C).
    """

    before_nbytes, after_nbytes = 12, 4

    def frame(self, nbytes: int, crc: int) -> tuple[bytes, bytes]:
        """Give length with checksum, and the record's checksum, all little-endian."""
        length = nbytes.to_bytes(8, "little")
        return length + _masked(crc32c(length)), _masked(crc)

    def frames(self, nbytes: np.ndarray, crcs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give the same as `frame` for many records."""
        lengths = _bytes_of(nbytes, "<u8")
        check = _bytes_of(_masked_each(_crc32c_each(lengths)), "<u4")
        return np.hstack([lengths, check]), _bytes_of(_masked_each(crcs), "<u4")

    def ending(self, offsets: np.ndarray) -> bytes:
        """Nothing: a TFRecord file just ends."""
        return b""

    def declared(self, head: bytes) -> int | None:
        """Read the length and hold it against its checksum."""
        if head[8:] == _masked(crc32c(head[:8])):
            return int.from_bytes(head[:8], "little")
        if head[8:] == _masked(crc32c(head[:8][::-1]))[::-1]:
            raise ValueError("its length is written big-endian; TFRecord is little-endian")
        raise ValueError("its length does not fit the checksum of the length")


class RecordIO(Framing):
    """Our seekable record file: a header before each record, an index of offsets at the end.

    A header holds length, CRC-32C of the record and CRC-32C of those two; the length 2^64 - 1
    says that the last record has gone by. After it come the offset of each record (8 bytes
    each), and in the last 32 bytes number of records, CRC-32C of the offsets and the mark. So
    the file can be read from front to back when its end is lost, and then says that it is.
    """

    beginning = b"dlguide-records1"
    mark = b"dlguide-offsets1"
    before_nbytes, after_nbytes = 16, 0
    has_end = True

    def frame(self, nbytes: int, crc: int) -> tuple[bytes, bytes]:
        """Give the header; nothing stands after a record."""
        head = struct.pack("<QI", nbytes, crc)
        return head + struct.pack("<I", crc32c(head)), b""

    def frames(self, nbytes: np.ndarray, crcs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give the same as `frame` for many records."""
        head = np.hstack([_bytes_of(nbytes, "<u8"), _bytes_of(crcs, "<u4")])
        before = np.hstack([head, _bytes_of(_crc32c_each(head), "<u4")])
        return before, np.zeros((len(head), 0), np.uint8)

    def ending(self, offsets: np.ndarray) -> bytes:
        """Give the end mark, the offsets and the last 32 bytes."""
        table = offsets.astype("<u8").tobytes()
        last = struct.pack("<QII", len(offsets), crc32c(table), 0) + self.mark
        return self.frame(_ENDS, 0)[0] + table + last

    def declared(self, head: bytes) -> int | None:
        """Read the length and hold it against the header's checksum."""
        if head[12:] != struct.pack("<I", crc32c(head[:12])):
            raise ValueError("its header does not fit the checksum of the header")
        nbytes = int.from_bytes(head[:8], "little")
        return None if nbytes == _ENDS else nbytes


@dataclass(frozen=True)
class Found:
    """A record as it stands in a file, its checksum verified.

    path (of the file), number (in the data set), offset (where its own bytes begin in the file),
    block (bytes among which it stands), start, end (in the block), crc32c.
    """

    path: Path
    number: int
    offset: int
    block: bytes
    start: int
    end: int
    crc32c: int


def scan(
    descriptor: int, size: int, path: Path, framing: Framing, first: int = 0
) -> Iterator[Found]:
    """Read a file of records from front to back, checking every byte, in large blocks.

    No length is believed before it fits its checksum and what is left of the file.
    """
    begins = len(framing.beginning)
    if read_exactly(descriptor, min(begins, size), 0, path) != framing.beginning:
        raise DamageError(Damage(str(path), f"does not begin with {framing.beginning!r}"))
    number, at = first, begins
    block, block_at = b"", at
    offsets: list[int] = []

    def need(nbytes: int) -> int:
        """Have so many bytes from `at` on in the block; return where they begin in it."""
        nonlocal block, block_at
        inside = at - block_at
        if inside + nbytes > len(block):
            rest = block[inside:]
            more = min(max(BLOCK, nbytes - len(rest)), size - at - len(rest))
            block = rest + read_exactly(descriptor, more, at + len(rest), path)
            block_at, inside = at, 0
        return inside

    def broken(what: str) -> DamageError:
        return DamageError(Damage(str(path), what, number, at))

    while at < size:
        if size - at < framing.before_nbytes:
            raise broken(f"the file ends within a record's header ({size - at} bytes left)")
        start = need(framing.before_nbytes)
        head = block[start : start + framing.before_nbytes]
        try:
            nbytes = framing.declared(head)
        except ValueError as error:
            raise broken(str(error)) from error
        if nbytes is None:
            _check_ending(framing, descriptor, size, at, np.array(offsets, np.uint64), path)
            return
        left = size - at - framing.before_nbytes - framing.after_nbytes
        if nbytes > left:
            raise broken(f"it declares {nbytes} bytes where {max(left, 0)} are left in the file")
        start = need(framing.before_nbytes + nbytes + framing.after_nbytes) + framing.before_nbytes
        crc = crc32c(block, start, start + nbytes)
        after = block[start + nbytes : start + nbytes + framing.after_nbytes]
        if (head, after) != framing.frame(nbytes, crc):
            raise broken(f"its bytes do not fit their checksum (they have crc32c {crc:08x})")
        offset = at + framing.before_nbytes
        yield Found(path, number, offset, block, start, start + nbytes, crc)
        if framing.has_end:
            offsets.append(offset)
        number += 1
        at = offset + nbytes + framing.after_nbytes
    if framing.has_end:
        raise broken(f"the file was cut here: {number - first} whole records, then no end mark")


def _check_ending(
    framing: Framing, descriptor: int, size: int, at: int, offsets: np.ndarray, path: Path
) -> None:
    expected = framing.ending(offsets)
    fits = size - at == len(expected)
    if not fits or read_exactly(descriptor, len(expected), at, path) != expected:
        raise DamageError(Damage(str(path), "the index after the last record is wrong", None, at))


def _masked(crc: int) -> bytes:
    # TensorFlow turns and shifts it, so that a checksum of bytes with checksums stays good.
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _masked_each(crcs: np.ndarray) -> np.ndarray:
    crcs = crcs.astype(np.uint32)
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(0xA282EAD8)


def _bytes_of(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """View each number of 4 or 8 bytes as a row of bytes."""
    numbers = np.ascontiguousarray(numbers, dtype)
    return numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)


def _crc32c_each(rows: np.ndarray) -> np.ndarray:
    """Compute the CRC-32C of each row of bytes.

    The checksum of messages of one length is that of zeros, changed by each byte on its own: a
    table for each place says how. Places where all rows hold zero change nothing.
    """
    nbytes = rows.shape[1]
    found = np.full(len(rows), crc32c(bytes(nbytes)), np.uint32)
    for place in np.flatnonzero(rows.any(axis=0)).tolist():
        found ^= _changes(nbytes, place)[rows[:, place]]
    return found


@cache
def _changes(nbytes: int, place: int) -> np.ndarray:
    """Say how each value of one byte changes the CRC-32C of so many zeros."""
    zeros = crc32c(bytes(nbytes))
    rest = bytes(nbytes - 1 - place)
    changed = [crc32c(bytes(place) + bytes([value]) + rest) ^ zeros for value in range(256)]
    return np.array(changed, np.uint32)


FRAMINGS = {"tfrecord": TFRecord(), "recordio": RecordIO()}
