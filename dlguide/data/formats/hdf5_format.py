"""HDF5: all samples one after the other in one chunked array, checked before it is opened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
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
    check_structure,
    crc32c,
)
from dlguide.data.formats.sample import Sample, encode
from dlguide.data.formats.writer import DatasetWriter, hash_file, write_structure

DATA = "data.h5"
RECORDS, ENDS = "records", "ends"
CHUNK_NBYTES = 1 << 18


class Hdf5Writer(DatasetWriter):
    """Writes `records` (all bytes) and `ends` (where each sample ends among them)."""

    kind = "hdf5"
    _file: Any = None

    def begin(self) -> None:
        """Make the file."""
        import h5py

        self._file = h5py.File(self.folder / DATA, "x")
        self._records = self._file.create_dataset(
            RECORDS, (0,), np.uint8, maxshape=(None,), chunks=(CHUNK_NBYTES,)
        )
        self._waiting: list[bytes] = []
        self._waiting_nbytes = self._nbytes = 0

    def put(self, sample: Sample) -> tuple[int, int, int, int]:
        """Append a sample; what is appended goes to the file a block at a time."""
        payload = encode(sample, self.count)
        offset = self._nbytes
        self._waiting.append(payload)
        self._waiting_nbytes += len(payload)
        self._nbytes += len(payload)
        if self._waiting_nbytes >= BLOCK * 4:
            self._store()
        return 0, offset, len(payload), crc32c(payload)

    def finish(self) -> list[ManifestFile]:
        """Close the file; note every part of it that is not a chunk of samples."""
        self._store()
        rows = self.rows()
        with _os_errors():
            self._file[ENDS] = rows["offset"] + rows["nbytes"]
            self._file.flush()
        chunks: list[tuple[int, int]] = []
        if self._nbytes:
            self._records.id.chunk_iter(lambda chunk: chunks.append((chunk[2], chunk[3])))
        self._file.close()
        path = self.folder / DATA
        data = hash_file(path, DATA, "data", self.count)
        return [data, write_structure(self.folder, path, _gaps(sorted(chunks), data.nbytes))]

    def close(self) -> None:
        """Close the file, unless it is closed."""
        if not self._file:
            return
        try:
            self._file.flush()
        except (OSError, RuntimeError):
            # A full disk. What HDF5 cannot write when it closes the file it would write when the
            # process ends, and crash it: from here on it writes to nowhere.
            with open(os.devnull, "r+b", buffering=0) as nowhere:
                os.dup2(nowhere.fileno(), self._file.id.get_vfd_handle(), inheritable=False)
        self._file.close()

    def _store(self) -> None:
        if self._waiting:
            block = np.frombuffer(b"".join(self._waiting), np.uint8)
            with _os_errors():
                self._records.resize((self._nbytes,))
                self._records[self._nbytes - len(block) :] = block
            self._waiting, self._waiting_nbytes = [], 0


class Hdf5Dataset(StoredDataset):
    """Reads samples through h5py, after all but the samples themselves has been checked.

    The offset that errors name is the sample's place in the array `records`; HDF5 keeps it in
    chunks of `CHUNK_NBYTES` bytes.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        import h5py

        super().__init__(folder, manifest)
        self.check_bounds()
        path = check_structure(folder, manifest)
        self.opens += 3  # the table, the file to check it, the file to read it
        try:
            # Locks would fail on file systems without them, and no process writes here.
            self._file = h5py.File(path, "r", locking=False)
            # A link is not followed: it may lead to another file, or to a pipe that never answers.
            sound = isinstance(self._file.get(RECORDS, getlink=True), h5py.HardLink)
            if sound:
                self._records = self._file[RECORDS]
                sound = self._records.dtype == np.uint8 and self._records.ndim == 1
                sound &= not self._records.is_virtual and self._records.external is None
        except (OSError, KeyError, RuntimeError) as error:
            raise DamageError(Damage(str(path), f"HDF5 cannot open it: {error}")) from error
        ends = self.index["offset"] + self.index["nbytes"]
        if not sound or int(ends.max(initial=0)) != self._records.size:
            self._file.close()
            raise DamageError(Damage(str(path), f"its array {RECORDS!r} does not fit the index"))

    def stored(self, number: int) -> bytes:
        """Read a part of the array."""
        _, offset, nbytes, _ = self.index[number].tolist()
        return self._part(number, offset, offset + nbytes)

    def blocks(self) -> Iterator[RecordBlock]:
        """Read large parts of the array."""
        ends = self.index["offset"] + self.index["nbytes"]
        first = at = 0
        while first < self.count:
            # as many whole records as a block has room for, but at least one
            room = np.uint64(at + 4 * BLOCK)  # an int would turn all of `ends` into floats
            stop = max(int(np.searchsorted(ends, room, "right")), first + 1)
            end = int(ends[stop - 1])
            starts = self.index["offset"][first:stop] - np.uint64(at)
            inside = starts.tolist(), (ends[first:stop] - np.uint64(at)).tolist()
            yield RecordBlock(self._part(first, at, end), first, *inside)
            first, at = stop, end

    def place(self, number: int, file: int, offset: int) -> tuple[str, int | None]:
        """Name no byte of the file: HDF5 puts chunks where it likes."""
        return self.data[0].name, None

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        if not self.closed:
            self._file.close()
        super().close()

    def _difference(self, number: int, contents: bytes) -> str:
        offset = int(self.index[number]["offset"])
        first, last = offset // CHUNK_NBYTES, (offset + len(contents)) // CHUNK_NBYTES
        chunks = f"chunk {first}" if first == last else f"chunks {first} to {last}"
        return f"{super()._difference(number, contents)}, in {chunks} of {RECORDS!r}"

    def _part(self, number: int, start: int, end: int) -> bytes:
        if start == end:
            return b""
        try:
            return self._records[start:end].tobytes()
        except (OSError, RuntimeError) as error:
            raise self.damaged(number, f"HDF5 cannot read it: {error}") from error


@contextlib.contextmanager
def _os_errors() -> Iterator[None]:
    """Raise an OSError where h5py raises a RuntimeError because HDF5 cannot write."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"HDF5 cannot write: {error}") from error


def _gaps(parts: list[tuple[int, int]], nbytes: int) -> list[tuple[int, int]]:
    """List what lies between sorted parts of a file, as offset and length."""
    gaps, at = [], 0
    for offset, length in [*parts, (nbytes, 0)]:
        if offset > at:
            gaps.append((at, offset - at))
        at = offset + length
    return gaps
