"""Reading a data set: from front to back or at any place, never a wrong sample."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.manifest import (
    RANGE,
    ROW,
    Manifest,
    checksum,
    crc32c,
    open_file,
    read_exactly,
    read_table,
)
from dlguide.data.formats.sample import Fields, MalformedError, Sample, decode
from dlguide.errors import require

_ROWS = 1 << 14


@dataclass(frozen=True)
class Block:
    """Bytes that were read at once, and where in them the records stand.

    contents (bytes), first (number of the first record), starts, ends (of the records in it).
    """

    contents: bytes
    first: int
    starts: Sequence[int]
    ends: Sequence[int]


class Dataset(Sequence, ABC):
    """The samples of a data set: `len`, `[number]`, and a loop from front to back.

    Whatever is read is held against the index before it is handed out; what does not fit
    raises a DamageError that names file, record and byte. A loop hands out all `count` samples
    or raises. It may be open several times at once. One thread at a time each; a process
    that was forked opens it again.

    Attributes: kind, count (samples), nbytes (of all files, bytes on the disk), opens (files
    opened so far, the manifest and the index included).
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.kind, self.count, self.nbytes = manifest.kind, manifest.count, manifest.nbytes
        self.opens = 2
        (index,) = manifest.of_role("index")
        self.index = read_table(folder, index, ROW)
        if len(self.index) != self.count:
            what = f"has {len(self.index)} rows, the manifest says {self.count} samples"
            raise DamageError(Damage(str(folder / index.name), what))
        self.data = manifest.of_role("data")
        self.closed = False

    def check_bounds(self) -> None:
        """Refuse an index whose records do not lie in their files."""
        sizes = np.array([file.nbytes for file in self.data] or [0], np.uint64)
        known = self.index["file"] < len(self.data)
        size = sizes[np.where(known, self.index["file"], 0)]
        inside = known & (self.index["nbytes"] <= size)
        inside &= self.index["offset"] <= size - np.minimum(size, self.index["nbytes"])
        if not inside.all():
            number = int(np.argmin(inside))
            raise self.damaged(number, "the index puts it outside of its file")

    @abstractmethod
    def stored(self, number: int) -> bytes:
        """Read what is stored for one sample.

        Args:
            number: of the sample, in range.

        Returns:
            bytes: not yet held against the checksum.
        """

    @abstractmethod
    def blocks(self) -> Iterator[Block]:
        """Read what is stored for all samples, from front to back, as fast as it can be read.

        Nothing is held against a checksum: this is what `payloads` begins with, and the
        yardstick for it.

        Returns:
            Iterator: of Blocks.
        """

    def check_between(self, block: Block) -> None:
        """Check what stands between the records of a block, in formats that have such bytes."""

    def stored_in_order(self) -> Iterator[tuple[bytes, int, int]]:
        """Read what is stored for all samples, from front to back."""
        for block in self.blocks():
            self.check_between(block)
            contents = block.contents
            for start, end in zip(block.starts, block.ends, strict=True):
                yield contents, start, end

    def sample(self, number: int, block: bytes, start: int, end: int) -> Sample:
        """Make a sample of what is stored for it.

        Args:
            number: of the sample.
            block: bytes among which it stands.
            start: where it begins (byte).
            end: where it ends (byte).

        Returns:
            Sample: data, labels and key.
        """
        return decode(block, start, end, Fields(), number)

    def payloads(self) -> Iterator[tuple[bytes, int, int]]:
        """Read all that is stored from front to back, verified but not taken apart."""
        self._require_open()
        number, last, array = 0, None, None
        expected = self._expected()
        for block, start, end in self.stored_in_order():
            if block is not last:  # an array's parts are checked without copying them
                last, array = block, np.frombuffer(block, np.uint8)
            nbytes, crc = next(expected, (-1, 0))
            if number >= self.count:
                raise self.damaged(None, f"holds more than the {self.count} records of its index")
            if end - start != nbytes or checksum(array[start:end]) != crc:
                raise self.damaged(number, self._difference(number, block[start:end]))
            yield block, start, end
            number += 1
        if number != self.count:
            raise self.damaged(None, f"holds {number} records, its index {self.count}")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Sample:
        self._require_open()
        require(isinstance(number, int | np.integer), "number", "be a whole number", number)
        number = int(number)
        if not -self.count <= number < self.count:
            raise IndexError(f"`number` must be below {self.count}, the samples there are.")
        number %= self.count
        contents = self.stored(number)
        row = self.index[number]
        if len(contents) != row["nbytes"] or crc32c(contents) != row["crc32c"]:
            raise self.damaged(number, self._difference(number, contents))
        return self._sample(number, contents, 0, len(contents))

    def __iter__(self) -> Iterator[Sample]:
        for number, (block, start, end) in enumerate(self.payloads()):
            yield self._sample(number, block, start, end)

    def close(self) -> None:
        """Close all files; closing twice does nothing."""
        self.closed = True

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def damaged(self, number: int | None, what: str) -> DamageError:
        """Make the error for one record, or for the data as a whole.

        Args:
            number: of the record, or None.
            what: is wrong.

        Returns:
            DamageError: to raise.
        """
        file = self.data[0].name if self.data else self.manifest.files[0].name
        offset = None
        if number is not None:
            row = self.index[number]
            file, offset = self.place(number, int(row["file"]), int(row["offset"]))
        return DamageError(Damage(str(self.folder / file), what, number, offset))

    def place(self, number: int, file: int, offset: int) -> tuple[str, int | None]:
        """Say where a record stands.

        Args:
            number: of the record.
            file: which data file the index names.
            offset: which the index names (byte).

        Returns:
            tuple: name of the file, and byte, or None where the format does not tell.
        """
        return self.data[min(file, len(self.data) - 1)].name, offset

    def _sample(self, number: int, block: bytes, start: int, end: int) -> Sample:
        try:
            return self.sample(number, block, start, end)
        except MalformedError as error:
            raise self.damaged(number, str(error)) from error

    def _difference(self, number: int, contents: bytes) -> str:
        row = self.index[number]
        return (
            f"{len(contents)} bytes with crc32c {crc32c(contents):08x}, "
            f"expected {row['nbytes']} bytes with crc32c {int(row['crc32c']):08x}"
        )

    def _expected(self) -> Iterator[tuple[int, int]]:
        """Give length and checksum of each record; a part of the index at a time is made a list."""
        for first in range(0, self.count, _ROWS):
            rows = self.index[first : first + _ROWS]
            yield from zip(rows["nbytes"].tolist(), rows["crc32c"].tolist(), strict=True)

    def _require_open(self) -> None:
        require(not self.closed, "dataset", "be open", "a closed one", "Call `formats.open` again.")


def check_structure(folder: Path, manifest: Manifest) -> Path:
    """Make sure that a library can open the data file without being led astray by it."""
    data, tables = manifest.of_role("data"), manifest.of_role("structure")
    if len(data) != 1 or len(tables) != 1:
        raise DamageError(Damage(str(folder), "its manifest names no table of the structure"))
    rows = read_table(folder, tables[0], RANGE).tolist()
    path = folder / data[0].name
    descriptor, size = open_file(path, data[0].nbytes)
    try:
        for offset, nbytes, expected in rows:
            if offset + nbytes > size:
                raise DamageError(Damage(str(path), "is shorter than its structure", None, offset))
            if crc32c(read_exactly(descriptor, nbytes, offset, path)) != expected:
                what = f"its structure is damaged within these {nbytes} bytes"
                raise DamageError(Damage(str(path), what, None, offset))
    finally:
        os.close(descriptor)
    return path
