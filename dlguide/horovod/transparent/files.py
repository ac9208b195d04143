"""Files written once: by rank 0, whatever all ranks of a script do at the same time."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from typing import Any

import keras
import tensorflow as tf
from keras.src.saving import saving_api
from keras.src.utils import file_utils

from dlguide.horovod.transparent import folders
from dlguide.horovod.transparent.outcomes import Outcome, Outcomes
from dlguide.horovod.transparent.private import Private
from dlguide.horovod.transparent.session import Session

WRITERS = (keras.callbacks.CSVLogger, keras.callbacks.TensorBoard, keras.callbacks.RemoteMonitor)


def install(session: Session) -> None:
    """Change in this process who writes, before the script runs."""
    private = Private(session) if session.rank > 0 else None
    outcomes = Outcomes(session.folder)
    _save_on_one(session, private, outcomes)
    _fetch_one_by_one(session, outcomes)
    _refuse_checkpoints(session)
    if private is not None:
        private.install()
        _quiet_callbacks(private)
    if session.ranks > 1:
        folders.install(session, private)
    session.report.change("files", 0, "written by rank 0; what others `open` to write is private")
    session.report.change("output", 0, "printed by rank 0; errors of all ranks are shown")


def _save_on_one(session: Session, private: Private | None, outcomes: Outcomes) -> None:
    """Let rank 0 alone save models, and the others wait for it outside of `fit`.

    In a temporary folder of its own, which no other rank knows, every rank saves.
    """

    def once(plain: Any, name: str) -> Any:
        @functools.wraps(plain)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = [*args, *kwargs.values()]
            writes = private is None or any(map(private.owns, given))
            session.report.change(name, session.here() or session.line, "on rank 0 only")
            if session.phase:
                return plain(*args, **kwargs) if writes else None
            return _alone(session, outcomes, plain, args, kwargs, writes)

        return call

    save_model = once(saving_api.save_model, "save")
    saving_api.save_model = keras.saving.save_model = keras.models.save_model = save_model
    saving_api.save_weights = once(saving_api.save_weights, "save")
    keras.Model.export = once(keras.Model.export, "export")


def _alone(
    session: Session, outcomes: Outcomes, plain: Any, args: Any, kwargs: Any, writes: bool
) -> Any:
    """Call a function where it writes; all ranks wait, and raise what it has raised on one."""
    outcome = Outcome()
    try:
        if writes:
            outcome = Outcome(plain(*args, **kwargs))
    except Exception as error:
        outcome = Outcome(error=error)
    key = f"alone-{outcomes.count()}"
    if session.rank == 0 and outcome.error is not None:
        outcomes.tell(key, outcome)
    session.barrier()
    if session.rank > 0 and outcome.error is None:
        outcome = outcomes.find(key) or outcome
    return outcome.give()


def _fetch_one_by_one(session: Session, outcomes: Outcomes) -> None:
    """Let rank 0 fetch what is fetched from the network; the others then find it."""
    plain = file_utils.get_file

    @functools.wraps(plain)
    def get_file(*args: Any, **kwargs: Any) -> Any:
        path = _alone(session, outcomes, plain, args, kwargs, session.rank == 0)
        return path if session.rank == 0 else plain(*args, **kwargs)

    for module in pkgutil.iter_modules(importlib.import_module("keras.src.datasets").__path__):
        loaded = sys.modules.get(f"keras.src.datasets.{module.name}")
        if getattr(loaded, "get_file", None) is plain:
            loaded.get_file = get_file
    file_utils.get_file = keras.utils.get_file = get_file


def _refuse_checkpoints(session: Session) -> None:
    """Refuse what writes past Python's `open`, so that ranks would write into one another's."""

    def refused(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> None:
            session.refuse(f"writes with `tf.train.{name}`, which every rank would do")

        return call

    tf.train.Checkpoint.save = tf.train.Checkpoint.write = refused("Checkpoint")
    tf.train.CheckpointManager.save = refused("CheckpointManager")


def _quiet_callbacks(private: Private) -> None:
    """Let callbacks that only write do nothing, and `BackupAndRestore` only restore.

    Those that write into a temporary folder of this rank's own do what they do on rank 0.
    """

    def quiet(plain: Any, instead: Any = None) -> Any:
        @functools.wraps(plain)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            places = (getattr(self, name, None) for name in ("filename", "log_dir", "backup_dir"))
            if any(map(private.owns, places)):
                return plain(self, *args, **kwargs)
            return instead(self, *args, **kwargs) if instead else None

        return call

    for kind in WRITERS:
        for name in vars(kind):
            if name.startswith("on_"):
                setattr(kind, name, quiet(getattr(kind, name)))
    board, backup = keras.callbacks.TensorBoard, keras.callbacks.BackupAndRestore
    board.set_model = quiet(board.set_model, keras.callbacks.Callback.set_model)
    backup._save_model = quiet(backup._save_model)
    backup.on_train_end = quiet(backup.on_train_end)
