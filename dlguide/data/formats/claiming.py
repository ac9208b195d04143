"""One writer a folder: held until the writer's process ends, however that ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def claim(folder: Path) -> int | None:
    """Make a folder and hold it, or take over one that a killed process left and empty it.

    The lock is the kernel's. It tells a writer in another container from one that has ended;
    the number of a process cannot, as each container counts its processes on its own.
    """
    while True:
        made = _make(folder)
        # A folder that its writer finishes or removes meanwhile is not there: once more.
        with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            stack.callback(os.close, descriptor)
            if not _lock(descriptor, made):
                return None
            if os.path.samestat(os.stat(folder, follow_symlinks=False), os.fstat(descriptor)):
                _empty(folder)
                stack.pop_all()  # it stays open
                return descriptor


def _make(folder: Path) -> bool:
    try:
        folder.mkdir()
    except FileExistsError:
        return False
    return True


def _lock(descriptor: int, made: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return made  # nobody can tell whether one that was there is in use
    return True


def _empty(folder: Path) -> None:
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
