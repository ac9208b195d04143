"""Where each record of TFRecord files stands, so that any of them can be read on its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.framing import FRAMINGS
from dlguide.data.formats.manifest import crc32c

_FRAMING = FRAMINGS["tfrecord"]
_BEFORE, _AFTER = _FRAMING.before_nbytes, _FRAMING.after_nbytes
_ROW = np.dtype([("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("check", "<u4")])
_THEN = "Get the file again from its source, or repeat the conversion."


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """The records of several files, numbered through all of them."""

    paths: tuple[Path, ...]
    table: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.table)

    def counts(self) -> list[int]:
        """Count the records of each file."""
        return np.bincount(self.table["file"], minlength=len(self.paths)).tolist()

    def read(self, number: int) -> bytes:
        """Read a record and hold it against its checksum."""
        _, offset, nbytes, check = self.table[number].tolist()
        try:
            with self.path_of(number).open("rb") as file:
                contents = os.pread(file.fileno(), nbytes, offset)
        except OSError as error:
            raise self.damaged(number, f"cannot be read: {error.strerror}") from error
        after = _FRAMING.frame(nbytes, crc32c(contents))[1]
        if len(contents) != nbytes or after != check.to_bytes(_AFTER, "little"):
            raise self.damaged(number, "its bytes do not fit their checksum")
        return contents

    def damaged(self, number: int, what: str, then: str = _THEN) -> DamageError:
        """Make the error for a record that is wrong."""
        offset = int(self.table[number]["offset"])
        return DamageError(Damage(str(self.path_of(number)), what, number, offset), then)

    def repeated(self) -> tuple[int, int] | None:
        """Find two records with the same bytes, as there are when a file was copied twice."""
        order = np.lexsort((self.table["check"], self.table["nbytes"]))
        ordered = self.table[order]
        alike = (ordered["check"][1:] == ordered["check"][:-1]) & (
            ordered["nbytes"][1:] == ordered["nbytes"][:-1]
        )
        for place in np.flatnonzero(alike).tolist():
            # equal checksums happen by chance too, among a million records
            one, other = sorted(order[place : place + 2].tolist())
            if self.read(one) == self.read(other):
                return one, other
        return None

    def path_of(self, number: int) -> Path:
        """Name the file of a record."""
        return self.paths[int(self.table[number]["file"])]


def index_records(paths: list[Path]) -> RecordIndex:
    """Go from header to header through TFRecord files, without reading the records.

    Every length is held against its checksum and against what is left of the file.
    """
    tables, first = [], 0
    for number, path in enumerate(paths):
        if not path.is_file():
            raise DamageError(Damage(str(path), "is not an ordinary file"), _THEN)
        try:
            with path.open("rb") as file:
                rows = list(_walk(file.fileno(), path, first))
        except OSError as error:
            what = f"cannot be read: {error.strerror}"
            raise DamageError(Damage(str(path), what), _THEN) from error
        if not rows:
            raise DamageError(Damage(str(path), "holds no record"), _THEN)
        tables.append(np.array([(number, *row) for row in rows], _ROW))
        first += len(rows)
    return RecordIndex(tuple(paths), np.concatenate(tables))


def _walk(descriptor: int, path: Path, number: int) -> Iterator[tuple[int, int, int]]:
    """Yield first byte, length and checksum of each record; `number` is that of the first."""
    size, at = os.fstat(descriptor).st_size, 0
    head = os.pread(descriptor, _BEFORE, 0)
    while at < size:
        if size - at < _BEFORE:
            what = f"the file ends within a record's header ({size - at} bytes left)"
            raise DamageError(Damage(str(path), what, number, at), _THEN)
        try:
            nbytes = _FRAMING.declared(head)
        except ValueError as error:
            raise DamageError(Damage(str(path), str(error), number, at), _THEN) from error
        left = size - at - _BEFORE - _AFTER
        if nbytes > left:
            what = f"it declares {nbytes} bytes where {max(left, 0)} are left in the file"
            raise DamageError(Damage(str(path), what, number, at), _THEN)
        # the record's checksum and the next header, in one request
        following = os.pread(descriptor, _AFTER + _BEFORE, at + _BEFORE + nbytes)
        check = int.from_bytes(following[:_AFTER], "little")
        yield at + _BEFORE, nbytes, check
        number += 1
        at += _BEFORE + nbytes + _AFTER
        head = following[_AFTER:]
