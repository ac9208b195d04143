"""One process at a time: a lock that ends with its process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlguide.data.transfer.errors import HeldError, NoLocksError

_LOOK_S = 0.05
_UNKNOWN = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def locked(path: Path, wait: bool) -> Iterator[None]:
    """Hold a lock file; the kernel lets go of it when the process ends or is killed.

    The file is removed at the end. One that a killed process left is nobody's and is taken.
    """
    descriptor = _hold(path)
    while descriptor is None:
        if not wait:
            owner = _owner(path)
            raise HeldError(
                f"{owner} is at work on {path.name.removesuffix('.lock')} in "
                f"{path.parent}. Wait for it, or end it.",
                owner,
            )
        time.sleep(_LOOK_S)
        descriptor = _hold(path)
    try:
        with suppress(OSError):  # a full disk
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.unlink(path)  # while it is held: whoever opened it before finds another file there
        os.close(descriptor)


def _owner(path: Path) -> str:
    """Name the process that holds the lock file, as far as it has said so."""
    try:
        owner = path.read_text(errors="replace")
    except OSError:
        owner = ""
    return f"Process {owner}" if owner else "Another process"


def _hold(path: Path) -> int | None:
    """Lock the file and return its descriptor, or None when another process holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there, mine = os.stat(path, follow_symlinks=False), os.fstat(descriptor)
        if os.path.samestat(there, mine):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass  # held by another, or removed by the one that held it
    except OSError as error:
        os.close(descriptor)
        if error.errno not in _UNKNOWN:
            raise
        raise NoLocksError(
            f"The file system of {path.parent} knows no locks ({error.strerror}). Choose a folder "
            "on a local disk."
        ) from error
    os.close(descriptor)
    return None
