"""Records one after the other in plain files, written and read: TFRecord and RecordIO."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from dlguide.data.formats.framing import FRAMINGS
from dlguide.data.formats.manifest import (
    BLOCK,
    File,
    Manifest,
    crc32c,
    open_file,
    read_exactly,
)
from dlguide.data.formats.reading import Block, Dataset
from dlguide.data.formats.sample import Sample, encode
from dlguide.data.formats.writing import HashedFile, Writer

# Files kept open at once; more would meet the limit of a process on data sets of many shards.
_MOST_OPEN = 64


@dataclass(frozen=True)
class _Part:
    """Whole records that are read at once: numbers and bytes from first/start to stop/end."""

    file: int
    first: int
    stop: int
    start: int
    end: int


class FramedWriter(Writer):
    """Writes records one after the other: TFRecord or RecordIO, in one file or several."""

    def __init__(self, path: Path, shard_samples: int | None, kind: str) -> None:
        self.kind, self._framing = kind, FRAMINGS[kind]
        self._shards: list[File] = []
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

    def finish(self) -> list[File]:
        """Close the last file and give all their names: which of how many."""
        self._finish_file()
        stem, shards = self.path.name[:200], len(self._shards)
        files = []
        for number, file in enumerate(self._shards):
            name = f"{stem}-{number:05d}-of-{shards:05d}"
            os.rename(self.folder / file.name, self.folder / name)
            files.append(File(name, file.role, file.nbytes, file.sha256, file.count))
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


class FramedDataset(Dataset):
    """Records one after the other in plain files: TFRecord or RecordIO."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self._framing = FRAMINGS[manifest.kind]
        self._open: OrderedDict[int, int] = OrderedDict()
        self.check_bounds()
        if sum(file.count for file in self.data) != self.count:
            raise self.damaged(None, "the counts of its files do not add up to that of all")
        # A file that is cut, swapped or gone is told at once, not in the middle of an epoch.
        for file in self.data:
            descriptor, _ = open_file(folder / file.name, file.nbytes)
            os.close(descriptor)
            self.opens += 1

    def stored(self, number: int) -> bytes:
        """Read one record at its place."""
        file, offset, nbytes, _ = self.index[number].tolist()
        return read_exactly(self.descriptor(file), nbytes, offset, self.path_of(file))

    def blocks(self) -> Iterator[Block]:
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
                    yield Block(contents, part.first, starts.tolist(), ends.tolist())
            finally:
                os.close(descriptor)

    def check_between(self, block: Block) -> None:
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
