"""Checkpoints that survive a kill while they are written, and say so when they are damaged."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count
from dlguide.training import checkpoint_file
from dlguide.training.checkpoint_file import Checkpoint, CheckpointError, Within, latest, read

if TYPE_CHECKING:
    import keras

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Within",
    "branch",
    "latest",
    "nbytes_of",
    "not_finite",
    "read",
    "require_writable",
    "restore",
    "save",
]


def save(
    folder: str | os.PathLike,
    model: keras.Model,
    optimizer: keras.Optimizer,
    step: int,
    epoch: int,
    settings: Mapping[str, Any] | None = None,
    keep: int = 2,
    within: Within | None = None,
) -> Path:
    """Write weights and optimizer state so that a kill at any moment leaves a usable checkpoint.

    The file gets its name when all of it is on the disk, and begins with the SHA-256 of its
    contents (`checkpoint_file.write`). After that older ones go, but for the last `keep` and the
    last one of an epoch's end. Call it on one rank only: the others have the same weights.
    Leaves out the state of random generators, which `fit` derives from seed, rank and epoch, or
    has in `within`.

    Args:
        folder: where to write; made when it is missing.
        model: its weights are written, moving averages included.
        optimizer: built; its variables are written.
        step: steps done so far (count).
        epoch: epochs done so far (count).
        settings: what must be equal in the training that goes on from here, JSON-able.
        keep: checkpoints to leave in the folder, this one included (count).
        within: what each worker has of its own, before the end of an epoch; None at its end.

    Returns:
        Path: the file.

    Raises:
        ValueError: when a weight is not finite, so that it never takes the place of a good one.
        CheckpointError: when the file cannot be written; the earlier ones are still there.
    """
    require_count(step, "step", least=0)
    require_count(epoch, "epoch", least=0)
    require_count(keep, "keep")
    then = "Nothing was written. Go on from the last checkpoint with a lower learning rate."
    bad = not_finite(model)
    require(not bad, "model", "have weights that are finite", f"{bad} with nan or infinity", then)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(model, optimizer)
    path = checkpoint_file.write(folder, step, epoch, settings or {}, arrays, within)
    checkpoint_file.prune(folder, keep)
    return path


def branch(
    source: str | os.PathLike, folder: str | os.PathLike, changes: Mapping[str, Any]
) -> Path:
    """Let another training go on from where one has ended an epoch.

    Copies the last checkpoint of an epoch's end into another folder and says there that it
    belongs to a training that differs in `changes`: another schedule from here on, for example.
    The first training's folder stays as it is. Call it on one rank only.

    Args:
        source: the folder of the training that was.
        folder: of the training that shall go on; without checkpoints.
        changes: settings of the new training that differ, JSON-able.

    Returns:
        Path: the new file.

    Raises:
        ValueError: when there is no such checkpoint, the training never had such a setting, or
            the folder holds checkpoints already.
        CheckpointError: when it is damaged.
    """
    ends = [
        one for one in checkpoint_file.finished(Path(source)) if not checkpoint_file.is_within(one)
    ]
    must, then = "hold a checkpoint of an epoch's end", "Train there first, for an epoch at least."
    require(bool(ends), "source", must, str(source), then)
    there = latest(folder)
    require(there is None, "folder", "hold no checkpoints", str(there), "Use another folder.")
    found, arrays = read(ends[-1])
    for name in changes:
        must = "name settings that the training had"
        require(
            name in found.settings, "changes", must, name, f"It had {', '.join(found.settings)}."
        )
    named_arrays = [(one[0], array) for one, array in zip(found.arrays, arrays, strict=True)]
    Path(folder).mkdir(parents=True, exist_ok=True)
    settings = {**found.settings, **changes}
    return checkpoint_file.write(
        Path(folder), found.step, found.epoch, settings, named_arrays, None
    )


def not_finite(model: keras.Model) -> str:
    """Find a weight that holds nan or infinity.

    Args:
        model: its weights are searched, moving averages included.

    Returns:
        str: the name of the first such weight; empty when all are finite.
    """
    for weight in model.weights:
        if "float" in str(weight.dtype) and not np.isfinite(np.asarray(weight)).all():
            return weight.path
    return ""


def restore(
    path: str | os.PathLike,
    model: keras.Model,
    optimizer: keras.Optimizer,
    settings: Mapping[str, Any] | None = None,
    within: Mapping[str, Any] | None = None,
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
        within: what must equal the settings of one that was written before an epoch's end; None
            takes any.

    Returns:
        Checkpoint: its step and epoch tell where to go on.

    Raises:
        CheckpointError: when the file is damaged, or belongs to another net, optimizer or
            training.
    """
    found, arrays = read(path)
    _require_same(path, found, settings or {}, within or {})
    anew = checkpoint_file.anew(Path(path).parent)
    variables = _variables(model, optimizer)
    expected = [(name, str(v.dtype), tuple(v.shape)) for name, v in variables]
    for saved, here in zip(found.arrays, expected, strict=False):
        if saved[1:] != here[1:]:
            raise CheckpointError(
                f"{path} belongs to another net or optimizer: it holds {_describe(saved)} where "
                f"this one has {_describe(here)}. {anew}"
            )
    if len(expected) != len(found.arrays):
        raise CheckpointError(
            f"{path} belongs to another net or optimizer: it holds {len(found.arrays)} arrays "
            f"where this one has {len(expected)}. {anew}"
        )
    for (_name, variable), array in zip(variables, arrays, strict=True):
        variable.assign(array)
    return found


def _require_same(
    path: str | os.PathLike,
    found: Checkpoint,
    settings: Mapping[str, Any],
    within: Mapping[str, Any],
) -> None:
    for name, value in json.loads(json.dumps(dict(settings))).items():
        if found.settings.get(name) != value:
            raise CheckpointError(
                f"{path} belongs to another training: its {name} is "
                f"{found.settings.get(name)!r}, here it is {value!r}. "
                f"{checkpoint_file.anew(Path(path).parent)}"
            )
    if found.within is None:
        return
    for name, value in json.loads(json.dumps(dict(within))).items():
        saved = found.within.settings.get(name)
        if saved != value:
            files = checkpoint_file.finished(Path(path).parent)
            ends = [one for one in files if not checkpoint_file.is_within(one)]
            others = f"go on from {ends[-1].name}, the end of an epoch" if ends else "train anew"
            raise CheckpointError(
                f"{path} was written after {found.within.step} steps of epoch {found.epoch + 1} "
                f"with {name} = {saved}, here it is {value}. Within an epoch the samples and what "
                f"each rank has of its own belong to that {name}: use it, or delete the files "
                f"that end in -within.dlguide to {others}."
            )


def require_writable(folder: str | os.PathLike, nbytes: int, files: int = 3) -> None:
    """Check before a training, not after it, that checkpoints can be written.

    Args:
        folder: where they shall go; made when it is missing.
        nbytes: size of one checkpoint (bytes).
        files: how many there must be room for: all that `save` keeps, and one more, as the new
            one is written before the oldest goes (count).

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
        free >= files * nbytes,
        "checkpoint",
        f"be on a disk with room for {files * nbytes / 1e6:.1f} MB ({files} checkpoints)",
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


def _describe(array: tuple[str, str, tuple[int, ...]]) -> str:
    name, dtype, shape = array
    return f"{name} ({dtype}, shape {shape})"
