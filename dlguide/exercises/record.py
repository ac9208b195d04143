"""What a learner has tried and passed, kept in a small file in the user's own cache.

Nothing is sent anywhere. `dlguide progress` reads it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dlguide.folders import cache_folder

FORMAT = 1
LOCK_S = 2.0  # ranks that wait for each other's writing longer than this go on without


@dataclass(frozen=True)
class Tried:
    """How far a learner is with one exercise.

    Args:
        wrong: how often the answer was wrong (count).
        passed_unix_s: when it was right for the first time (s since 1970); None for never.
        shown: whether the learner had the solution shown before that.
    """

    wrong: int = 0
    passed_unix_s: float | None = None
    shown: bool = False

    def __post_init__(self) -> None:
        when = self.passed_unix_s
        if not (type(self.wrong) is int and self.wrong >= 0 and type(self.shown) is bool):
            raise ValueError("it holds something else than counts")
        if when is not None and not isinstance(when, int | float):
            raise ValueError("it holds something else than times")


def path() -> Path:
    """Name the file of this user.

    Returns:
        Path: in the cache folder; it need not exist yet.
    """
    return cache_folder() / "exercises" / "progress.json"


def read(file: str | os.PathLike[str]) -> tuple[str, dict[str, Tried]]:
    """Read a file of this kind.

    Args:
        file: the learner's own, or one that `export` wrote.

    Returns:
        tuple: the learner's name, empty in the own file, and for each exercise, by its number,
        how far the learner is.

    Raises:
        ValueError: when the file is damaged or something else.
        OSError: when it cannot be read.
    """
    try:
        held = json.loads(Path(file).read_text(encoding="utf-8"))
        if held["format"] != FORMAT:
            raise ValueError(f"its format is {held['format']!r}, not {FORMAT}")
        tried = {str(number): Tried(**each) for number, each in held["exercises"].items()}
        return str(held.get("learner", "")), tried
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        text = f"{file} is no record of exercises ({type(error).__name__}: {error})"
        raise ValueError(text) from None


def load() -> dict[str, Tried]:
    """Read this user's own file.

    Returns:
        dict: for each exercise that was tried how far the learner is; empty without a file. A
        damaged file is put aside, told by a warning, and the record begins anew.
    """
    try:
        return read(path())[1]
    except FileNotFoundError:
        return {}
    except ValueError as error:
        aside = path().with_suffix(".damaged")
        with contextlib.suppress(OSError):
            os.replace(path(), aside)
        text = f"{error}. It is now {aside.name}, and the record begins anew."
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    except OSError as error:
        warnings.warn(f"The record of exercises is not used: {error}", RuntimeWarning, stacklevel=2)
    return {}


def wrong(number: str) -> int:
    """Note a wrong answer.

    Args:
        number: of the exercise, such as "20-1".

    Returns:
        int: how many of them there have been by now; 0 where no record can be kept (count).
    """
    return _note(number, lambda tried: replace(tried, wrong=tried.wrong + 1)).wrong


def passed(number: str) -> None:
    """Note a right answer; the first one counts.

    Args:
        number: of the exercise.
    """
    now_s = time.time()
    _note(
        number,
        lambda tried: tried if tried.passed_unix_s else replace(tried, passed_unix_s=now_s),
    )


def shown(number: str) -> None:
    """Note that the solution was shown, unless the learner had found one before.

    Args:
        number: of the exercise.
    """
    _note(number, lambda tried: tried if tried.passed_unix_s else replace(tried, shown=True))


def export(file: str | os.PathLike[str], learner: str) -> None:
    """Write what this user has done into a file for the instructor.

    Args:
        file: where to; replaced in one piece when it exists.
        learner: the name that shall stand in the table.
    """
    _write(Path(file), load(), learner)


def _note(number: str, change: Callable[[Tried], Tried]) -> Tried:
    """Change the record of one exercise and return it; one that cannot be written stops nothing."""
    try:
        path().parent.mkdir(parents=True, exist_ok=True)
        with _locked(path().with_suffix(".lock")):
            tried = load()
            tried[number] = change(tried.get(number, Tried()))
            _write(path(), tried)
            return tried[number]
    except OSError as error:
        text = f"What you have solved is not kept: {error}. Set DLGUIDE_CACHE to a folder of yours."
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return Tried()


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Keep other kernels of this user from writing at the same time, where the disk can do that."""
    with file.open("w") as lock:
        deadline = time.monotonic() + LOCK_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break  # a file system without locks
        yield


def _write(file: Path, tried: Mapping[str, Tried], learner: str = "") -> None:
    """Write a record in one piece: a reader sees the old one or the new one."""
    held: dict[str, Any] = {"format": FORMAT, "learner": learner} if learner else {"format": FORMAT}
    held["exercises"] = {number: asdict(tried[number]) for number in sorted(tried)}
    handle, draft = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".draft")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(held, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
