"""Files written once: by rank 0, whatever all ranks of a script do at the same time."""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import os
import pkgutil
import shutil
import sys
from pathlib import Path
from typing import Any

import keras
from keras.src.saving import saving_api
from keras.src.utils import file_utils

from dlguide.horovod.transparent.session import Session

WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard, keras.callbacks.RemoteMonitor)
CHANGING = ("mkdir", "makedirs", "remove", "unlink", "rename", "replace", "rmdir", "removedirs")


def install(session: Session) -> None:
    """Change in this process who writes, before the script runs.

    Args:
        session: the run.
    """
    _save_on_one(session)
    _fetch_one_by_one(session)
    if session.rank > 0:
        _quiet_callbacks()
        _write_aside(session)
        _leave_folders(session)
    session.report.change("files", 0, "written by rank 0; what others `open` to write is private")
    session.report.change("output", 0, "printed by rank 0; errors of all ranks are shown")


def _save_on_one(session: Session) -> None:
    """Let rank 0 alone save models, and the others wait for it outside of `fit`."""

    def once(plain: Any, name: str) -> Any:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            done = plain(*args, **kwargs) if session.rank == 0 else None
            if not session.phase:
                session.barrier()
            session.report.change(name, session.here() or session.line, "on rank 0 only")
            return done

        return call

    save_model = once(saving_api.save_model, "save")
    saving_api.save_model = keras.saving.save_model = keras.models.save_model = save_model
    saving_api.save_weights = once(saving_api.save_weights, "save")
    keras.Model.export = once(keras.Model.export, "export")


def _fetch_one_by_one(session: Session) -> None:
    """Let rank 0 fetch what is fetched from the network; the others then find it."""
    plain = file_utils.get_file

    @functools.wraps(plain)
    def get_file(*args: Any, **kwargs: Any) -> Any:
        if session.rank > 0:
            session.barrier()
            return plain(*args, **kwargs)
        path = plain(*args, **kwargs)
        session.barrier()
        return path

    for module in pkgutil.iter_modules(importlib.import_module("keras.src.datasets").__path__):
        loaded = sys.modules.get(f"keras.src.datasets.{module.name}")
        if getattr(loaded, "get_file", None) is plain:
            loaded.get_file = get_file
    file_utils.get_file = keras.utils.get_file = get_file


def _quiet_callbacks() -> None:
    """Let callbacks that only write do nothing, and `BackupAndRestore` only restore."""

    def nothing(self: Any, *args: Any, **kwargs: Any) -> None:
        return None

    for kind in WRITERS:
        for name in vars(kind):
            if name.startswith("on_"):
                setattr(kind, name, nothing)
    keras.callbacks.TensorBoard.set_model = keras.callbacks.Callback.set_model
    keras.callbacks.BackupAndRestore._save_model = nothing
    keras.callbacks.BackupAndRestore.on_train_end = nothing


def _write_aside(session: Session) -> None:
    """Give this rank a private copy of every file that it opens to write.

    The copy lies in the run's folder and is read again where the script reads the file.
    """
    plain, copies = builtins.open, {}

    def place(file: Any) -> str | None:
        if isinstance(file, int) or not isinstance(file, str | bytes | os.PathLike):
            return None
        path = os.path.abspath(os.fsdecode(file))
        free = path.startswith((str(session.folder), "/dev/", "/proc/"))
        return None if free else path

    @functools.wraps(plain)
    def aside(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        path = place(file)
        if path is None:
            return plain(file, mode, *args, **kwargs)
        writes = set(mode) & set("wax+")
        if writes and path not in copies:
            copy = session.folder / f"file-{session.rank}-{len(copies)}"
            if set(mode) & set("ar") and os.path.exists(path):
                shutil.copyfile(path, copy)
            copies[path] = copy
        return plain(copies.get(path, file), mode, *args, **kwargs)

    builtins.open = io.open = aside


def _leave_folders(session: Session) -> None:
    """Let what the script itself does to folders and files be done by rank 0 alone."""
    beside = os.path.dirname(os.path.abspath(session.script))

    def left(plain: Any) -> Any:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            who = sys._getframe(1).f_code.co_filename
            if who == session.script or os.path.dirname(who) == beside:
                return None
            return plain(*args, **kwargs)

        return call

    for module, names in ((os, CHANGING), (shutil, ("rmtree", "move"))):
        for name in names:
            setattr(module, name, left(getattr(module, name)))
    for name in ("mkdir", "unlink", "rename", "replace", "rmdir", "touch"):
        setattr(Path, name, left(getattr(Path, name)))
