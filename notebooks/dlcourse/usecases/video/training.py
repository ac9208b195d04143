"""Training of the video case on all ranks, with checkpoints, and its step to be timed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from numbers import Real
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from dlcourse.usecases.plan import Rehearsal
from dlcourse.usecases.run import Option
from dlcourse.usecases.video import baselines, data, nets
from dlcourse.usecases.video.nets import AdversarialPair
from dlcourse.usecases.video.report import GAN, Outcome, examples, judge, shown
from dlguide import measure
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.files import require_writable
from dlguide.training import checkpoint as checkpoints
from dlguide.training.checkpoint import CheckpointError
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.step_breakdown import StepWorker, TimedStep


@dataclass(frozen=True)
class VideoConfig:
    """The arguments of `train` that determine its result; the guide's frames have 128 pixels."""

    real: str | None = None
    seed: int = 0
    size: int = 32
    epochs: int = 12
    global_batch: int = 16
    filters: int = 48
    blocks: int = 3
    discriminator_filters: int = 16
    volume: bool = False
    drives: int = 24
    held_out: int = 8
    frames: int = 48
    spacing: int = 3
    learning_rate: float = 3e-3
    gradient_loss_weight: float = 0.5
    adversarial: float = 0.005
    dtype: str = "float32"

    def check(self) -> None:
        """Raise for invalid values or missing data; the data is looked for, but not read."""
        then = "A frame is cut into parts of 8, 16, 32 pixels and so on; SSIM needs 11."
        large = require_count(self.size, "size") >= 16
        require(large, "size", "be at least 16", self.size, then)
        nets.resolutions(self.size)
        counts = ("epochs", "global_batch", "filters", "blocks", "discriminator_filters", "spacing")
        for name in counts:
            require_count(getattr(self, name), name)
        require_positive(self.learning_rate, "learning_rate")
        for name in ("gradient_loss_weight", "adversarial"):
            value = getattr(self, name)
            number = isinstance(value, Real) and 0 <= value < float("inf")
            require(number, name, "be a number of at least 0", value)
        require_known(self.dtype, ("float32", "float64"), "dtype")
        require(self.volume in (True, False), "volume", "be True or False", self.volume)
        require_count(self.seed, "seed", least=0)
        data.divided(self)


# What `dlguide usecase video --set` accepts, with the defaults.
OPTIONS = {
    name: Option(field.default, type(field.default))
    for name, field in VideoConfig.__dataclass_fields__.items()
    if name not in ("real", "seed")
}


def check(real: str | os.PathLike | None = None, **own: Any) -> None:
    """Raise for invalid settings or data before any rank starts."""
    config_of(real, **own).check()


def config_of(real: str | os.PathLike | None = None, **own: Any) -> VideoConfig:
    """Return a config, not yet checked; a ValueError names an unknown argument."""
    for name in own:
        require_known(name, VideoConfig.__dataclass_fields__, "argument")
    return VideoConfig(real=None if real is None else os.fspath(real), **own)


def stages(epochs: int, resolutions: int) -> tuple[int, ...]:
    """Return for each epoch how many resolutions are trained.

    The finest one, with all others, has half of the epochs, because its steps take longest; the
    coarser ones share the other half. With few epochs the coarsest have fewest.

    Source:
        Karras et al. 2017 (arXiv:1710.10196), section 2: growing, for pictures; Aigner and
        Koerner 2018 (arXiv:1810.01325), FutureGAN: for video.

    >>> stages(8, 3), stages(2, 3)
    ((1, 1, 2, 2, 3, 3, 3, 3), (2, 3))
    """
    require_count(epochs, "epochs")
    before = epochs // 2 if require_count(resolutions, "resolutions") > 1 else 0
    coarse = sorted(resolutions - 1 - number % (resolutions - 1) for number in range(before))
    return (*coarse, *(resolutions,) * (epochs - before))


def rate_at(step: int, steps: int, rate: float) -> float:
    """Return the rate of a step: constant for the first half, then down to a hundredth.

    >>> [rate_at(step, 10, 1.0) for step in (0, 5, 9)]
    [1.0, 1.0, 0.208]
    """
    return rate * round(min(1.0, 0.01 + 0.99 * 2 * max(1 - step / steps, 0.0)), 9)


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    parallel: bool | None = None,
    **own: Any,
) -> Outcome:
    """Train the pair on clips of some drives and evaluate it on clips of others.

    Synchronous data parallelism: all ranks hold the same nets, each step has `global_batch` clips
    on all ranks, each rank takes its rows of them, and the gradients of both nets are summed. So
    the number of ranks changes the time, and the result only by rounding.

    The generator corrects the guess of `baselines.flow`. The pair grows: at first only its
    coarsest resolution is trained, the finest in the second half (`stages`). Each resolution
    starts with new optimizers.

    Args:
        own: the other fields of `VideoConfig`: size (128 as in the guide), epochs, ...

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 6.1.
    """
    report, comm = report or measure.report_progress, connect(parallel)
    config = config_of(real, seed=seed, **own)
    batch, epochs = config.global_batch, config.epochs
    with comm.agree_or_raise(asdict(config)):
        config.check()
        must = f"be at least the {comm.size} ranks"
        require(batch >= comm.size, "global_batch", must, batch, "Use fewer ranks.")
    found = data.load(config, comm)
    guess, test_guess = (in_parts(comm, guessed, past) for past in (found.past, found.test_past))
    with comm.agree_or_raise():
        must, then = (
            f"be at most the {len(found.past)} clips",
            "Use a smaller batch or more drives.",
        )
        require(batch <= len(found.past), "global_batch", must, batch, then)
    growing = GrowingPair(config, comm, checkpoint)
    first = growing.resume()
    arrays, steps = (found.past, guess, found.future), len(found.past) // batch
    sums, step_s, sizes, begun = [], [], [], perf_counter()
    for epoch in range(first, epochs):
        pair, parts = growing.at(epoch), np.zeros(3)
        for step, rows in enumerate(_rows(config, epoch, len(found.past))):
            begin = perf_counter()
            pair.set_rate(rate_at(epoch * steps + step, epochs * steps, config.learning_rate))
            mine = rows[comm.rank :: comm.size]
            parts += pair.step(*(each[mine] for each in arrays), batch)
            seconds = perf_counter() - begin
            step_s += [seconds] * (growing.growth[epoch] == growing.growth[-1])
            report(
                epoch=epoch + 1, epochs=epochs, step=step + 1, steps=steps,
                loss=float(parts[0] * comm.size / (step + 1)), size=pair.resolutions[-1],
                images_per_s=batch / seconds,
            )  # fmt: skip
        sums.append(comm.allreduce_sum(parts / steps))
        sizes.append(pair.resolutions[-1])
        if not np.isfinite(sums[-1]).all():
            raise DivergedError(
                f"The losses of epoch {epoch + 1} are {sums[-1]}: the training has diverged. Use a "
                f"lower `learning_rate` than {config.learning_rate}."
            )
        growing.save(pair, epoch + 1, (epoch + 1) * steps)
    train_s = perf_counter() - begun
    predicted = {name: shown(getattr(baselines, name)(found.test_past, data.AFTER))
                 for name in ("repeat", "mean")}  # fmt: skip
    predicted["flow"] = test_guess  # known already, and so is half of the blend
    predicted["blend"] = shown((test_guess.astype(float) + predicted["mean"]) / 2)
    predicted[GAN] = in_parts(comm, partial(infer, growing.nets[0]), found.test_past, test_guess)
    parameters = tuple(net.count_params() for net in growing.nets)
    error, adversarial_loss, discriminator_loss = (
        tuple(each[part] for each in sums) for part in range(3)
    )
    return Outcome(
        rank=comm.rank,
        ranks=comm.size,
        data=found.name,
        size=config.size,
        drives=found.drives,
        clips=(len(found.past), len(found.test_past)),
        epochs=epochs,
        first_epoch=first,
        global_batch=batch,
        seed=seed,
        sizes=tuple(sizes),
        error=error,
        adversarial_loss=adversarial_loss,
        discriminator_loss=discriminator_loss,
        parameters=parameters,
        nbytes=np.dtype(config.dtype).itemsize * sum(parameters[: 1 + (config.adversarial > 0)]),
        scores={name: judge(found.test_future, each) for name, each in predicted.items()},
        examples=examples(found.test_past, found.test_future, predicted),
        step_s=tuple(step_s[1:]),
        train_s=train_s,
        digest=measure.digest_of(weight for net in growing.nets for weight in net.weights),
    )


def rehearse(
    work: Rehearsal, real: str | os.PathLike | None = None, seed: int = 0, **own: Any
) -> None:
    """Measure a little of each part of `train`, for `usecases.plan`; all ranks call."""
    comm, config = work.comm, config_of(real, seed=seed, **own)
    config.check()
    with work.once("list of frames"):
        learn, test = data.divided(config)
        train_clips, test_clips = (
            sum(len(data.starts(len(one), step)) for one in part)
            for part, step in ((learn, config.spacing), (test, data.CLIP))
        )
    frames, clips = sum(map(len, (*learn, *test))), train_clips + test_clips
    with work.once("frames", frames / (comm.size * data.CLIP)):  # each rank makes its share
        clip = np.stack([learn[0][number].pixels for number in range(data.CLIP)])
    mine = -(-config.global_batch // comm.size)
    past, future = (np.repeat(part[None], mine, 0) for part in np.split(clip, [data.BEFORE]))
    work.repeat("guesses", clips / (comm.size * mine), partial(guessed, past))
    guess, growing, number = guessed(past), GrowingPair(config, comm, work.folder), count(1)
    for stage in sorted(set(growing.growth)):
        pair, epochs = growing.at(growing.growth.index(stage)), growing.growth.count(stage)
        step = partial(pair.step, past, guess, future, config.global_batch)
        steps = epochs * (train_clips // config.global_batch)
        share = epochs / len(growing.growth)
        work.repeat(f"step, {pair.resolutions[-1]} pixels", steps, step, share)
    work.repeat("checkpoint", config.epochs, lambda: growing.save(pair, 1, next(number)))
    sizes = [file.stat().st_size for file in work.folder.glob("*.dlguide")]
    work.disk_nbytes += 3 * max(sizes, default=0)
    predict = partial(infer, growing.nets[0], past, guess)
    work.repeat("predictions", test_clips / (comm.size * mine), predict)
    scored = len(baselines.PREDICTORS) + 1
    work.repeat("scores", scored * test_clips / mine, partial(judge, future, guess))
    # past, guess and future of all clips, and once all frames
    work.cache_nbytes += clip[0].nbytes * (clips * (data.CLIP + data.AFTER) + frames)


def step(
    global_batch: int = 16,
    ranks: int = 2,
    seed: int = 0,
    real: str | os.PathLike | None = None,
    **own: Any,
) -> TimedStep:
    """Return a training step of the whole pair, all resolutions, for `speedup.measure`.

    The `global_batch` clips are divided among the ranks; each takes as many as the one with most.
    The content of the frames does not change a step's time, so `real` is not used.
    """
    config = config_of(None, seed=seed, global_batch=global_batch, **own)
    config.check()
    require_count(ranks, "ranks")
    must, then = f"be at least the {ranks} ranks", "Use fewer ranks."
    require(global_batch >= ranks, "global_batch", must, global_batch, then)
    label = f"video GAN of {config.filters} filters at {config.size} pixels"
    samples = partial(_noise, config.size)
    return TimedStep(label, -(-global_batch // ranks), partial(_worker, config), samples)


class GrowingPair:
    """Both nets, the pair of the current stage, made when the stage begins, and its checkpoints.

    A checkpoint holds the weights of the resolutions trained so far, of both nets, and the state
    of their optimizers. Order of the clips, rates and initial weights of finer parts follow from
    seed, epoch and step. Without a folder nothing is written.
    """

    def __init__(
        self, config: VideoConfig, comm: Communicator, folder: str | os.PathLike | None
    ) -> None:
        self.config, self.comm = config, comm
        self.folder = None if folder is None else Path(folder)
        self.nets = nets.build(config)
        comm.broadcast([weight for net in self.nets for weight in net.weights])
        self.growth = stages(config.epochs, len(nets.resolutions(config.size)))
        self._stage, self._pair = 0, None

    def at(self, epoch: int) -> AdversarialPair:
        """Return the pair of an epoch."""
        if self.growth[epoch] != self._stage:
            self._stage = self.growth[epoch]
            self._pair = AdversarialPair(self.nets, self._stage, self.comm, self.config)
        return self._pair

    def resume(self) -> int:
        """Restore the last checkpoint on all ranks and return its epochs; all must call it."""
        if self.folder is None:
            return 0
        done, path, epochs = 0, None, self.config.epochs
        with self.comm.agree_or_raise():
            if self.comm.rank == 0:  # other ranks may not see the folder
                require_writable(self.folder, "checkpoint", 3_000_000)
                path = checkpoints.latest(self.folder)
                if path is not None:
                    done = self._epochs_of(path)
        done = int(self.comm.allreduce_sum([done])[0])
        if done == 0:
            return 0
        pair = self.at(done - 1)
        with self.comm.agree_or_raise():
            if self.comm.rank == 0:
                checkpoints.restore(path, pair, pair, asdict(self.config))
                finished = (
                    f"{path} is a finished training: epoch {done} of {epochs}. Nothing will be "
                    f"trained. {checkpoints.anew(path.parent)}"
                )
                begun = f"Resuming from {path}: epoch {done} of {epochs}."
                print(finished if done == epochs else begun, flush=True)
        self.comm.broadcast([*pair.weights, *pair.variables])
        return done

    def save(self, pair: AdversarialPair, epoch: int, step: int) -> None:
        """Write a checkpoint; all ranks must call."""
        if self.folder is None:
            return
        with self.comm.agree_or_raise():
            if self.comm.rank == 0:
                checkpoints.save(self.folder, pair, pair, step, epoch, asdict(self.config))

    def _epochs_of(self, path: Path) -> int:
        found, epochs = checkpoints.read(path)[0], self.config.epochs
        other = found.settings.get("epochs", epochs)
        if found.epoch > epochs or other != epochs:
            raise CheckpointError(
                f"{path} belongs to a training of {other} epochs, here {epochs} are requested. "
                "How the nets grow and how the rate falls depend on their number. "
                f"{checkpoints.anew(path.parent)}"
            )
        return found.epoch


def guessed(past: np.ndarray) -> np.ndarray:
    """Return the guess that the generator corrects: everything continues to move as it did."""
    return shown(baselines.flow(past, data.AFTER))


def infer(generator: Any, past: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Predict the finest frames from past and guess, all uint8 (clips, frames, size, size, 3)."""
    frames = []
    for begin in range(0, len(past), 16):  # a few at a time: activations need much memory
        both = (nets.centred(each[begin : begin + 16], generator.outputs[0].dtype)
                for each in (past, guess))  # fmt: skip
        made = nets.flat(generator(list(both), training=False))[-1]
        frames.append(np.asarray(made, np.float64))
    return shown(255 * (np.concatenate(frames) + 0.5))


def in_parts(
    comm: Communicator, function: Callable[..., np.ndarray], *arrays: np.ndarray
) -> np.ndarray:
    """Apply a function to each rank's clips and return all results on all ranks; collective."""
    count, begin = len(arrays[0]), comm.rank
    with comm.agree_or_raise():
        # a rank without clips uses the first one, to know the shape of the results
        mine = function(*(each[begin :: comm.size] if begin < count else each[:1]
                          for each in arrays))  # fmt: skip
    return data.gathered(mine, count, comm)


def _rows(config: VideoConfig, epoch: int, clips: int) -> Iterator[np.ndarray]:
    """Yield the clips of each step of an epoch in its random order; a remainder is left out."""
    order = np.random.default_rng([config.seed, epoch]).permutation(clips)
    for begin in range(0, clips - config.global_batch + 1, config.global_batch):
        yield order[begin : begin + config.global_batch]


def _worker(config: VideoConfig, comm: Communicator) -> StepWorker:
    both = nets.build(config)
    pair = AdversarialPair(both, len(both[0].outputs), comm, config, epsilon=1.0)

    def one(past: Any, guess: Any, future: Any) -> float:
        return pair.step(past, guess, future, comm.size * len(past))[0]

    return StepWorker(one, tuple(pair.optimizers))


def _noise(size: int, samples: int, seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    shape = (samples, data.BEFORE, size, size, 3)
    return tuple(random.integers(0, 256, shape, np.uint8) for _ in range(3))
