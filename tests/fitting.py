"""`fit` with all settings as plain keywords, for tests that vary many of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dlguide import training
from dlguide.measure import TrainingResult
from dlguide.training import CheckpointConfig, FitConfig, SingleProcess, connect

CONFIG = {one.name for one in fields(FitConfig)}


def arguments(**settings: Any) -> dict[str, Any]:
    """The arguments of `fit`: settings of its configurations may stand beside the others.

    parallel (True, False or None) chooses the ranks; every_steps, keep and asynchronous go to the
    checkpoint.
    """
    config = {name: settings.pop(name) for name in list(settings) if name in CONFIG}
    parallel = settings.pop("parallel", None)
    if parallel is not None:
        exchange = settings.get("exchange", "mpi")
        settings["comm"] = connect(True, exchange) if parallel else SingleProcess()
    own = ("every_steps", "keep", "asynchronous")
    saves = {name: settings.pop(name) for name in own if name in settings}
    if settings.get("checkpoint") is not None:
        settings["checkpoint"] = CheckpointConfig(folder=settings["checkpoint"], **saves)
    return {**settings, "config": FitConfig(**config)}


def fit(model: Any = "mnist_cnn", data: Any = "mnist", **settings: Any) -> TrainingResult:
    """Train with these settings."""
    return training.fit(model, data, **arguments(**settings))
