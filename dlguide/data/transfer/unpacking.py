"""Unpacking tar and zip archives of strangers: never a write outside of the folder.

Folders and files are made here, under names that were checked, in a folder that is new. As no
link is ever made, no name can lead out through one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dlguide.data.layouts.files import whole_folder
from dlguide.data.transfer.archives import DAMAGE, Member, members
from dlguide.data.transfer.progress import Progress, reporting
from dlguide.errors import DataError, MissingComponentError, require_count

_BLOCK = 1 << 20
MOST_MEMBERS = 5_000_000
_RATIO, _LEAST_NBYTES = 200, 1_000_000_000


@dataclass(frozen=True)
class Unpacked:
    """What an archive held: path (of the folder), files (count), nbytes (of all), seconds."""

    path: str
    files: int
    nbytes: int
    seconds: float


def unpack(
    archive: str | os.PathLike,
    folder: str | os.PathLike,
    most_nbytes: int | None = None,
    most_members: int = MOST_MEMBERS,
    progress: bool | Progress | None = None,
) -> Unpacked:
    """Unpack a tar (plain, gzip, bzip2 or xz) or a zip archive into a new folder.

    The folder appears when all is unpacked and checked, or not at all. Refused are: absolute
    names, names with `..`, a backslash, a drive, control characters or bytes that are no
    UTF-8; links and everything else that is no file and no folder; a name that stands twice;
    encrypted members; more bytes or members than the limits, whatever the archive declares. An
    archive that is cut short or damaged is refused as far as its form can tell: gzip, bzip2, xz
    and zip have checksums over contents, a plain tar only over its headers.

    Modes, owners and times of the archive are not taken over.

    Args:
        archive: the file; its contents tell the kind, not its name.
        folder: the new folder; must not exist yet.
        most_nbytes: limit of all files together, unpacked (bytes); None for 200 times the
            archive, but at least 1 GB.
        most_members: limit of files and folders together (count).
        progress: True draws a bar; a function is called with the bytes unpacked and in all
            (None for a tar).

    Returns:
        Unpacked: number of files and bytes.

    Raises:
        ValueError: when an argument is out of range or the folder exists.
        MissingComponentError: when there is no such archive.
        DataError: when the archive is damaged or refused; names archive and member.
        OSError: when the disk is full.
    """
    require_count(most_members, "most_members")
    path = Path(archive)
    if not path.is_file():
        raise MissingComponentError(f"There is no archive {path}. Download it first.")
    if most_nbytes is None:
        most_nbytes = max(_RATIO * path.stat().st_size, _LEAST_NBYTES)
    require_count(most_nbytes, "most_nbytes", least=0)
    started = time.monotonic()
    with whole_folder(folder) as partial, reporting(progress, path.name) as report:
        work = _Work(partial, most_nbytes, most_members, report)
        with _telling(path, work):
            for member in members(path):
                work.take(member)
    return Unpacked(str(folder), work.files, work.nbytes, time.monotonic() - started)


class _Refused(Exception):
    """The member in work must not be unpacked, and why."""


class _Work:
    """What has been unpacked so far, held against the limits."""

    def __init__(self, folder: Path, most_nbytes: int, most_members: int, report: Progress) -> None:
        self.folder, self.report = folder, report
        self.most_nbytes, self.most_members = most_nbytes, most_members
        self.members = self.files = self.nbytes = 0
        self.at = ""  # the member in work, for errors
        self._folders: set[str] = set()

    def take(self, member: Member) -> None:
        """Check a member before anything of it is written, then unpack it."""
        self.at = member.name
        self.members += 1
        if self.members > self.most_members:
            raise _Refused(f"the archive has more than {self.most_members} members")
        why = refusal(member.name) or member.strange
        if not why and member.nbytes < 0:
            why = f"its length is {member.nbytes}"
        if why:
            raise _Refused(why)
        self._check_size(member.nbytes)
        name = "/".join(part for part in member.name.split("/") if part not in ("", "."))
        if member.is_folder:
            self._make_folder(name)
        else:
            self._write_file(name, member)

    def _make_folder(self, name: str) -> None:
        """Make a folder and those around it; one that was made here before is fine."""
        if name in self._folders or not name:
            return
        self._make_folder(name.rpartition("/")[0])
        try:
            (self.folder / name).mkdir()
        except FileExistsError:
            raise _Refused(f"{name!a} is a file already") from None
        self._folders.add(name)

    def _write_file(self, name: str, member: Member) -> None:
        """Write a file of exactly the declared length."""
        if not name:
            raise _Refused("its name is empty")
        self._make_folder(name.rpartition("/")[0])
        try:
            target = open(self.folder / name, "xb")  # noqa: SIM115 - closed below
        except FileExistsError:
            raise _Refused("its name stands twice in the archive") from None
        done = 0
        with target, member.open() as source:
            while block := source.read(_BLOCK):
                done += len(block)
                self._check_size(len(block))
                target.write(block)
                self.nbytes += len(block)
                self.report(self.nbytes, member.total_nbytes)
        if done != member.nbytes:
            raise _Refused(f"ends after {done} of {member.nbytes} bytes")
        self.files += 1

    def _check_size(self, more: int) -> None:
        if self.nbytes + more > self.most_nbytes:
            raise _Refused(
                f"with it the archive unpacks to more than {self.most_nbytes} bytes, the limit "
                "set by `most_nbytes`"
            )


def refusal(name: str) -> str:
    """Say why a member's name must not be unpacked.

    >>> refusal("images/000001.png"), refusal("images/../../etc/passwd")
    ('', 'its name contains `..`')
    """
    parts = name.split("/")
    rules = (
        (name in ("", "/"), "its name is empty"),
        (name.startswith("/"), "its name is absolute"),
        (".." in parts, "its name contains `..`"),
        ("\\" in name, "its name contains a backslash"),
        (re.match("[A-Za-z]:", name), "its name begins with a drive"),
        (any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in name), "control characters"),
        (any(0xD800 <= ord(sign) < 0xE000 for sign in name), "its name is no UTF-8"),
    )
    for bad, why in rules:
        if bad:
            return why if "name" in why else f"its name contains {why}"
    nbytes = len(name.encode())
    longest = max(len(part.encode()) for part in parts)
    return f"its name is too long ({nbytes} bytes)" if longest > 255 or nbytes > 2000 else ""


@contextmanager
def _telling(path: Path, work: _Work) -> Iterator[None]:
    """Turn what the readers raise into one sentence that names archive and member."""
    then = "Nothing was unpacked. Download the archive again, or do not trust it."
    try:
        yield
    except _Refused as error:
        raise DataError(f"{path}: member {work.at[:200]!a}: {error}. {then}") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the archive
        after = f"at member {work.at[:200]!a}" if work.at else "before its first member"
        text = str(error) or type(error).__name__
        raise DataError(f"{path}: damaged, or no tar or zip, {after}: {text}. {then}") from error
