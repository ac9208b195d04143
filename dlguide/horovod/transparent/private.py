"""What a rank above 0 writes by itself, so that it clobbers nothing of rank 0's.

A file that such a rank opens to write is a private copy in the run's folder, which it reads again
where the script reads the file. A temporary folder or file, whose name is made up on each rank,
is its own anyway: there the rank does all that rank 0 does in its.
"""

from __future__ import annotations

import builtins
import functools
import io
import itertools
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from dlguide.horovod.transparent.session import Session


def path_of(file: Any) -> str | None:
    """Return the absolute path that a value names; None for what names no path."""
    if not isinstance(file, str | bytes | os.PathLike):
        return None
    return os.path.abspath(os.fsdecode(file))


class Private:
    """The private copies and temporary files of one rank."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.plain_open = builtins.open
        self.copies: dict[str, Path] = {}  # by the path that the script names
        self.own: list[str] = []  # temporary folders and files that this rank has made
        self._numbers = itertools.count()

    def install(self) -> None:
        """Give this rank a private copy of every file that it opens to write."""
        builtins.open = io.open = self.open
        make, begin = tempfile.mkdtemp, tempfile._mkstemp_inner

        @functools.wraps(make)
        def mkdtemp(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            self.own.append(path_of(made))
            return made

        @functools.wraps(begin)
        def mkstemp_inner(*args: Any) -> Any:
            number, made = begin(*args)
            self.own.append(path_of(made))
            return number, made

        tempfile.mkdtemp, tempfile._mkstemp_inner = mkdtemp, mkstemp_inner

    def owns(self, file: Any) -> bool:
        """Say whether a path is, or lies in, a temporary one of this rank's own."""
        path = path_of(file)
        return path is not None and any(_within(path, each) for each in self.own)

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        """Open a file as `open` does, to write or to read this rank's copy of it."""
        path = path_of(file)
        free = (str(self.session.folder), "/dev/", "/proc/")
        if path is None or path.startswith(free) or self.owns(path) or "opener" in kwargs:
            return self.plain_open(file, mode, *args, **kwargs)
        writes = set(mode) & set("wax+")
        if writes and path not in self.copies:
            copy = self._place()
            if set(mode) & set("ar") and os.path.exists(path):
                shutil.copyfile(path, copy)
            self.copies[path] = copy
        return self.plain_open(self.copies.get(path, file), mode, *args, **kwargs)

    def follow(self, name: str, paths: list[str]) -> None:
        """Do to the private copies what a call has done to the files that rank 0 has."""
        source, target = paths[0], paths[-1]
        if name in ("remove", "unlink", "rmdir", "rmtree", "removedirs"):
            self._forget(source)
        elif name in ("rename", "renames", "replace", "move", *COPYING) and source != target:
            if name in INTO and os.path.isdir(target):
                target = os.path.join(target, os.path.basename(source))
            found = {path: copy for path, copy in self.copies.items() if _within(path, source)}
            self._forget(target)
            for path, copy in found.items():
                if name in COPYING:
                    copy = Path(shutil.copyfile(copy, self._place()))
                else:
                    del self.copies[path]
                self.copies[target + path[len(source) :]] = copy

    def _forget(self, path: str) -> None:
        self.copies = {each: copy for each, copy in self.copies.items() if not _within(each, path)}

    def _place(self) -> Path:
        return self.session.folder / f"file-{self.session.rank}-{next(self._numbers)}"


COPYING = ("copy", "copy2", "copyfile", "copytree")
INTO = ("copy", "copy2", "move")  # a target that is a folder is one to put it into


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
