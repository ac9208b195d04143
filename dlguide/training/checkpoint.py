"""Checkpoints that survive a kill while they are written, and say so when they are damaged."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.checks import require, require_count

if TYPE_CHECKING:
    import keras

_MAGIC = b"dlguide-checkpoint-1 "
_NAME = re.compile(r"checkpoint-(\d{9})\.dlguide")
# One name for all unfinished files, so that a killed save leaves one and not one more each time.
_UNFINISHED = "checkpoint.partial"


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the text says why and what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file says about itself.

    path (of the file), step and epoch (done when it was written, counts), settings (of the
    training it belongs to), arrays (name, dtype, shape of each).
    """

    path: str
    step: int
    epoch: int
    settings: dict[str, Any]
    arrays: tuple[tuple[str, str, tuple[int, ...]], ...]


def save(
    folder: str | os.PathLike,
    model: keras.Model,
    optimizer: keras.Optimizer,
    step: int,
    epoch: int,
    settings: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Write weights and optimizer state so that a kill at any moment leaves a usable checkpoint.

    The bytes go to a temporary file, to the disk (fsync), and only then, by a rename, to their
    name; the file begins with the SHA-256 of its contents. Older checkpoints than the last
    `keep` are removed after that. Call it on one rank only: the others have the same weights.
    Leaves out the state of random generators, which `fit` derives from seed, rank and epoch.

    Args:
        folder: where to write; made when it is missing.
        model: its weights are written, moving averages included.
        optimizer: built; its variables are written.
        step: steps done so far (count).
        epoch: epochs done so far (count).
        settings: what must be equal in the training that goes on from here, JSON-able.
        keep: checkpoints to leave in the folder, this one included (count).

    Returns:
        Path: the file.

    Raises:
        OSError: when the file cannot be written; the earlier ones are still there.
    """
    require_count(step, "step", least=0)
    require_count(epoch, "epoch", least=0)
    require_count(keep, "keep")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(model, optimizer)
    header = {
        "step": step,
        "epoch": epoch,
        "settings": dict(settings or {}),
        "arrays": [(name, array.dtype.name, array.shape) for name, array in arrays],
    }
    parts = [json.dumps(header).encode() + b"\n", *(array.tobytes() for _name, array in arrays)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    path, unfinished = folder / f"checkpoint-{step:09d}.dlguide", folder / _UNFINISHED
    with open(unfinished, "wb") as file:
        file.write(_MAGIC + digest.hexdigest().encode() + b"\n")
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    _sync_folder(folder)  # the rename itself must reach the disk before an older one goes
    for old in _finished(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def latest(folder: str | os.PathLike) -> Path | None:
    """Find the checkpoint with the most steps.

    Args:
        folder: where `save` wrote; it need not exist.

    Returns:
        Path: the file, or None when there is none.
    """
    files = _finished(Path(folder))
    return files[-1] if files else None


def read(path: str | os.PathLike) -> tuple[Checkpoint, list[np.ndarray]]:
    """Read a checkpoint after holding it against its checksum.

    Args:
        path: a file that `save` wrote.

    Returns:
        tuple: the Checkpoint and its arrays, in its order.

    Raises:
        CheckpointError: when the file is missing, damaged or no checkpoint; the text names the
            file, the expected and the found checksum and what to do.
    """
    path = Path(path)
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be read: {error.strerror}. {_instead(path)}"
        ) from error
    first, _, rest = contents.partition(b"\n")
    if not re.fullmatch(re.escape(_MAGIC) + b"[0-9a-f]{64}", first):
        raise CheckpointError(f"{path} does not begin as a checkpoint does. {_instead(path)}")
    expected, found = first[len(_MAGIC) :].decode(), hashlib.sha256(rest).hexdigest()
    if found != expected:
        raise CheckpointError(
            f"{path} is damaged: expected SHA-256 {expected}, found {found}. {_instead(path)}"
        )
    line, _, data = rest.partition(b"\n")
    header = json.loads(line)
    names = tuple((name, dtype, tuple(shape)) for name, dtype, shape in header["arrays"])
    arrays, at = [], 0
    for _name, dtype, shape in names:
        array = np.frombuffer(data, dtype, count=int(np.prod(shape, dtype=int)), offset=at)
        arrays.append(array.reshape(shape))
        at += array.nbytes
    found_here = Checkpoint(str(path), header["step"], header["epoch"], header["settings"], names)
    return found_here, arrays


def restore(
    path: str | os.PathLike,
    model: keras.Model,
    optimizer: keras.Optimizer,
    settings: Mapping[str, Any] | None = None,
) -> Checkpoint:
    """Set a net and its optimizer to what a checkpoint holds, bit by bit.

    Nothing is changed unless everything fits. On many ranks call it on one and broadcast
    `model.weights` and `optimizer.variables` from there: then all are equal even where the
    others see another folder.

    Args:
        path: a file that `save` wrote.
        model: the same net as was saved.
        optimizer: of the same kind as was saved, built.
        settings: what must equal the settings that were saved; None takes any.

    Returns:
        Checkpoint: its step and epoch tell where to go on.

    Raises:
        CheckpointError: when the file is damaged, or belongs to another net, optimizer or
            training.
    """
    found, arrays = read(path)
    for name, value in (settings or {}).items():
        if found.settings.get(name) != value:
            raise CheckpointError(
                f"{path} belongs to another training: its {name} is "
                f"{found.settings.get(name)!r}, here it is {value!r}. Use another folder, or "
                f"delete it to train anew."
            )
    variables = _variables(model, optimizer)
    expected = [(name, str(v.dtype), tuple(v.shape)) for name, v in variables]
    for saved, here in zip(found.arrays, expected, strict=False):
        if saved[1:] != here[1:]:
            raise CheckpointError(
                f"{path} belongs to another net or optimizer: it holds {_describe(saved)} where "
                f"this one has {_describe(here)}. Use another folder, or delete it to train anew."
            )
    if len(expected) != len(found.arrays):
        raise CheckpointError(
            f"{path} belongs to another net or optimizer: it holds {len(found.arrays)} arrays "
            f"where this one has {len(expected)}. Use another folder, or delete it to train anew."
        )
    for (_name, variable), array in zip(variables, arrays, strict=True):
        variable.assign(array)
    return found


def require_writable(folder: str | os.PathLike, nbytes: int) -> None:
    """Check before a training, not after it, that checkpoints can be written.

    Args:
        folder: where they shall go; made when it is missing.
        nbytes: size of one checkpoint; there must be room for three, as the new one is written
            before the oldest goes (bytes).

    Raises:
        ValueError: when the folder cannot be made or written to, or the disk is full.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Without a name, so that two processes can look into one folder at a time.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
        free = shutil.disk_usage(folder).free
    except OSError as error:
        require(
            False,
            "checkpoint",
            "be a folder this process can write to",
            str(folder),
            f"{error.strerror}. Choose another folder.",
        )
    require(
        free >= 3 * nbytes,
        "checkpoint",
        f"be on a disk with room for {3 * nbytes / 1e6:.1f} MB (three checkpoints)",
        f"{folder} with {free / 1e6:.1f} MB free",
        "Free some space or choose another folder.",
    )


def nbytes_of(model: keras.Model, optimizer: keras.Optimizer) -> int:
    """Tell how large a checkpoint is, without its header.

    Args:
        model: the net.
        optimizer: built.

    Returns:
        int: size of all its arrays (bytes).
    """
    return sum(
        int(np.prod(variable.shape, dtype=int)) * np.dtype(variable.dtype).itemsize
        for _name, variable in _variables(model, optimizer)
    )


def _variables(model: keras.Model, optimizer: keras.Optimizer) -> list[tuple[str, Any]]:
    # model.weights leaves out the states of random generators, model.variables does not. The
    # rate belongs to the training that goes on, which may have other ranks, not to the old one.
    kept = [v for v in optimizer.variables if v.path.rpartition("/")[2] != "learning_rate"]
    return [(v.path, v) for v in (*model.weights, *kept)]


def _arrays(model: keras.Model, optimizer: keras.Optimizer) -> list[tuple[str, np.ndarray]]:
    return [(name, np.asarray(variable)) for name, variable in _variables(model, optimizer)]


def _finished(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def _instead(path: Path) -> str:
    others = [other.name for other in _finished(path.parent) if other != path]
    if others:
        return f"Delete it to go on from {others[-1]}."
    return "Delete it to train anew; there is no other checkpoint beside it."


def _describe(array: tuple[str, str, tuple[int, ...]]) -> str:
    name, dtype, shape = array
    return f"{name} ({dtype}, shape {shape})"


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
