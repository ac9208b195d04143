"""Which files a data set consists of, and the checksums that it brings along."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.folder import FolderDataset
from dlguide.data.formats.manifest import NAME as MANIFEST
from dlguide.data.formats.manifest import is_inside
from dlguide.data.formats.opening import open_dataset
from dlguide.errors import MissingComponentError

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a data set.

    name (relative to the folder, with /), nbytes, sha256 (empty where nobody knows it),
    modified_ns (when it was changed last).
    """

    name: str
    nbytes: int
    sha256: str
    modified_ns: int


@dataclass(frozen=True)
class Listing:
    """The files of a data set: kind ("manifest" or "sums"), files, nbytes (of all)."""

    kind: str
    files: tuple[Listed, ...]
    nbytes: int


def list_files(folder: Path) -> Listing:
    """List the files of a data set without reading them.

    Where `formats.create` wrote the folder these are the files that its manifest vouches for,
    and the manifest; elsewhere all files in it and below but SHA256SUMS, which gives the
    checksums if it is there.
    """
    require_folder(folder)
    there = (folder / MANIFEST).is_file()
    files = _of_manifest(folder) if there else _of_folder(folder)
    return Listing("manifest" if there else "sums", files, sum(file.nbytes for file in files))


def require_folder(folder: Path) -> None:
    """Check that there is a folder, before anything is written."""
    if not folder.is_dir():
        raise MissingComponentError(
            f"There is no folder {folder}. `dlguide data fetch NAME` gets a data set, "
            "`dlguide data list` names those there are; dlguide.data.synthetic makes one without "
            "a network."
        )


def read_sums(path: Path) -> dict[str, str]:
    """Read a file of checksums as `sha256sum` writes it."""
    found: dict[str, str] = {}
    try:
        # `splitlines` would also end a line at a form feed or U+2028 within a name
        lines = path.read_bytes().decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DamageError(Damage(str(path), f"cannot be read: {error}"), _THEN) from error
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        match = _LINE.fullmatch(line.removesuffix("\r"))
        if match is None or not is_inside(match[2]) or match[2] in found:
            twice = match is not None and match[2] in found
            what = "names a file twice" if twice else "is no checksum and name inside the folder"
            raise DamageError(Damage(str(path), f"line {number} {what}"), _THEN)
        found[match[2]] = match[1].lower()
    return found


_THEN = "Write it again with `sha256sum`, or take it from where the data set came from."


def _of_manifest(folder: Path) -> tuple[Listed, ...]:
    with open_dataset(folder) as dataset:
        facts = [(file.name, file.nbytes, file.sha256) for file in dataset.manifest.files]
        if isinstance(dataset, FolderDataset):
            for number in range(dataset.count):
                one = dataset.facts(number)
                facts.append((one["name"], int(dataset.index[number]["nbytes"]), one["sha256"]))
    files = [_listed(folder, name, sha256, nbytes) for name, nbytes, sha256 in sorted(facts)]
    with open(folder / MANIFEST, "rb") as file:
        own = hashlib.file_digest(file, "sha256").hexdigest()
    return (*files, _listed(folder, MANIFEST, own))


def _of_folder(folder: Path) -> tuple[Listed, ...]:
    sums = read_sums(folder / SUMS) if os.path.lexists(folder / SUMS) else {}
    names = sorted(set(_walk(folder)) - {SUMS})
    lost = sorted(set(sums) - set(names))
    if lost:
        raise DamageError(Damage(str(folder / lost[0]), f"is listed in {SUMS} but not there"), _GET)
    return tuple(_listed(folder, name, sums.get(name, "")) for name in names)


_GET = "Fetch the data set again, or restore the file."


def _walk(folder: Path, below: str = "") -> list[str]:
    """Name all files in a folder and below."""
    found = []
    with os.scandir(folder / below) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            _require_listable(folder, name)
            if entry.is_dir(follow_symlinks=False):
                found += _walk(folder, f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                found.append(name)
            else:
                what = "is a link" if entry.is_symlink() else "is no ordinary file"
                then = "A data set consists of folders and ordinary files only."
                raise DamageError(Damage(str(folder / name), what), then)
    return found


def _require_listable(folder: Path, name: str) -> None:
    """Refuse a name that would spoil the list of checksums, which is UTF-8 with a name a line."""
    utf_8 = not any(0xD800 <= ord(sign) < 0xE000 for sign in name)
    if not utf_8 or "\n" in name or "\r" in name:
        what = "has a name that " + ("holds an end of line" if utf_8 else "is no UTF-8")
        then = f"Rename it: {SUMS} cannot list it."
        raise DamageError(Damage(ascii(str(folder / name)), what), then)


def _listed(folder: Path, name: str, sha256: str, nbytes: int | None = None) -> Listed:
    path = folder / name
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError as error:
        raise DamageError(Damage(str(path), f"cannot be read: {error.strerror}"), _GET) from error
    if nbytes is not None and found.st_size != nbytes:
        what = f"has {found.st_size} bytes, its manifest says {nbytes}"
        raise DamageError(Damage(str(path), what))
    return Listed(name, found.st_size, sha256, found.st_mtime_ns)
