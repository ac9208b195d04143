"""Training of the video case on all ranks together, with checkpoints, and what came of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.video import growing, nets, scenes, trivial
from dlcourse.usecases.video.game import Pair, centred, flat
from dlcourse.usecases.video.outcome import GAN, Outcome, examples, judge, shown
from dlcourse.usecases.video.resuming import Resuming
from dlcourse.usecases.video.settings import Settings, named
from dlguide import measure
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.trainer import Clock

if TYPE_CHECKING:
    import keras


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    parallel: bool | None = None,
    **own: Any,
) -> Outcome:
    """Train the pair on clips of some drives and judge it on clips of others.

    Synchronous data parallelism: all ranks hold the same nets, each step has `batch` clips in
    all, each rank takes its rows of them, and the gradients of both nets are added up. So the
    number of ranks changes the time and not the result, but for rounding. All ranks must call it,
    with the same arguments.

    The generator corrects the guess that `trivial.flow` makes. The pair grows: at first only its
    coarsest resolution is trained, the finest in the second half (`growing.stages`). Each
    resolution begins with optimizers that remember nothing.

    Args:
        real: folder of KITTI tracking; None for drawn drives.
        seed: of drawn drives, first weights and order.
        checkpoint: folder to write to after each epoch and to go on from; None for neither.
            Resumed, a training ends with the weights of the uninterrupted one, bit by bit.
        report: called with numbers (epoch, epochs, step, steps, loss, size, images_per_s); None
            for `measure.report_progress`.
        parallel: False for this process alone, True for all ranks of the launcher; None for True
            exactly when the launcher started more than one.
        own: what else `Settings` has: size (128 as in the guide), epochs, batch, filters, ...

    Returns:
        Outcome: as this rank saw it.

    Raises:
        ValueError: on all ranks, when an argument is not what it must be.
        MissingComponentError: on all ranks, when the real data is not there.
        DataError: on all ranks, when it is there in part, or is another data set.
        CheckpointError: when the checkpoint is damaged or another training's.
        DivergedError: on all ranks, when a loss is no number any more.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 6.1.
    """
    report = measure.report_progress if report is None else report
    clock, comm = Clock(), connect(parallel)
    asked = named(real, seed=seed, **own)
    with comm.agree_or_raise(asked.as_dict()):
        asked.check()
        must = f"be at least the {comm.size} ranks"
        require(asked.batch >= comm.size, "batch", must, asked.batch, "Use fewer ranks.")
    with clock.phase("load"):
        found = scenes.load(
            asked.real, asked.size, asked.drives, asked.held_out, asked.frames, asked.spacing,
            seed, comm,
        )  # fmt: skip
        guess, test_guess = (
            in_parts(comm, past, guessed) for past in (found.past, found.test_past)
        )
    with comm.agree_or_raise():
        then = "Ask for a smaller batch, or more drives."
        must = f"be at most the {len(found.past)} clips"
        require(asked.batch <= len(found.past), "batch", must, asked.batch, then)
    pair_of = _Growing(asked, comm)
    resuming = Resuming(checkpoint, asked, comm)
    stages = growing.stages(asked.epochs, len(nets.resolutions(asked.size)))
    first = resuming.resume(lambda epochs: pair_of(stages[epochs - 1]), len(stages))
    arrays = (found.past, guess, found.future)
    steps = len(found.past) // asked.batch
    sums, step_s, sizes = [], [], []
    with clock.phase("train"):
        for epoch in range(first, asked.epochs):
            pair = pair_of(stages[epoch])
            parts, total = np.zeros(3), asked.epochs * steps
            for step, rows in enumerate(_rows(asked, epoch, len(found.past))):
                begin = perf_counter()
                done = epoch * steps + step
                pair.set_rate(growing.rate_at(done, total, asked.learning_rate))
                mine = rows[comm.rank :: comm.size]
                parts += pair.step(*(each[mine] for each in arrays), asked.batch)
                seconds = perf_counter() - begin
                step_s += [seconds] * (stages[epoch] == stages[-1])
                report(
                    epoch=epoch + 1, epochs=asked.epochs, step=step + 1, steps=steps,
                    loss=float(parts[0] * comm.size / (step + 1)), size=pair.resolutions[-1],
                    images_per_s=asked.batch / seconds,
                )  # fmt: skip
            sums.append(comm.allreduce_sum(parts / steps))
            sizes.append(pair.resolutions[-1])
            _require_finite(sums[-1], epoch, asked)
            resuming.save(pair, epoch + 1, (epoch + 1) * steps)
    predicted = {
        name: shown(predict(found.test_past, scenes.AFTER))
        for name, predict in trivial.PREDICTORS.items()
        if name != "flow"
    }
    predicted["flow"] = test_guess
    predicted[GAN] = in_parts(
        comm, (found.test_past, test_guess), lambda *two: infer(pair_of.generator, *two)
    )
    return Outcome(
        rank=comm.rank,
        ranks=comm.size,
        data=found.name,
        size=found.size,
        drives=found.drives,
        clips=(len(found.past), len(found.test_past)),
        epochs=asked.epochs,
        first_epoch=first,
        batch=asked.batch,
        seed=seed,
        sizes=tuple(sizes),
        error=tuple(each[0] for each in sums),
        fooled=tuple(each[1] for each in sums),
        judged=tuple(each[2] for each in sums),
        parameters=tuple(net.count_params() for net in pair_of.nets),
        nbytes=sum(
            np.dtype(asked.dtype).itemsize * net.count_params()
            for net in pair_of.nets[: 1 + (asked.adversarial > 0)]
        ),
        scores={name: judge(found.test_future, each) for name, each in predicted.items()},
        examples=examples(found.test_past, found.test_future, predicted),
        step_s=tuple(step_s[1:]),
        load_s=clock.total_s("load"),
        train_s=clock.total_s("train"),
        digest=_digest(pair_of.nets),
    )


class _Growing:
    """Both nets, and the pair of the stage that is trained, made when a stage begins."""

    def __init__(self, asked: Settings, comm: Communicator) -> None:
        self._asked, self._comm = asked, comm
        self.nets = build(asked)
        self.generator = self.nets[0]
        comm.broadcast([weight for net in self.nets for weight in net.weights])
        self._stage, self._pair = 0, None

    def __call__(self, stage: int) -> Pair:
        if stage != self._stage:
            asked = self._asked
            self._stage = stage
            self._pair = Pair(
                *self.nets, stage, self._comm, asked.learning_rate, asked.edges,
                asked.adversarial,
            )  # fmt: skip
        return self._pair


def build(asked: Settings) -> tuple[keras.Model, keras.Model]:
    """Build generator and discriminator; the same on every rank.

    Args:
        asked: sizes, seed and dtype.

    Returns:
        tuple: generator and discriminator.
    """
    generator = nets.generator(
        asked.size, asked.filters, asked.blocks, scenes.BEFORE, asked.volume, asked.seed,
        asked.dtype,
    )  # fmt: skip
    frames = scenes.BEFORE + scenes.AFTER
    judge = nets.discriminator(asked.size, asked.judges, frames, asked.seed, asked.dtype)
    return generator, judge


def guessed(past: np.ndarray) -> np.ndarray:
    """Give the guess that the generator corrects: everything moves on as it moved."""
    return shown(trivial.flow(past, scenes.AFTER))


def infer(generator: keras.Model, past: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Let the generator predict.

    Args:
        generator: with all its resolutions.
        past: uint8, shape (clips, frames, size, size, 3).
        guess: of the next frames, in the same form.

    Returns:
        numpy.ndarray: the finest frames, uint8, in the same form.
    """
    frames = []
    for begin in range(0, len(past), 16):  # a few at a time: activations take the memory
        both = (centred(each[begin : begin + 16], generator.outputs[0].dtype)
                for each in (past, guess))  # fmt: skip
        frames.append(np.asarray(flat(generator(list(both), training=False))[-1], np.float64))
    return shown(255 * (np.concatenate(frames) + 0.5))


def in_parts(
    comm: Communicator,
    clips: np.ndarray | tuple[np.ndarray, ...],
    function: Callable[..., np.ndarray],
) -> np.ndarray:
    """Let each rank work on its clips, and give the results of all to all; all ranks must call."""
    arrays = clips if isinstance(clips, tuple) else (clips,)
    count, begin = len(arrays[0]), comm.rank
    with comm.agree_or_raise():
        # a rank without clips works on the first one, so that it knows the form of the results
        mine = function(*(each[begin :: comm.size] if begin < count else each[:1]
                          for each in arrays))  # fmt: skip
    whole = np.empty((count, *mine.shape[1:]), np.uint8)
    for rank, data in enumerate(comm.allgather_bytes(np.ascontiguousarray(mine).tobytes())):
        held = np.frombuffer(data, np.uint8).reshape(-1, *mine.shape[1:])
        whole[rank :: comm.size] = held[: len(whole[rank :: comm.size])]
    return whole


def _rows(asked: Settings, epoch: int, clips: int) -> Iterator[np.ndarray]:
    """Give the clips of each step of an epoch, in an order of its own; a rest is left out."""
    order = np.random.default_rng([asked.seed, epoch]).permutation(clips)
    for begin in range(0, clips - asked.batch + 1, asked.batch):
        yield order[begin : begin + asked.batch]


def _require_finite(losses: list[float], epoch: int, asked: Settings) -> None:
    if not np.isfinite(losses).all():
        raise DivergedError(
            f"The losses of epoch {epoch + 1} are {losses}: the training has diverged. Ask for a "
            f"lower `learning_rate` than {asked.learning_rate}."
        )


def _digest(nets_of: tuple[keras.Model, ...]) -> str:
    digest = hashlib.sha256()
    for net in nets_of:
        for weight in net.weights:
            digest.update(np.asarray(weight).tobytes())
    return digest.hexdigest()
