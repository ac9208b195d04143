"""Folders of data and cache, atomic writes, checksums."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import platformdirs

from dlguide.errors import MissingComponentError, require


def data_folder(folder: str | os.PathLike | None = None) -> Path:
    """Find the folder that holds the course's data: `mnist/`, `published/`.

    The first of these that is given: the argument, the environment variable DLGUIDE_DATA, the
    `data` folder of the repository beside the package. One that is given but does not exist is
    an error; the next one is not tried in its place.
    """
    beside = Path(__file__).resolve().parents[1] / "data"
    found = Path(folder or os.environ.get("DLGUIDE_DATA") or beside).expanduser()
    if not found.is_dir():
        raise MissingComponentError(
            f"The data folder {found} does not exist. Set the environment variable DLGUIDE_DATA "
            "to the `data` folder of a clone of this repository."
        )
    return found


def cache_folder() -> Path:
    """Return the folder of what is kept between runs: built wheels, tuned and measured values.

    The environment variable DLGUIDE_CACHE, or else `dlguide` in the user's own cache.
    """
    named = os.environ.get("DLGUIDE_CACHE")
    return Path(named) if named else platformdirs.user_cache_path("dlguide", appauthor=False)


@contextmanager
def atomic_write(path: str | os.PathLike, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file that replaces `path` when the block ends, and is dropped if the block raises.

    A reader sees the old content or the new one, also after a crash: the file is written beside
    `path`, synchronised with the disk and renamed.

    Args:
        mode: "w" for text (UTF-8) or "wb" for bytes.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with open(
            partial, mode.replace("w", "x"), encoding=None if "b" in mode else "utf-8"
        ) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def sha256(path: str | os.PathLike) -> str:
    """Return the SHA-256 of a file's bytes in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_writable(folder: str | os.PathLike, name: str, nbytes: int = 1_000_000) -> None:
    """Check before the work, not after it, that its results can be written.

    Args:
        folder: where they shall go; made when it is missing.
        name: the argument that the user gave it by.
        nbytes: room that is needed (bytes).

    Raises:
        ValueError: when the folder cannot be made or written to, or the disk is too full.
    """
    folder = Path(folder)
    then = "Choose another folder."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        text = f"be a folder this process can write to ({error.strerror})"
        require(False, name, text, str(folder), then)
    room, there = f"{nbytes / 1e6:.1f} MB", f"{folder} with {free / 1e6:.1f} MB free"
    require(free >= nbytes, name, f"be on a disk with room for {room}", there, then)
