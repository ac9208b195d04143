"""Result: what came out of one training of an experiment, and its record on disk."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlguide.errors import require
from dlguide.measure import Run
from dlguide.training.experiments.setting import Setting

FORMAT = 1


class RecordError(RuntimeError):
    """A record of an experiment that cannot be trusted."""


@dataclass(frozen=True)
class Divergence:
    """Where a loss was first not a finite number: epoch, and step of it, both counted from 1."""

    epoch: int
    step: int


@dataclass(frozen=True)
class Held:
    """When an accuracy was reached and not lost again until the end of the run.

    seconds (of training, the first step's tracing inside, evaluation and setup outside),
    evaluate_s (of all evaluations until then), epochs (count).
    """

    seconds: float
    evaluate_s: float
    epochs: int


@dataclass(frozen=True)
class Result:
    """One training of an experiment: its setting, the Run of each rank, and where it diverged.

    A run that diverged may have no Runs, and its accuracy is None.
    """

    setting: Setting
    runs: tuple[Run, ...]
    divergence: Divergence | None = None

    @property
    def diverged(self) -> bool:
        """Whether its loss stopped being a number."""
        return self.divergence is not None

    @property
    def accuracy(self) -> float | None:
        """Fraction of right answers on the test set after the last epoch; None if diverged."""
        return None if self.diverged else self.runs[0].test_accuracy[-1]

    @property
    def best_accuracy(self) -> float | None:
        """The best of all epochs, as the thesis has it: a choice made on the test set."""
        return None if self.diverged else max(self.runs[0].test_accuracy)

    @property
    def images_per_s(self) -> float | None:
        """Steady throughput over all ranks, of the slowest one; None where it diverged."""
        return None if self.diverged else min(run.images_per_s for run in self.runs)

    @property
    def test_error(self) -> tuple[float, ...]:
        """Fraction of wrong answers on the test set after each epoch."""
        return tuple(1 - one for one in self.runs[0].test_accuracy) if self.runs else ()

    @property
    def train_error(self) -> tuple[float, ...]:
        """Fraction of wrong answers while training, for each epoch; empty if not counted."""
        counted = getattr(self.runs[0], "train_accuracy", ()) if self.runs else ()
        return tuple(1 - one for one in counted)

    @property
    def loss(self) -> tuple[float, ...]:
        """Mean loss while training, for each epoch."""
        return self.runs[0].loss if self.runs else ()

    @property
    def train_s(self) -> tuple[float, ...]:
        """Seconds of training until the end of each epoch, of the slowest rank."""
        return _slowest(self.runs, "train")

    @property
    def evaluate_s(self) -> tuple[float, ...]:
        """Seconds of evaluation until the end of each epoch, of the slowest rank."""
        return _slowest(self.runs, "evaluate")

    def held(self, accuracy: float) -> Held | None:
        """Tell when a test accuracy was reached and not lost again.

        The first epoch after which every evaluation of the run is at least that good. The run's
        end is the end of what is known: one epoch more might lose it.

        Args:
            accuracy: fraction of right answers on the test set.

        Returns:
            Held: None where it was not reached, or lost again.

        Raises:
            ValueError: when it is no fraction.
        """
        require_fraction(accuracy, "accuracy")
        reached = [one >= accuracy for one in (() if self.diverged else self.runs[0].test_accuracy)]
        if not reached or not reached[-1]:
            return None
        epoch = len(reached) - reached[::-1].index(False) if False in reached else 0
        return Held(self.train_s[epoch], self.evaluate_s[epoch], epoch + 1)


def require_fraction(value: Any, name: str) -> None:
    """Refuse what is no fraction, such as a percentage."""
    fits = isinstance(value, int | float) and 0 < value <= 1
    require(fits, name, "be a fraction above 0 and at most 1", value, "95 % is 0.95.")


def result_of(setting: Setting, came: Sequence[Run | Divergence]) -> Result:
    """Make a Result of what came out on the ranks."""
    if isinstance(came[0], Divergence):
        return Result(setting, (), came[0])
    return Result(setting, tuple(came))


def write(result: Result, path: Path) -> None:
    """Write a record in one piece: it is there whole or not at all.

    Args:
        result: what came out.
        path: the file.
    """
    body = {
        "format": FORMAT,
        "setting": result.setting.identity(),
        "runs": [run.as_dict() for run in result.runs],
        "divergence": None if result.divergence is None else asdict(result.divergence),
    }
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps({**body, "crc32": _crc32(body)}) + "\n")
    draft.replace(path)


def read(path: Path, setting: Setting) -> Result:
    """Read a record back.

    Args:
        path: the file.
        setting: what it must be the record of; its name is taken over.

    Returns:
        Result: equal to the one that was written.

    Raises:
        RecordError: when the file is damaged, or of another setting or format.
    """
    then = "Delete the file to train this one again; the others are kept."
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        checksum = body.pop("crc32")
        whole = checksum == _crc32(body)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} is damaged and cannot be read ({error}). {then}") from error
    if not whole:
        raise RecordError(f"{path} is damaged: its checksum does not fit. {then}")
    if body["format"] != FORMAT or body["setting"] != setting.identity():
        raise RecordError(f"{path} is the record of another training. {then}")
    lost = body["divergence"]
    runs = tuple(Run.from_dict(run) for run in body["runs"])
    return Result(setting, runs, None if lost is None else Divergence(**lost))


def _crc32(body: dict[str, Any]) -> int:
    # as JSON gives it back: there tuples are lists
    return zlib.crc32(json.dumps(json.loads(json.dumps(body)), sort_keys=True).encode())


def _slowest(runs: tuple[Run, ...], phase: str) -> tuple[float, ...]:
    """Add up the phases of a name, epoch by epoch, and take the slowest rank's."""
    sums = []
    for run in runs:
        total, each = 0.0, []
        for name, begin, end in run.phases:
            if name == phase:
                total += end - begin
                each.append(total)
        sums.append(each)
    return tuple(max(row) for row in zip(*sums, strict=True))
