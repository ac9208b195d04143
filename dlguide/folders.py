"""Where the files that come with the course lie."""

from __future__ import annotations

import os
from pathlib import Path

from dlguide.checks import MissingComponentError


def data_folder(folder: str | os.PathLike | None = None) -> Path:
    """Find the folder that holds the course's data: `mnist/`, `published/`.

    The first of these that is given: the argument, the environment variable DLGUIDE_DATA, the
    `data` folder of the repository beside the package. One that is given but does not exist is
    an error; the next one is not tried in its place.

    Args:
        folder: the folder, or None to look for it.

    Returns:
        Path: the folder, which exists.

    Raises:
        MissingComponentError: when the folder does not exist.
    """
    beside = Path(__file__).resolve().parents[1] / "data"
    found = Path(folder or os.environ.get("DLGUIDE_DATA") or beside).expanduser()
    if not found.is_dir():
        raise MissingComponentError(
            f"The data folder {found} does not exist. Set the environment variable DLGUIDE_DATA "
            "to the `data` folder of a clone of this repository."
        )
    return found
