"""Checkpoints of two nets that are trained together."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dlcourse.usecases.video.game import Pair
from dlcourse.usecases.video.settings import Settings
from dlguide.collectives.communicator import Communicator
from dlguide.training import checkpoint as checkpoints
from dlguide.training.checkpoint import CheckpointError


class Resuming:
    """Writes a checkpoint after each epoch and finds where to go on; without a folder, nothing.

    A checkpoint holds the weights of the resolutions trained so far, of both nets, and what their
    optimizers remember. The order of the clips follows from seed and epoch, the rates from the
    step, so nothing else is needed. Finer parts have their first weights, which the seed gives.
    """

    def __init__(
        self, folder: str | os.PathLike | None, asked: Settings, comm: Communicator
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._asked, self._comm = asked, comm

    def resume(self, pair_of: Callable[[int], Pair], epochs: int) -> int:
        """Set all ranks to what the last checkpoint holds; all must call it.

        A finished training is announced, so that nobody takes it for a new one.
        """
        if self._folder is None:
            return 0
        done, path = 0, None
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:  # the others may not even see the folder
                checkpoints.require_writable(self._folder, 1_000_000)
                path = checkpoints.latest(self._folder)
                if path is not None:
                    done = self._epochs(path, epochs)
        done = int(self._comm.allreduce_sum([done])[0])
        if done == 0:
            return 0
        pair = pair_of(done)
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:
                checkpoints.restore(path, pair, pair, self._asked.as_dict())
                self._tell(path, done, epochs)
        self._comm.broadcast([*pair.weights, *pair.variables])
        return done

    def save(self, pair: Pair, epoch: int, step: int) -> None:
        """Write a checkpoint; all ranks must call."""
        if self._folder is None:
            return
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:
                checkpoints.save(self._folder, pair, pair, step, epoch, self._asked.as_dict())

    def _epochs(self, path: Path, epochs: int) -> int:
        found, _ = checkpoints.read(path)
        other = found.settings.get("epochs", epochs)
        if found.epoch > epochs or other != epochs:
            raise CheckpointError(
                f"{path} belongs to a training of {other} epochs, here {epochs} were asked for. "
                "How the nets grow and how the rate falls depend on their number. "
                f"{checkpoints.anew(path.parent)}"
            )
        return found.epoch

    def _tell(self, path: Path, done: int, epochs: int) -> None:
        if done == epochs:
            print(
                f"{path} is a finished training: epoch {done} of {epochs}. Nothing will be "
                f"trained. {checkpoints.anew(path.parent)}",
                flush=True,
            )
        else:
            print(f"Going on from {path}: epoch {done} of {epochs}.", flush=True)
