"""When `fit` writes checkpoints, what goes into them, and how it goes on from one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.communicator import Communicator
from dlguide.errors import LockHeldError, NoLocksError, require
from dlguide.files import file_lock
from dlguide.training import checkpoint as checkpoints
from dlguide.training import checkpoint_file
from dlguide.training.checkpoint import CheckpointError, Within
from dlguide.training.settings import Settings
from dlguide.training.workers import Workers, own_state

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Start:
    """Where a training begins, or goes on.

    epoch (epochs done), step (of that epoch, steps done), done (steps of all epochs; counts).
    """

    epoch: int = 0
    step: int = 0
    done: int = 0


class Saver:
    """The checkpoints of one training; without a folder it writes none.

    At an epoch's end all ranks are equal, and weights, optimizer, epoch and step are all there is
    to keep: the order of the samples and the seeds of dropout follow from seed, epoch and rank.
    Within an epoch each worker also has moving averages and seeds of its own, and each rank the
    sum of its losses: rank 0 writes those of all, and every worker gets its own back.
    """

    def __init__(self, asked: Settings, comm: Communicator) -> None:
        self._asked, self._comm, self._folder = asked, comm, asked.checkpoint
        self._before = 0  # steps of the runs before this one
        self._states = b""  # what each worker had of its own, of all ranks
        self._held = ExitStack()  # the folder, for this training alone

    def close(self) -> None:
        """Let other trainings use the folder."""
        self._held.close()

    def announce(self) -> None:
        """Tell on rank 0 what will be gone on from, before anything else.

        Whoever forgot an old checkpoint must not wait for a training that will not happen.
        """
        path = checkpoints.latest(self._folder) if self._folder is not None else None
        if path is None or self._comm.rank != 0:
            return
        found, _arrays = checkpoints.read(path)
        epochs = self._asked.epochs
        further = f" and {found.within.step} steps of the next" if found.within else ""
        where = f"step {found.step}, epoch {found.epoch} of {epochs}{further}"
        anew = checkpoint_file.anew(path.parent)
        if found.epoch >= epochs and found.within:
            # Its weights are those of no whole epoch, and there is nothing left to train.
            raise CheckpointError(
                f"{path} is further than the training asked for: {where}. Ask for at least "
                f"{found.epoch + 1} epochs. {anew}"
            )
        if found.epoch >= epochs:
            print(
                f"{path} is a finished training: {where}. Nothing will be trained. Ask for more "
                f"epochs to go on. {anew}",
                flush=True,
            )
        else:
            print(f"Going on from {path}: {where}.", flush=True)

    def require_whole(self, rule: keras.Optimizer) -> None:
        """Refuse an optimizer of which a checkpoint cannot hold everything.

        Gradients that wait for others are each rank's own, and on other ranks of no use.
        """
        inner = getattr(rule, "inner_optimizer", rule)
        must = "be None where the optimizer has `gradient_accumulation_steps`, whose gradients are "
        must += "each rank's own and in no checkpoint"
        fits = self._folder is None or not inner.gradient_accumulation_steps
        then = "Let each rank play several `workers` instead, which sum in every step."
        require(fits, "checkpoint", must, self._folder, then)

    def resume(self, model: keras.Model, rule: keras.Optimizer) -> Start:
        """Set all ranks to the weights that the last checkpoint holds; all must call it."""
        self._model, self._rule = model, rule
        if self._folder is None:
            return Start()
        found, states = [0.0, 0.0, 0.0], ()
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:  # the others may not even see the folder
                nbytes, files = checkpoints.nbytes_of(model, rule), 3
                if self._asked.save_every is not None:
                    nbytes, files = nbytes + self._nbytes_within(model), 4
                checkpoints.require_writable(self._folder, nbytes, files)
                taken = self._hold()
                path = checkpoints.latest(self._folder)
                if taken and path is None:
                    raise taken
                if path is not None:
                    layout = self._layout()
                    saved = checkpoints.restore(path, model, rule, self._identity(), layout)
                    if taken and saved.epoch < self._asked.epochs:
                        raise taken  # a finished training is only read
                    found = [saved.epoch, saved.step, saved.within.step if saved.within else 0]
                    states = saved.within.states if saved.within else ()
        epoch, self._before, step = (int(number) for number in self._comm.allreduce_sum(found))
        if self._before:
            self._comm.broadcast([*model.weights, *rule.variables])
        self._states = self._comm.allgather_bytes(b"".join(states))[0] if step else b""
        return Start(epoch, step, self._before)

    def _hold(self) -> CheckpointError | None:
        """Keep other trainings out of the folder until `close`; return why that cannot be done."""
        folder = Path(self._folder)
        try:
            self._held.enter_context(file_lock(folder / "training.lock", wait=False))
        except LockHeldError as error:
            return CheckpointError(
                f"{error.owner} trains with the checkpoints in {folder}. Wait until it has ended, "
                "or use another folder."
            )
        except NoLocksError:
            print(
                f"The file system of {folder} has no locks: let no other training use this folder.",
                flush=True,
            )
        return None

    def give_back(self, players: Workers) -> tuple[float, float]:
        """Give this rank's workers what they had of their own, where that was within an epoch."""
        self._players, states, self._states = players, self._states, b""
        if not states:
            return 0.0, 0.0
        like, rank = players.states(), self._comm.rank
        size = 16 + sum(array.nbytes for array in like[0])
        if len(states) != size * len(like) * self._comm.size:
            raise CheckpointError(
                f"The checkpoint in {self._folder} holds {len(states)} bytes of the workers' own, "
                f"here they have {size} each. {checkpoint_file.anew(Path(self._folder))}"
            )
        mine, sums = [], []
        for worker in range(rank * len(like), (rank + 1) * len(like)):
            at = worker * size
            sums.append(np.frombuffer(states, np.float64, 2, at))
            mine.append(_arrays_like(like[0], states, at + 16))
        players.put_back(mine)
        return float(sums[0][0]), float(sums[0][1])

    def stops(self, first: int, steps: int) -> list[int]:
        """Say after which steps of an epoch there is something to do.

        >>> from dlguide.collectives.communicator import Communicator, SingleProcess
        >>> import types
        >>> asked = types.SimpleNamespace(checkpoint="saves", save_every=4)
        >>> Saver(asked, SingleProcess()).stops(4, 11)
        [8, 11]
        """
        every = self._asked.save_every or steps
        return [*range(first - first % every + every, steps, every), steps]

    def save(self, epoch: int, steps: int) -> None:
        """Write a checkpoint of an epoch's end; all ranks must call it."""
        self._write(epoch, steps, None)

    def save_within(self, epoch: int, step: int, steps: int, sums: tuple[float, float]) -> None:
        """Write a checkpoint before an epoch's end; all ranks must call it."""
        states = []
        for worker, arrays in enumerate(self._players.states()):
            # The sums are the rank's; the first of its workers carries them.
            first = np.array(sums if worker == 0 else (0, 0), np.float64)
            states.append(b"".join(array.tobytes() for array in (first, *arrays)))
        whole = b"".join(self._comm.allgather_bytes(b"".join(states)))
        size = len(states[0])
        pieces = tuple(whole[at : at + size] for at in range(0, len(whole), size))
        self._write(epoch, steps, Within(step, self._layout(), pieces))

    def last_good(self) -> str:
        """Name the last checkpoint that can be used; for rank 0, which wrote it."""
        if self._folder is None:
            return "There is no checkpoint: `checkpoint` and `save_every` would have written some."
        for path in reversed(checkpoint_file.finished(Path(self._folder))):
            try:
                found, _arrays = checkpoints.read(path)
            except CheckpointError:
                continue  # the next one is looked for; whoever goes on is told of the damage
            return f"The last good checkpoint is {path}, after step {found.step}."
        return f"There is no checkpoint in {self._folder} yet."

    def _write(self, epoch: int, steps: int, within: Within | None) -> None:
        done, identity = self._before + steps, self._identity()
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:
                checkpoints.save(
                    self._folder, self._model, self._rule, done, epoch, identity, within=within
                )

    def _nbytes_within(self, model: keras.Model) -> int:
        """What a checkpoint within an epoch holds beside the others (bytes)."""
        each = 16 + sum(np.asarray(variable).nbytes for variable in own_state(model))
        return each * int(self._asked.workers) * self._comm.size

    def _identity(self) -> dict[str, Any]:
        """What a training cannot change at all; a schedule counts updates, so the batch too."""
        asked = self._asked
        if asked.schedule is None:
            return asked.identity()
        images = int(asked.batch) * int(asked.workers) * self._comm.size
        return asked.identity() | {"global_batch": images}

    def _layout(self) -> dict[str, int]:
        """What a training cannot change within an epoch."""
        ranks, asked = self._comm.size, self._asked
        return {"ranks": ranks, "workers": int(asked.workers), "batch": int(asked.batch)}


def _arrays_like(like: Sequence[np.ndarray], data: bytes, at: int) -> list[np.ndarray]:
    arrays = []
    for one in like:
        arrays.append(np.frombuffer(data, one.dtype, one.size, at).reshape(one.shape))
        at += one.nbytes
    return arrays
