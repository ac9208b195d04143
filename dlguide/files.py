"""Where the course's files lie, and whether there is room for new ones."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

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
    """Name the folder of what is kept between runs: built wheels, what was tuned and measured.

    The environment variable DLGUIDE_CACHE, or else `dlguide` in the user's own cache.
    """
    named = os.environ.get("DLGUIDE_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(named) if named else base / "dlguide"


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
