"""Fetching a data set by its name into the data folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dlguide.data.datasets.originals import ORIGINALS, restoring
from dlguide.data.transfer.catalogue import CATALOGUE, Source, names
from dlguide.data.transfer.download import Fetched, digest, fetch_file
from dlguide.data.transfer.errors import TransferError
from dlguide.data.transfer.progress import Progress
from dlguide.data.transfer.unpacking import unpack
from dlguide.errors import DataError, require_known
from dlguide.files import data_folder_to_write, file_lock


def fetch(
    name: str,
    folder: str | os.PathLike | None = None,
    progress: bool | Progress | None = None,
) -> tuple[Fetched, ...]:
    """Bring a data set into the data folder, as `dlguide.data.datasets.load` reads it.

    Files that are there and have their SHA-256 are left alone. An archive that somebody copied
    to its place is unpacked without a network.

    Args:
        name: one of `names()`.
        folder: the data folder, which gets a folder of this name; None takes $DLGUIDE_DATA or
            the repository's `data`.
        progress: True draws a bar per file; a function is called with the bytes done and in all.

    Returns:
        tuple: a `Fetched` for each file that is read, whether it was downloaded or there.

    Raises:
        ValueError: when there is no such data set; the message lists those there are.
        TransferError: when it cannot be had: no network, or a publisher who asks for
            registration; the text says what to do instead.
        DataError: when what is there or has come is damaged.
        MissingComponentError: when the data folder does not exist.
    """
    source = CATALOGUE[require_known(name, names(), "name")]
    place = data_folder_to_write(folder) / name
    if name in ORIGINALS:
        there = _there(name, place)
        if there is not None:
            return there
    if not source.downloads:
        raise TransferError(_by_hand(source, place))
    try:
        if source.unpacks:
            return _archive(source, place, progress)
        return tuple(
            fetch_file(each.url, place / each.name, each.sha256, progress=progress)
            for each in source.downloads
        )
    except TransferError as error:
        with suppress(OSError):
            place.rmdir()  # when nothing has come
        files = ", ".join(each.url for each in source.downloads)
        raise TransferError(f"{error} {name} needs {len(source.downloads)}: {files}.") from error


def _archive(source: Source, place: Path, progress: bool | Progress | None) -> tuple[Fetched, ...]:
    """Download the archive, unpack it, and give its folder its name once all is checked."""
    started = time.monotonic()
    (archive,) = source.downloads
    path = place / archive.name
    packed = fetch_file(archive.url, path, archive.sha256, progress=progress)
    with (
        file_lock(place / ".unpacking.lock", wait=True),
        _beside(place) as beside,
    ):
        whole = _there(source.name, place)
        if whole is None:
            unpack(path, beside / "all", progress=progress)
            _check(source.name, beside / "all")
            for made in (beside / "all").iterdir():
                if (place / made.name).exists():
                    (place / made.name).rename(beside / f"before-{made.name}")
                made.rename(place / made.name)
            whole = _there(source.name, place)
    assert whole is not None
    path.unlink(missing_ok=True)
    seconds, came = time.monotonic() - started, packed.downloaded_nbytes
    return tuple(
        Fetched(one.path, one.nbytes, came * (number == 0), seconds, one.sha256, True)
        for number, one in enumerate(whole)
    )


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """Give a folder to unpack into; the lock is held, so others were left by killed processes."""
    for left in place.glob(".unpacking-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=place) as folder:
        yield Path(folder)


def _there(name: str, place: Path) -> tuple[Fetched, ...] | None:
    """Return the files of a data set when all are there and as published, else None."""
    started, found = time.monotonic(), []
    for file in ORIGINALS[name].files:
        path = place / file.name
        right = path.is_file() and path.stat().st_size == file.nbytes
        if not right or digest(path) != file.sha256:
            if ORIGINALS[name].in_repository:
                what = "is damaged" if path.is_file() else "is not there"
                raise DataError(f"{path} {what}. {restoring(name, place)}")
            return None
        found.append((path, file))
    seconds = time.monotonic() - started
    return tuple(Fetched(str(p), f.nbytes, 0, seconds, f.sha256, True) for p, f in found)


def _check(name: str, folder: Path) -> None:
    for file in ORIGINALS[name].files:
        path = folder / file.name
        if not path.is_file() or digest(path) != file.sha256:
            raise DataError(f"{name}: the archive holds no {file.name} as it was published.")


def _by_hand(source: Source, place: Path) -> str:
    return (
        f"{source.name} cannot be fetched by a program: {source.by_hand}. Download it at "
        f"{source.page} and unpack it with `dlguide data unpack ARCHIVE FOLDER` below {place}. "
        f"{source.then} Check it with `dlguide data verify FOLDER`. Without it: "
        f"dlguide.data.synthetic makes data, which dlguide.data.layouts.{source.name} writes in "
        "the same form."
    )
