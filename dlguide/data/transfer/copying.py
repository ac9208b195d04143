"""Copying the files of a data set with their checksums, and comparing a copy with its source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.manifest import NAME as MANIFEST
from dlguide.data.formats.manifest import open_file
from dlguide.data.transfer.listing import SUMS, Listed, Listing, list_files

Item, Result = TypeVar("Item"), TypeVar("Result")
_BLOCK = 1 << 20
_THREADS, _AT_ONCE = 4, 1000
_AGAIN = "Nothing was kept. Wait until nobody writes to the data set, then copy it again."
_THEN = "Check the data set with `dlguide data verify FOLDER`, and fetch or convert it again."


def copy_all(source: Path, target: Path, listing: Listing, done: Callable[[int], None]) -> None:
    """Copy files into a new folder; what is read is held against its checksum on the way.

    A data set without a manifest gets a complete SHA256SUMS in its copy, so that the copy can
    be checked later. Times of change are kept.
    """
    target.mkdir(mode=0o755)
    for folder in sorted({os.path.dirname(file.name) for file in listing.files}):
        (target / folder).mkdir(parents=True, exist_ok=True)
    with open(target / SUMS, "x", encoding="utf-8") as sums:
        copied = in_parallel(
            lambda file: _copy(source / file.name, target / file.name, file, done), listing.files
        )
        for file, digest in zip(listing.files, copied, strict=True):
            sums.write(f"{digest}  {file.name}\n")
    if listing.kind == "manifest":
        (target / SUMS).unlink()  # the manifest has them


def difference(listing: Listing, target: Path, quick: bool, done: Callable[[int], None]) -> str:
    """Say in which way a copy differs from its source; the source's files are not read.

    A file counts as the same when its length and its checksum are; where the source has no
    checksum its time of change must be the same too. Then the copy is held against its own
    checksums, so that damage is seen.

    Args:
        listing: of the source.
        target: the copy.
        quick: whether to leave the copy's bytes unread: then damage that changes no length
            stays unseen.
        done: called with the bytes read since the last call.

    Returns:
        str: the first difference; empty when it is the same, whole.
    """
    mark = MANIFEST if listing.kind == "manifest" else SUMS
    if not (target / mark).is_file():
        return f"there is no {mark}: it is no copy that was staged"
    try:
        copied = list_files(target)
    except DamageError as error:
        return str(error.damage)
    there = {file.name: file for file in copied.files}
    names = [file.name for file in listing.files]
    if copied.kind != listing.kind or sorted(there) != sorted(names):
        odd = sorted(set(there) ^ set(names))
        return f"{odd[0]!r} is only in one of the two" if odd else "the form is another"
    for file in listing.files:
        what = _differs(file, there[file.name])
        if what:
            return f"{file.name!r} has another {what} than in the source"
    return "" if quick else _damage(target, copied, done)


def _differs(file: Listed, copy: Listed) -> str:
    if file.nbytes != copy.nbytes:
        return "length"
    if file.sha256:
        return "" if file.sha256 == copy.sha256 else "checksum"
    return "" if file.modified_ns == copy.modified_ns else "time of change"


def _damage(target: Path, copied: Listing, done: Callable[[int], None]) -> str:
    def check(file: Listed) -> str:
        if not file.sha256:
            return f"{file.name!r} is not in its {SUMS}"
        try:
            found = read_digest(target / file.name, file.nbytes, done)
        except DamageError as error:
            return str(error.damage)
        return "" if found == file.sha256 else f"{file.name!r} is damaged: its SHA-256 is another"

    return next(filter(None, in_parallel(check, copied.files)), "")


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Do the same with each item, a few at a time, and give the results in order.

    A file system that is far away answers each question late, but many at once.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        # a million at once would take gigabytes for what waits
        for at in range(0, len(items), _AT_ONCE):
            yield from pool.map(work, items[at : at + _AT_ONCE])


def read_digest(path: Path, nbytes: int, done: Callable[[int], None]) -> str:
    """Read a file and compute its SHA-256."""
    return _read(path, nbytes, lambda block: None, done)


def _copy(source: Path, target: Path, file: Listed, done: Callable[[int], None]) -> str:
    with open(target, "xb") as writing:
        found = _read(source, file.nbytes, writing.write, done)
    if file.sha256 and found != file.sha256:
        what = f"its SHA-256 is {found}, not {file.sha256}"
        raise DamageError(Damage(str(source), what), _THEN)
    if not file.sha256:
        _require_unchanged(source, file)
    os.utime(target, ns=(file.modified_ns, file.modified_ns))
    return found


def _require_unchanged(source: Path, file: Listed) -> None:
    """Check that what was read is what was listed; without a checksum only its time tells."""
    try:
        found = os.stat(source, follow_symlinks=False)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise DamageError(Damage(str(source), what), _AGAIN) from error
    if (found.st_mtime_ns, found.st_size) != (file.modified_ns, file.nbytes):
        raise DamageError(Damage(str(source), "was changed while it was copied"), _AGAIN)


def _read(
    path: Path, nbytes: int, use: Callable[[memoryview], object], done: Callable[[int], None]
) -> str:
    descriptor, _ = open_file(path, nbytes)
    digest, total = hashlib.sha256(), 0
    buffer = memoryview(bytearray(min(_BLOCK, max(nbytes, 1))))
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while read := _into(file, buffer, path, total):
            use(buffer[:read])
            digest.update(buffer[:read])
            total += read
            done(read)
    if total != nbytes:
        raise DamageError(Damage(str(path), f"has changed its length to {total} bytes"), _THEN)
    return digest.hexdigest()


def _into(file: object, buffer: memoryview, path: Path, offset: int) -> int:
    try:
        return file.readinto(buffer)
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise DamageError(Damage(str(path), what, offset=offset)) from error
