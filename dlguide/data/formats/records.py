"""Records one after the other in files: TFRecord, and RecordIO with an index at its end."""

from __future__ import annotations

import os
import re
import struct
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from dlguide.data.formats.dataset import (
    BLOCK,
    Damage,
    DamageError,
    Manifest,
    ManifestFile,
    RecordBlock,
    StoredDataset,
    crc32c,
    open_file,
    read_exactly,
)
from dlguide.data.formats.sample import Fields, MalformedError, Sample, decode, encode
from dlguide.data.formats.writer import DatasetWriter, HashedFile
from dlguide.errors import require, require_known

# Files kept open at once; more would meet the limit of a process on data sets of many shards.
_MOST_OPEN = 64
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)", re.S)

_ENDS = 2**64 - 1


class Framing(ABC):
    """What stands before and after each record's bytes, and around all of them."""

    beginning: bytes = b""
    before_nbytes: int
    after_nbytes: int
    # Whether a file that was cut between two records can be distinguished from a shorter one.
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
class FramedRecord:
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
) -> Iterator[FramedRecord]:
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
        start = need(min(framing.before_nbytes, size - at))
        head = block[start : start + framing.before_nbytes]
        nbytes = declared_nbytes(framing, head, size - at, path, number, at)
        if nbytes is None:
            expected = framing.ending(np.array(offsets, np.uint64))
            fits = size - at == len(expected)
            if not fits or read_exactly(descriptor, len(expected), at, path) != expected:
                what = "the index after the last record is wrong"
                raise DamageError(Damage(str(path), what, None, at))
            return
        start = need(framing.before_nbytes + nbytes + framing.after_nbytes) + framing.before_nbytes
        crc = crc32c(block, start, start + nbytes)
        after = block[start + nbytes : start + nbytes + framing.after_nbytes]
        if (head, after) != framing.frame(nbytes, crc):
            raise broken(f"its bytes do not fit their checksum (they have crc32c {crc:08x})")
        offset = at + framing.before_nbytes
        yield FramedRecord(path, number, offset, block, start, start + nbytes, crc)
        if framing.has_end:
            offsets.append(offset)
        number += 1
        at = offset + nbytes + framing.after_nbytes
    if framing.has_end:
        raise broken(f"the file was cut here: {number - first} whole records, then no end mark")


def declared_nbytes(
    framing: Framing, head: bytes, left: int, path: Path, number: int, at: int, then: str = ""
) -> int | None:
    """Read a header, with `left` bytes from it to the file's end; None for the end mark."""
    what = f"the file ends within a record's header ({left} bytes left)"
    if left >= framing.before_nbytes:
        try:
            nbytes = framing.declared(head)
        except ValueError as error:
            raise DamageError(Damage(str(path), str(error), number, at), then) from error
        left -= framing.before_nbytes + framing.after_nbytes
        if nbytes is None or nbytes <= left:
            return nbytes
        what = f"it declares {nbytes} bytes where {max(left, 0)} are left in the file"
    raise DamageError(Damage(str(path), what, number, at), then)


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


@dataclass(frozen=True)
class _Part:
    """Whole records that are read at once: numbers and bytes from first/start to stop/end."""

    file: int
    first: int
    stop: int
    start: int
    end: int


class FramedWriter(DatasetWriter):
    """Writes records one after the other: TFRecord or RecordIO, in one file or several."""

    def __init__(self, path: Path, shard_samples: int | None, kind: str) -> None:
        self.kind, self._framing = kind, FRAMINGS[kind]
        self._shards: list[ManifestFile] = []
        self._file: HashedFile | None = None
        self._in_file = 0
        super().__init__(path, shard_samples)

    def begin(self) -> None:
        """Open the first file."""
        self._next_file()

    def put(self, sample: Sample) -> tuple[int, int, int, int]:
        """Write a record, in a new file where this one has enough."""
        if self._in_file == self.shard_samples:
            self.cut()
        payload = encode(sample, self.count)
        crc = crc32c(payload)
        before, after = self._framing.frame(len(payload), crc)
        offset = self._file.nbytes + len(before)
        for part in (before, payload, after):
            self._file.write(part)
        self._in_file += 1
        return len(self._shards), offset, len(payload), crc

    def finish(self) -> list[ManifestFile]:
        """Close the last file and give all their names: which of how many."""
        self._finish_file()
        stem, shards = self.path.name[:200], len(self._shards)
        files = []
        for number, file in enumerate(self._shards):
            name = f"{stem}-{number:05d}-of-{shards:05d}"
            os.rename(self.folder / file.name, self.folder / name)
            files.append(ManifestFile(name, file.role, file.nbytes, file.sha256, file.count))
        return files

    def close(self) -> None:
        """Close the file that is open."""
        if self._file is not None:
            self._file.close()

    def cut(self) -> None:
        """Begin a new file with the next sample."""
        self._finish_file()
        self._next_file()

    def _next_file(self) -> None:
        self._file = HashedFile(self.folder / f"shard-{len(self._shards)}")
        self._file.write(self._framing.beginning)
        self._in_file = 0

    def _finish_file(self) -> None:
        number = len(self._shards)
        offsets = np.zeros(0, np.uint64)
        if self._framing.has_end and self._in_file:
            offsets = self.rows()["offset"][-self._in_file :]
        self._file.write(self._framing.ending(offsets))
        self._shards.append(self._file.finish(f"shard-{number}", "data", self._in_file))


class FramedDataset(StoredDataset):
    """Records one after the other in plain files: TFRecord or RecordIO."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._framing = FRAMINGS[manifest.kind]
        self._open: OrderedDict[int, int] = OrderedDict()
        self.check_bounds()
        if sum(file.count for file in self.data) != self.count:
            raise self.damaged(None, "the counts of its files do not add up to that of all")
        # A file that is cut, swapped or gone is reported at once, not in the middle of an epoch.
        for file in self.data:
            descriptor, _ = open_file(folder / file.name, file.nbytes)
            os.close(descriptor)
            self.opens += 1

    def stored(self, number: int) -> bytes:
        """Read one record at its place."""
        file, offset, nbytes, _ = self.index[number].tolist()
        return read_exactly(self.descriptor(file), nbytes, offset, self.path_of(file))

    def blocks(self) -> Iterator[RecordBlock]:
        """Read large parts of the files; the kernel reads ahead meanwhile."""
        for file, parts in groupby(self._parts(), lambda part: part.file):
            path = self.path_of(file)
            descriptor, _ = open_file(path, self.data[file].nbytes)
            self.opens += 1
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
                for part in parts:
                    contents = read_exactly(descriptor, part.end - part.start, part.start, path)
                    rows = self.index[part.first : part.stop]
                    # signed: a wrong index gives a place below 0, which `check_between` sees
                    starts = rows["offset"].astype(np.int64) - part.start
                    ends = starts + rows["nbytes"].astype(np.int64)
                    yield RecordBlock(contents, part.first, starts.tolist(), ends.tolist())
            finally:
                os.close(descriptor)

    def check_between(self, block: RecordBlock) -> None:
        """Hold the bytes before and after each record against its row of the index."""
        rows = self.index[block.first : block.first + len(block.starts)]
        before, after = self._framing.frames(rows["nbytes"], rows["crc32c"])
        array = np.frombuffer(block.contents, np.uint8)
        wrong = np.array(block.ends) > len(array)
        for at, expected in (
            (np.array(block.starts) - self._framing.before_nbytes, before),
            (np.array(block.ends), after),
        ):
            places = at[:, None] + np.arange(expected.shape[1])
            outside = (places < 0) | (places >= len(array))
            found = array[np.where(outside, 0, places)] if len(array) else expected
            wrong |= (outside | (found != expected)).any(axis=1)
        if wrong.any():
            number = block.first + int(wrong.argmax())
            raise self.damaged(number, "its length or checksum in the file is wrong")

    def _parts(self) -> Iterator[_Part]:
        """Divide the files into blocks of whole records, as many as have room, at least one."""
        ends = self.index["offset"] + self.index["nbytes"]
        ends += np.uint64(self._framing.after_nbytes)
        first = 0
        for file, entry in enumerate(self.data):
            last, start = first + entry.count, len(self._framing.beginning)
            while first < last:
                room = np.uint64(start + BLOCK)  # an int would turn all of `ends` into floats
                stop = int(np.searchsorted(ends[first:last], room, "right")) + first
                stop = max(stop, first + 1)
                end = min(int(ends[stop - 1]), entry.nbytes)
                if end <= start:
                    raise self.damaged(first, "the index is not in the order of the file")
                yield _Part(file, first, stop, start, end)
                first, start = stop, end

    def neighbours(self, first: int, count: int) -> list[Sample]:
        """Read samples with one request, unless the index takes them from here and there."""
        rows = self.index[first : first + count]
        starts, ends = rows["offset"], rows["offset"] + rows["nbytes"]
        if count == 1 or (rows["file"] != rows["file"][0]).any() or (ends[:-1] > starts[1:]).any():
            return super().neighbours(first, count)
        file, start = int(rows["file"][0]), starts[0]
        nbytes = int(ends[-1] - start)
        block = read_exactly(self.descriptor(file), nbytes, int(start), self.path_of(file))
        samples = []
        for number, one, end, crc in zip(
            range(first, first + count), (starts - start).tolist(), (ends - start).tolist(),
            rows["crc32c"].tolist(), strict=True,
        ):  # fmt: skip
            whole = crc32c(block, one, end) == crc
            # alone a damaged one raises the error that names the place
            samples.append(self.sample(number, block, one, end) if whole else self[number])
        return samples

    def close(self) -> None:
        """Close all files; closing twice does nothing."""
        while self._open:
            os.close(self._open.popitem()[1])
        super().close()

    def path_of(self, file: int) -> Path:
        """Name a data file."""
        return self.folder / self.data[file].name

    def descriptor(self, file: int) -> int:
        """Open a data file, or take it from those that are open."""
        if file in self._open:
            self._open.move_to_end(file)
            return self._open[file]
        if len(self._open) == _MOST_OPEN:
            os.close(self._open.popitem(last=False)[1])
        self._open[file], _ = open_file(self.path_of(file), self.data[file].nbytes)
        self.opens += 1
        return self._open[file]


class PlainRecords:
    """The records of files that no manifest vouches for; only from front to back.

    Every record is compared with its own checksum. A DamageError names file, record and byte
    where that fails; `unchecked` says what these files give no means to check.

    Attributes: paths (files, in order), kind, nbytes (of all files), opens (files opened so
    far), unchecked (sentences).
    """

    def __init__(self, paths: list[Path], kind: str, fields: Fields) -> None:
        self.paths, self.kind, self.fields = paths, kind, fields
        self.opens = self.nbytes = 0
        for path in paths:
            descriptor, nbytes = open_file(path)
            os.close(descriptor)
            self.nbytes += nbytes
        self.unchecked = (
            "there is no manifest: files that were exchanged, or are older than they should be, "
            "look whole",
        )
        if not FRAMINGS[kind].has_end:
            self.unchecked += (
                f"a {kind} file has no end mark: cut between two records, or empty, it looks "
                "like a shorter file",
            )

    def records(self, first: int = 0) -> Iterator[FramedRecord]:
        """Read all records, as they stand in the files, numbered through from `first` on."""
        number = first
        for path in self.paths:
            descriptor, size = open_file(path)
            self.opens += 1
            try:
                for found in scan(descriptor, size, path, FRAMINGS[self.kind], number):
                    yield found
                    number = found.number + 1
            finally:
                os.close(descriptor)

    def __iter__(self) -> Iterator[Sample]:
        for found in self.records():
            try:
                yield decode(found.block, found.start, found.end, self.fields, None)
            except MalformedError as error:
                then = "Name its features with `fields=formats.Fields(...)`, or leave it out."
                damage = Damage(str(found.path), str(error), found.number, found.offset)
                raise DamageError(damage, then) from error

    def __enter__(self) -> PlainRecords:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing stays open."""


def open_plain(
    path: str | os.PathLike, kind: str = "tfrecord", fields: Fields | None = None
) -> PlainRecords:
    """Open record files that were not written here, to read them from front to back.

    Args:
        path: a file, or a folder; in a folder all files that are called `*-00000-of-00008` or
            end in `.tfrecord` are taken in the order of their names. Shards must be those of
            one data set: "train" beside "validation", or 2 beside 4 of "train", are two.
        kind: "tfrecord" or "recordio".
        fields: what the features of a record are called; None for those written here.

    Returns:
        PlainRecords: a loop over it gives Samples.

    Raises:
        ValueError: when the kind is unknown.
        DamageError: when there is no such file, one of the shards is missing, or the folder
            holds several data sets.
    """
    require_known(kind, FRAMINGS, "kind")
    fields = Fields() if fields is None else fields
    require(isinstance(fields, Fields), "fields", "be formats.Fields", type(fields).__name__)
    path = Path(path)
    if not path.is_dir():
        return PlainRecords([path], kind, fields)
    names = sorted(os.listdir(path))
    taken = [name for name in names if _SHARD.fullmatch(name) or name.endswith(f".{kind}")]
    if not taken:
        text = f"holds no file called *-00000-of-00008 or *.{kind}"
        raise DamageError(Damage(str(path), text), "Give the file itself.")
    require_one_set(path, taken, f"*.{kind}")
    return PlainRecords([path / name for name in taken], kind, fields)


def require_one_set(folder: Path, names: list[str], alone: str) -> None:
    """See that the files are one data set, of whose shards none is missing."""
    sets: dict[tuple[str, ...], set[int]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        stem, number, shards, suffix = match.groups() if match else (alone, "0", "", "")
        sets.setdefault((stem, shards, suffix), set()).add(int(number))
    if len(sets) > 1:
        called = [f"{a}-*-of-{shards}{z}" if shards else a for a, shards, z in sets]
        what = f"holds {len(sets)} data sets: {', '.join(called[:5])}"
        raise DamageError(Damage(str(folder), what), "Put each into its own folder.")
    for (stem, shards, suffix), there in sets.items():
        if not shards:
            continue
        missing = sorted(set(range(int(shards))) - there)
        if missing:
            first = f"{stem}-{missing[0]:05d}-of-{shards}{suffix}"
            what = f"{len(missing)} of {int(shards)} shards are missing, the first is {first}"
            raise DamageError(Damage(str(folder), what), "Copy them from their source.")
        if max(there) >= int(shards):
            what = f"{stem}-{max(there):05d}-of-{shards}{suffix} is none of {int(shards)} shards"
            raise DamageError(Damage(str(folder), what), "Shards are counted from 0: rename them.")
