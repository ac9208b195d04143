"""What one transparent run knows: who it is, what it does just now, what it has changed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from dlguide.horovod.native import Max
from dlguide.horovod.ops import allgather, allreduce
from dlguide.horovod.transparent.report import Report

REFUSED = "refused"  # the file of the run's folder that says why


class Refused(BaseException):
    """The script cannot be made parallel; no `except Exception` of a script hides it."""


class Session:
    """One rank's share of a transparent run.

    Args:
        script: path of the script.
        folder: folder of the run.
        rank: this rank (index).
        ranks: number of ranks (count).
        seed: what all ranks seed their random numbers with.
    """

    def __init__(self, script: str, folder: Path, rank: int, ranks: int, seed: int) -> None:
        self.script = script
        self.folder = folder
        self.rank = rank
        self.ranks = ranks
        self.phase = ""  # "train" or "test" while batches are shared, "whole" within predict
        self.weight: Any = None  # within a shared step: own samples * ranks / all samples
        self.graph: Any = None  # within a shared step: the graph that it is traced in
        self.turn = tf.Variable(0, trainable=False)  # changed by what must be done in order
        self.normalized: dict[int, Any] = {}  # layers whose statistics agree on all ranks, by id
        self._share = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._named: Counter = Counter()  # exchanges of a layer in the step that is under way
        self.line = 0  # of the script, where the call that is under way stands
        self.known: dict[int, Any] = {}  # optimizers that exchange, and those inside them, by id
        self.trained = False
        self.told = False  # how the batches of the `fit` that is under way are shared
        self.report = Report(script, ranks, seed)

    def here(self) -> int:
        """Return the line of the script that is being executed; 0 when none is."""
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_filename != self.script:
            frame = frame.f_back
        return frame.f_lineno if frame else 0

    def refuse(self, why: str) -> NoReturn:
        """End the run with the reason; to be called on all ranks alike."""
        line = self.here() or self.line
        text = f"line {line}: {why}" if line else why
        draft = self.folder / f".{REFUSED}-{self.rank}"
        draft.write_text(text)
        draft.replace(self.folder / REFUSED)
        raise Refused(text)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Do what is inside in another phase.

        Args:
            phase: "train", "test" or "whole".

        Yields:
            None: within the phase.
        """
        before, line = self.phase, self.line
        self.phase, self.line = phase, self.here() or line
        try:
            yield
        finally:
            self.phase, self.line = before, line

    @contextmanager
    def step(self, own: tf.Tensor, total: tf.Tensor) -> Iterator[None]:
        """Do what is inside as this rank's part of a step of all ranks.

        Args:
            own: samples of this rank (count).
            total: samples of all ranks (count).

        Yields:
            None: within the step.
        """
        # A variable: a `tf.function` of the script's outlives the graph of one tracing.
        self._share.assign(tf.cast(own, tf.float64) * self.ranks / tf.cast(total, tf.float64))
        self.weight = self._share
        self.graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self._named.clear()
        try:
            yield
        finally:
            self.weight = self.graph = None

    def name_exchange(self, layer: Any) -> str:
        """Return a name for what a layer exchanges, the same on all ranks, and note the layer."""
        self.normalized.setdefault(id(layer), layer)
        number = list(self.normalized).index(id(layer))
        self._named[number] += 1
        return f"transparent.{number}.{layer.path}.{self._named[number]}"

    def agreed(self) -> set[int]:
        """Return the ids of the variables that steps change alike on all ranks."""
        layers = self.normalized.values()
        return {id(v) for layer in layers for v in layer._non_trainable_variables}

    def same(self, values: Any) -> bool:
        """Say whether all ranks have the same whole numbers; all ranks must call.

        Args:
            values: int64, as many on every rank.

        Returns:
            bool: the same answer on every rank.
        """
        row = np.asarray(values, np.int64)[None]
        rows = allgather(row, f"transparent.same.{row.size}").numpy()
        return bool((rows == rows[0]).all())

    def any(self, flag: bool) -> bool:
        """Say whether something holds on any rank; all ranks must call.

        Args:
            flag: whether it holds on this one.

        Returns:
            bool: the same answer on every rank.
        """
        return bool(allreduce(np.int32(flag), "transparent.any", op=Max).numpy())

    def barrier(self) -> None:
        """Wait until all ranks have come here."""
        self.any(False)
