"""The manifest of a data set: which files it has, how long they are and what their SHA-256 is."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from dlguide.data.formats.damage import Damage, DamageError

NAME = "manifest.json"
VERSION = 1
BLOCK = 1 << 20
_MOST_NBYTES = 1 << 26
# CRC-32C of bytes or of a read-only array; the name is short because it stands in inner loops.
checksum = google_crc32c.value
_ROLES = ("data", "index", "structure", "list")
# One row per sample: which data file, where its bytes begin there, how many, their checksum.
ROW = np.dtype([("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("crc32c", "<u4")])
# One row per part of a file that must be whole before a library may open it.
RANGE = np.dtype([("offset", "<u8"), ("nbytes", "<u8"), ("crc32c", "<u4")])


@dataclass(frozen=True)
class File:
    """A file that the manifest vouches for.

    name (relative to the manifest, with /), role ("data", "index", "structure" or "list"),
    nbytes, sha256 (hexadecimal), count (samples in it).
    """

    name: str
    role: str
    nbytes: int
    sha256: str
    count: int


@dataclass(frozen=True)
class Manifest:
    """What a data set consists of.

    kind (of the format), count (samples), nbytes (of all its files but the manifest), files.
    """

    kind: str
    count: int
    nbytes: int
    files: tuple[File, ...]

    def of_role(self, role: str) -> tuple[File, ...]:
        """Select the files that serve one purpose."""
        return tuple(file for file in self.files if file.role == role)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, with its own checksum, to the disk."""
    contents = _encoded({"version": VERSION, **asdict(manifest)})
    with open(folder / NAME, "xb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())


def read_manifest(folder: Path) -> Manifest:
    """Read a manifest after holding it against its own checksum.

    Args:
        folder: of the data set.

    Returns:
        Manifest: with file names that stay inside the folder.

    Raises:
        DamageError: when it is missing, damaged, of another version or names a place outside.
    """
    path = folder / NAME
    if not os.path.lexists(path):
        there = "is not there" if folder.is_dir() else "cannot be there: this is no folder"
        raise DamageError(
            Damage(str(path), there),
            "Give the folder that `formats.create` wrote. TFRecord and RecordIO files of others "
            "are read with `formats.open_plain`.",
        )
    contents = _whole_file(path)
    try:
        record = json.loads(contents)
        whole = _encoded(record["manifest"]) == contents
        facts = dict(record["manifest"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamageError(Damage(str(path), f"is no manifest ({error})")) from error
    if not whole:
        raise DamageError(Damage(str(path), "does not fit its own SHA-256"))
    version = facts.pop("version", None)
    if version != VERSION:
        what = f"has version {version!r}, this dlguide reads {VERSION}"
        raise DamageError(Damage(str(path), what), "Convert the data set again.")
    try:
        files = tuple(File(**each) for each in facts.pop("files"))
        manifest = Manifest(**facts, files=files)
        counts = [manifest.count, manifest.nbytes]
        counts += [number for file in files for number in (file.nbytes, file.count)]
        sound = all(type(number) is int and 0 <= number < 2**63 for number in counts) and all(
            file.role in _ROLES and is_inside(file.name) for file in files
        )
    except TypeError as error:
        raise DamageError(Damage(str(path), f"lacks a field ({error})")) from error
    if not sound or len(manifest.of_role("index")) != 1:
        raise DamageError(Damage(str(path), "has an impossible count, role or file name"))
    return manifest


def is_inside(name: Any) -> bool:
    """Tell whether a file name stays inside the folder that it is relative to.

    >>> is_inside("7/000000012.png"), is_inside("../12.png"), is_inside("/etc/passwd")
    (True, False, False)
    """
    if not isinstance(name, str) or "\0" in name or len(name) > 4096:
        return False
    return all(part not in ("", ".", "..") for part in name.split("/"))


def open_file(path: Path, nbytes: int | None = None) -> tuple[int, int]:
    """Open a file for reading after checking what it is and how long."""
    # Without O_NONBLOCK a pipe under this name would hold us for ever.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        text = "is a link" if path.is_symlink() else f"cannot be opened: {error.strerror}"
        raise DamageError(Damage(str(path), text)) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        what = "is not an ordinary file"
    elif nbytes is not None and found.st_size != nbytes:
        what = f"has {found.st_size} bytes, its manifest says {nbytes}"
    else:
        return descriptor, found.st_size
    os.close(descriptor)
    raise DamageError(Damage(str(path), what))


def read_exactly(descriptor: int, nbytes: int, offset: int, path: Path) -> bytes:
    """Read a part of a file, all of it."""
    parts, left = [], nbytes
    while left:
        try:
            part = os.pread(descriptor, left, offset + nbytes - left)
        except OSError as error:
            text = f"cannot be read: {error.strerror}"
            raise DamageError(Damage(str(path), text, offset=offset)) from error
        if not part:
            raise DamageError(Damage(str(path), "has become shorter", offset=offset))
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_table(folder: Path, file: File, dtype: np.dtype) -> np.ndarray:
    """Read a table of the data set after holding it against its SHA-256."""
    path = folder / file.name
    descriptor, nbytes = open_file(path, file.nbytes)
    try:
        contents = read_exactly(descriptor, nbytes, 0, path)
    finally:
        os.close(descriptor)
    if hashlib.sha256(contents).hexdigest() != file.sha256:
        raise DamageError(Damage(str(path), "does not fit the SHA-256 of its manifest"))
    if nbytes % dtype.itemsize:
        raise DamageError(Damage(str(path), "ends within a row"))
    return np.frombuffer(contents, dtype)


def crc32c(block: bytes, start: int = 0, end: int | None = None) -> int:
    """Compute the CRC-32C of a part of a block, without copying that part."""
    end = len(block) if end is None else end
    if start == 0 and end == len(block):
        return google_crc32c.value(block)
    # google_crc32c takes no memoryview, but a read-only array.
    return google_crc32c.value(np.frombuffer(block, np.uint8)[start:end])


def _whole_file(path: Path) -> bytes:
    descriptor, nbytes = open_file(path)
    try:
        if nbytes > _MOST_NBYTES:
            raise DamageError(Damage(str(path), f"has {nbytes} bytes, too many for a manifest"))
        return read_exactly(descriptor, nbytes, 0, path)
    finally:
        os.close(descriptor)


def _encoded(facts: Any) -> bytes:
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({"sha256": digest, "manifest": facts}, indent=1).encode() + b"\n"
