"""Cold and warm reading: drop files from the page cache, and measure how much of them it holds."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

DROP = Path("/proc/sys/vm/drop_caches")


def files_of(folder: str | os.PathLike) -> list[Path]:
    """List all files in a folder and below."""
    return sorted(path for path in Path(folder).rglob("*") if path.is_file())


def forget(paths: Iterable[str | os.PathLike], written: bool = True) -> None:
    """Ask the kernel to drop the contents of files from its cache.

    Needs no root. The names, owners and places of files (directory entries and inodes) stay in
    memory: see `forget_names`. What another process has mapped may stay too; see `share_kept`.

    Source:
        posix_fadvise(2), POSIX_FADV_DONTNEED.
    """
    for descriptor in _opened(paths):
        if written:
            os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def forget_names() -> str | None:
    """Drop directory entries and inodes of all files of this machine; needs root.

    All programs of the machine have to read them from the disk again. Returns the reason if it is
    not possible, else None.

    Source:
        Linux, Documentation/admin-guide/sysctl/vm.rst, drop_caches = 2.
    """
    os.sync()
    try:
        DROP.write_text("2\n")
    except OSError as error:
        return f"{DROP} cannot be written: {error.strerror}"
    return None


def share_kept(paths: Iterable[str | os.PathLike]) -> float | None:
    """Return the share of the pages of files that is in memory, None if unknown.

    Source:
        mincore(2).
    """
    kept = pages = 0
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    for descriptor in _opened(paths):
        nbytes = os.fstat(descriptor).st_size
        if not nbytes:
            continue
        # ctypes returns the address of a writable map only, hence a private one
        with mmap.mmap(descriptor, nbytes, mmap.MAP_PRIVATE) as mapped:
            states = np.zeros(-(-nbytes // mmap.PAGESIZE), np.uint8)
            start = (ctypes.c_char * nbytes).from_buffer(mapped)
            failed = mincore(
                ctypes.c_void_p(ctypes.addressof(start)),
                ctypes.c_size_t(nbytes),
                ctypes.c_void_p(states.ctypes.data),
            )
            del start
        if failed:
            return None
        kept += int((states & 1).sum())
        pages += len(states)
    return kept / pages if pages else None


def _opened(paths: Iterable[str | os.PathLike]) -> Iterator[int]:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
