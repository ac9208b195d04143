"""The file of a checkpoint: how it is named, written and read, and which ones are kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dlguide.errors import NoLocksError
from dlguide.files import file_lock

# Raised whenever a file of an earlier dlguide would be read wrongly; 1 knew no `within`.
VERSION = 2
_READABLE = (1, 2)
_MAGIC = b"dlguide-checkpoint-"
_FIRST_LINE = re.compile(re.escape(_MAGIC) + rb"(\d{1,4}) ([0-9a-f]{64})")
_NAME = re.compile(r"checkpoint-(\d{9})(-within)?\.dlguide")
# One name for all unfinished files, so that a killed save leaves one and not one more each time.
_UNFINISHED = "checkpoint.partial"
_WRITING = "checkpoint.lock"  # held by the process that writes the unfinished file


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the text says why and what to do."""


@dataclass(frozen=True)
class Within:
    """What a checkpoint holds beside the weights when it was written before an epoch's end.

    step (of that epoch, steps done), settings (what must be equal to go on from there),
    states (for each worker the bytes of what it has of its own).
    """

    step: int
    settings: dict[str, Any]
    states: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file says about itself.

    path (of the file), step and epoch (done when it was written, counts), settings (of the
    training it belongs to), arrays (name, dtype, shape of each), within (None at the end of an
    epoch).
    """

    path: str
    step: int
    epoch: int
    settings: dict[str, Any]
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]
    within: Within | None = None


def write(
    folder: Path,
    step: int,
    epoch: int,
    settings: Mapping[str, Any],
    arrays: Sequence[tuple[str, np.ndarray]],
    within: Within | None,
) -> Path:
    """Write a file so that a kill at any moment leaves it whole or not there at all.

    The bytes go to a temporary file, to the disk (fsync), and only then, by a rename, to their
    name; the file begins with the version of its form and the SHA-256 of all that follows.
    Processes that write into one folder do so one after the other.

    Args:
        folder: where to write; it exists.
        step: steps done so far (count).
        epoch: epochs done so far (count).
        settings: of the training, JSON-able.
        arrays: names and values.
        within: what is needed to go on within an epoch; None at its end.

    Returns:
        Path: the file.

    Raises:
        CheckpointError: when the file cannot be written; the earlier ones are still there.
    """
    header = {
        "step": step,
        "epoch": epoch,
        "settings": dict(settings),
        "arrays": [(name, array.dtype.name, array.shape) for name, array in arrays],
    }
    if within is not None:
        nbytes = [len(state) for state in within.states]
        header["within"] = {"step": within.step, "settings": within.settings, "states": nbytes}
    parts = [json.dumps(header).encode() + b"\n", *(array.tobytes() for _name, array in arrays)]
    parts += within.states if within is not None else ()
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    ending = "" if within is None else "-within"
    path, unfinished = folder / f"checkpoint-{step:09d}{ending}.dlguide", folder / _UNFINISHED
    try:
        with ExitStack() as held:
            with suppress(NoLocksError):
                held.enter_context(file_lock(folder / _WRITING, wait=True))
            try:
                with open(unfinished, "wb") as file:
                    file.write(_MAGIC + f"{VERSION} {digest.hexdigest()}\n".encode())
                    file.writelines(parts)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(unfinished, path)
            except OSError:
                unfinished.unlink(missing_ok=True)  # the space that it takes
                raise
        _sync_folder(folder)  # the rename itself must reach the disk before an older one goes
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror}. {_after_a_failed_write(folder)}"
        ) from error
    return path


def _after_a_failed_write(folder: Path) -> str:
    files = finished(folder)
    if not files:
        return "Nothing was saved before. Free some space or use another folder."
    return f"{files[-1].name} is whole: solve that, then make the same call to go on from there."


def prune(folder: Path, keep: int) -> None:
    """Remove all but the last checkpoints and the last one of an epoch's end.

    From an epoch's end a training can go on with other ranks and batches, within an epoch not.
    """
    files = finished(folder)
    ends = [path for path in files if not is_within(path)]
    for old in files[:-keep]:
        if old not in ends[-1:]:
            old.unlink(missing_ok=True)


def finished(folder: Path) -> list[Path]:
    """Find all checkpoints."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def is_within(path: Path) -> bool:
    """Tell from its name whether a checkpoint was written before an epoch's end."""
    named = _NAME.fullmatch(path.name)
    return named is not None and named[2] is not None


def latest(folder: str | os.PathLike) -> Path | None:
    """Find the checkpoint with the most steps.

    Args:
        folder: where `save` wrote; it need not exist.

    Returns:
        Path: the file, or None when there is none.
    """
    files = finished(Path(folder))
    return files[-1] if files else None


def read(path: str | os.PathLike) -> tuple[Checkpoint, list[np.ndarray]]:
    """Read a checkpoint after holding it against its checksum.

    Args:
        path: a file that `save` wrote.

    Returns:
        tuple: the Checkpoint and its arrays, in its order.

    Raises:
        CheckpointError: when the file is missing, damaged, no checkpoint or of another version;
            the text names the file, the expected and the found checksum and what to do.
    """
    path = Path(path)
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. {instead(path)}"
        ) from error
    first, _, rest = contents.partition(b"\n")
    named = _FIRST_LINE.fullmatch(first)
    if named is None:
        raise CheckpointError(f"{path} does not begin as a checkpoint does. {instead(path)}")
    if int(named[1]) not in _READABLE:
        known = " and ".join(map(str, _READABLE))
        raise CheckpointError(
            f"{path} is a checkpoint of version {int(named[1])}, but this dlguide reads versions "
            f"{known}. Go on with the dlguide that wrote it, or use another folder."
        )
    expected, found = named[2].decode(), hashlib.sha256(rest).hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path} is damaged: expected SHA-256 {expected}, found {found}. {instead(path)}"
        )
    line, _, data = rest.partition(b"\n")
    header = json.loads(line)
    names = tuple((name, dtype, tuple(shape)) for name, dtype, shape in header["arrays"])
    arrays, at = [], 0
    for _name, dtype, shape in names:
        array = np.frombuffer(data, dtype, count=int(np.prod(shape, dtype=int)), offset=at)
        arrays.append(array.reshape(shape))
        at += array.nbytes
    within = header.get("within")
    if within is not None:
        edges = at + np.cumsum([0, *within["states"]])
        states = tuple(data[a:b] for a, b in pairwise(edges))
        within = Within(within["step"], within["settings"], states)
    says = (header["step"], header["epoch"], header["settings"])
    return Checkpoint(str(path), *says, names, within), arrays


def instead(path: Path) -> str:
    """Say what to do about a checkpoint that cannot be used."""
    others = [other.name for other in finished(path.parent) if other != path]
    if others:
        return f"Delete it to go on from {others[-1]}."
    return "Delete it to train anew; there is no other checkpoint beside it."


def anew(folder: Path) -> str:
    """Say how to train from the start although a folder holds checkpoints."""
    files = finished(folder)
    them = "it" if len(files) == 1 else f"all {len(files)} checkpoints in {folder}"
    return f"Use another folder, or delete {them} to train anew."


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
