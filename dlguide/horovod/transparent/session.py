"""What one transparent run knows: who it is, what it does just now, what it has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from dlguide.horovod.collectives import allgather, allreduce
from dlguide.horovod.native import Max
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
        self.weight: Any = None  # within a training step: own samples * ranks / all samples
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
        """End the run with the reason; to be called on all ranks alike.

        Args:
            why: a sentence without its full stop, about the script.

        Raises:
            Refused: always.
        """
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
