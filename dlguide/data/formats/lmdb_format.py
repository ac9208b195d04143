"""LMDB: a memory-mapped B+ tree, one key per sample, checked before it is mapped."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from dlguide.errors import DataError

DATA = "data.mdb"
_FIRST_MAP_NBYTES = 1 << 24
_LEAST_FREE_NBYTES = 1 << 20  # less is a full disk
# Flags of a page and of a node, from LMDB's source (mdb.c, P_BRANCH and so on).
_BRANCH, _LEAF, _IN_OTHER_PAGES = 0x01, 0x02, 0x01
_NO_PAGE = 2**64 - 1


class LmdbWriter(DatasetWriter):
    """Writes samples under growing keys, in transactions of a few megabytes."""

    kind = "lmdb"
    _environment: Any = None

    def begin(self) -> None:
        """Make the database; its map grows with it."""
        import lmdb

        self._full, self._error = lmdb.MapFullError, lmdb.Error
        self._map_nbytes = _FIRST_MAP_NBYTES
        self._waiting: list[tuple[bytes, bytes]] = []
        self._waiting_nbytes = 0
        # `sync=False`: the file is brought to the disk once, before the rename.
        self._environment = lmdb.open(
            str(self.folder / DATA),
            map_size=self._map_nbytes,
            subdir=False,
            lock=False,
            sync=False,
            metasync=False,
        )

    def put(self, sample: Sample) -> tuple[int, int, int, int]:
        """Put a sample under its number; its offset in the file is known at the end."""
        payload = encode(sample, self.count)
        self._waiting.append((_key(self.count), payload))
        self._waiting_nbytes += len(payload)
        if self._waiting_nbytes >= BLOCK * 4 or len(self._waiting) >= 4096:
            self._store()
        return 0, 0, len(payload), crc32c(payload)

    def finish(self) -> list[ManifestFile]:
        """Close the database; note where its values stand and which pages LMDB will follow."""
        self._store()
        try:
            self._environment.sync(True)
        except self._error as error:
            raise self._cannot_write(error) from error
        self.close()
        path = self.folder / DATA
        pages, values = walk(path)
        rows = self.rows("r+")
        if len(values) != self.count:
            raise RuntimeError(
                f"LMDB's file holds {len(values)} values where {self.count} were put. Its form "
                "differs from the one known here: use lmdb 1 to 3, or another format."
            )
        if self.count:
            rows["offset"] = values
        data = hash_file(path, DATA, "data", self.count)
        return [data, write_structure(self.folder, path, pages)]

    def close(self) -> None:
        """Close the database."""
        if self._environment is not None:
            self._environment.close()

    def _store(self) -> None:
        while self._waiting:
            try:
                with self._environment.begin(write=True) as transaction:
                    for key, payload in self._waiting:
                        transaction.put(key, payload, append=True)
                self._waiting, self._waiting_nbytes = [], 0
            except self._full:
                self._map_nbytes = max(2 * self._map_nbytes, 4 * self._waiting_nbytes)
                self._environment.set_mapsize(self._map_nbytes)
            except self._error as error:
                raise self._cannot_write(error) from error

    def _cannot_write(self, error: Exception) -> OSError:
        """Make the error; LMDB calls a full disk "Input/output error"."""
        path = self.folder / DATA
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_NBYTES:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return OSError(f"LMDB cannot write {path}: {error}")


class _Environments:
    """The files that LMDB has open: py-lmdb opens a file once a process, so readers share it.

    A child goes on with the maps of its parent after a fork: they are read without locks.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._readers: Counter[tuple[int, int]] = Counter()
        self._open: dict[tuple[int, int], Any] = {}
        # A child must not begin with a lock that another thread of its parent held.
        release = self._lock.release
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=release, after_in_child=release
        )

    def take(self, path: Path) -> tuple[Any, tuple[int, int]]:
        """Open a file, or share it; return its environment and the key to give it back."""
        import lmdb

        found = os.stat(path)
        key = found.st_dev, found.st_ino
        with self._lock:
            if key not in self._open:
                self._open[key] = lmdb.open(
                    str(path), subdir=False, readonly=True, lock=False, max_readers=1
                )
            self._readers[key] += 1
            return self._open[key], key

    def give_back(self, key: tuple[int, int]) -> None:
        """Close the file when this was its last reader."""
        with self._lock:
            self._readers[key] -= 1
            if not self._readers[key]:
                del self._readers[key]
                self._open.pop(key).close()


_OPEN = _Environments()


class LmdbDataset(StoredDataset):
    """Reads samples through LMDB, after the pages that it follows have been checked.

    Cannot be prevented: a file that is cut while it is mapped ends the process (SIGBUS).
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        import lmdb

        super().__init__(folder, manifest)
        self.check_bounds()
        path = check_structure(folder, manifest)
        self.opens += 3  # the table, the file to check it, the file to map it
        self._error = lmdb.Error
        try:
            environment, key = _OPEN.take(path)
            # also without a call of `close`
            self._give_back = weakref.finalize(self, _OPEN.give_back, key)
            self._give_back.atexit = False
            self._transaction = environment.begin(buffers=True)
        except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError) as error:
            raise DamageError(Damage(str(path), f"LMDB cannot open it: {error}")) from error
        except lmdb.Error as error:
            then = "If this process has opened it with `lmdb.open` itself, close that first."
            raise DataError(f"LMDB cannot open {path}: {error} {then}") from error

    def stored(self, number: int) -> bytes:
        """Look a number up in the tree."""
        try:
            found = self._transaction.get(_key(number))
        except self._error as error:
            raise self.damaged(number, f"LMDB cannot read it: {error}") from error
        if found is None:
            raise self.damaged(number, "LMDB does not find it")
        return bytes(found)

    def blocks(self) -> Iterator[RecordBlock]:
        """Go through the tree with a cursor."""
        number = 0
        try:
            for key, value in self._transaction.cursor().iternext():
                if bytes(key) != _key(number):
                    what = f"LMDB has the key {bytes(key)!r} where {_key(number)!r} belongs"
                    raise self.damaged(None, what)
                yield RecordBlock(bytes(value), number, (0,), (len(value),))
                number += 1
        except self._error as error:
            raise self.damaged(None, f"LMDB cannot read on at record {number}: {error}") from error

    def close(self) -> None:
        """Close the database; closing twice does nothing."""
        if not self.closed:
            self._transaction.abort()
            self._give_back()
        super().close()


def walk(path: Path) -> tuple[list[tuple[int, int]], list[int]]:
    """Follow LMDB's tree through its file: pages on the way, and where the values stand.

    Only for a file that was just written: it is believed.

    Source:
        LMDB 0.9, mdb.c (structures MDB_page, MDB_node, MDB_meta, MDB_db).
    """
    with open(path, "rb") as file:
        # The first two pages are copies of the root's address; the later transaction counts.
        page_nbytes = struct.unpack_from("<I", file.read(64), 16 + 24)[0]
        metas = []
        for number in (0, 1):
            file.seek(number * page_nbytes)
            meta = file.read(200)
            # behind the header: magic, version, address, map size, two trees, last page, count
            root = struct.unpack_from("<Q", meta, 16 + 24 + 48 + 40)[0]
            metas.append((struct.unpack_from("<Q", meta, 16 + 24 + 96 + 8)[0], root))
        root = max(metas)[1]
        pages, values = [0, 1], []

        def follow(number: int) -> None:
            file.seek(number * page_nbytes)
            page = file.read(page_nbytes)
            flags, lower = struct.unpack_from("<HH", page, 10)
            pages.append(number)
            for node in struct.unpack_from(f"<{(lower - 16) // 2}H", page, 16):
                low, high, kind, key_nbytes = struct.unpack_from("<HHHH", page, node)
                if flags & _BRANCH:
                    follow(low | high << 16 | kind << 32)
                elif flags & _LEAF:
                    value = node + 8 + key_nbytes
                    if kind & _IN_OTHER_PAGES:
                        first = struct.unpack_from("<Q", page, value)[0]
                        values.append(first * page_nbytes + 16)
                    else:
                        values.append(number * page_nbytes + value)

        if root != _NO_PAGE:
            follow(root)
    return [(page * page_nbytes, page_nbytes) for page in sorted(pages)], values


def _key(number: int) -> bytes:
    return b"%012d" % number
