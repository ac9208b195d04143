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
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.bench.scaling import StepWorker, TimedStep
from dlcourse.usecases.plan import Rehearsal
from dlcourse.usecases.run import Option
from dlcourse.usecases.video import baselines, data, nets
from dlcourse.usecases.video.pair import AdversarialPair, centred, flat
from dlcourse.usecases.video.report import GAN, Outcome, examples, judge, shown
from dlguide import measure
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.files import require_writable
from dlguide.training import checkpoint as checkpoints
from dlguide.training.checkpoint import CheckpointError
from dlguide.training.devices import connect
from dlguide.training.divergence import DivergedError
from dlguide.training.trainer import Clock

if TYPE_CHECKING:
    import keras

# The guide's frames have 128 pixels; a lesson has 32.
SIZE = 32


@dataclass(frozen=True)
class VideoConfig:
    """The arguments of `train` that determine its result."""

    real: str | None = None
    seed: int = 0
    size: int = SIZE
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
        if self.real is None:
            data.drawn(self.size, self.drives, self.held_out, self.frames, self.seed)
        else:
            require_count(self.seed, "seed", least=0)
            data.kitti(self.real, self.size)

    def as_dict(self) -> dict[str, Any]:
        """Return all values by name, for JSON and checkpoints."""
        return asdict(self)


# What `dlguide usecase video --set` accepts, with the defaults.
OPTIONS = {
    name: Option(field.default, type(field.default))
    for name, field in VideoConfig.__dataclass_fields__.items()
    if name not in ("real", "seed")
}


def check(real: str | os.PathLike | None = None, **own: Any) -> None:
    """Raise for invalid settings or data before any rank starts.

    Raises:
        ValueError: if a value is out of range or a name unknown.
        MissingComponentError: if the real data is not there; with what was looked for, and where.
        DataError: if it is incomplete, or another data set.
    """
    config_of(real, **own).check()


def config_of(real: str | os.PathLike | None = None, **own: Any) -> VideoConfig:
    """Return a config, not yet checked; a ValueError names an unknown argument."""
    known = VideoConfig.__dataclass_fields__
    for name in own:
        require_known(name, known, "argument")
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
    left = 1 - require_count(step, "step", least=0) / require_count(steps, "steps")
    return require_positive(rate, "rate") * round(min(1.0, 0.01 + 0.99 * 2 * max(left, 0.0)), 9)


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
    the number of ranks changes the time, and the result only by rounding. All ranks must call it,
    with the same arguments.

    The generator corrects the guess of `baselines.flow`. The pair grows: at first only its
    coarsest resolution is trained, the finest in the second half (`stages`). Each resolution
    starts with new optimizers.

    Args:
        real: folder of KITTI tracking; None for drawn drives.
        seed: of drawn drives, initial weights and order.
        checkpoint: folder to write to after each epoch and to resume from; None for neither.
            A resumed training ends with the weights of the uninterrupted one, bit for bit.
        report: called with epoch, epochs, step, steps, loss, size, images_per_s; None for
            `measure.report_progress`.
        parallel: False for this process alone, True for all ranks of the launcher; None for True
            if the launcher started more than one.
        own: the other fields of `VideoConfig`: size (128 as in the guide), epochs, ...

    Raises:
        ValueError: on all ranks, if an argument is invalid.
        MissingComponentError: on all ranks, if the real data is not there.
        DataError: on all ranks, if it is incomplete, or another data set.
        CheckpointError: if the checkpoint is damaged or another training's.
        DivergedError: on all ranks, if a loss is not finite.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 6.1.
    """
    report = measure.report_progress if report is None else report
    clock, comm = Clock(), connect(parallel)
    config = config_of(real, seed=seed, **own)
    with comm.agree_or_raise(config.as_dict()):
        config.check()
        must = f"be at least the {comm.size} ranks"
        batch, then = config.global_batch, "Use fewer ranks."
        require(batch >= comm.size, "global_batch", must, batch, then)
    with clock.phase("load"):
        found = data.load(
            config.real, config.size, config.drives, config.held_out, config.frames, config.spacing,
            seed, comm,
        )  # fmt: skip
        guess, test_guess = (
            in_parts(comm, past, guessed) for past in (found.past, found.test_past)
        )
    with comm.agree_or_raise():
        then = "Use a smaller batch, or more drives."
        must = f"be at most the {len(found.past)} clips"
        require(batch <= len(found.past), "global_batch", must, batch, then)
    growing = _GrowingPair(config, comm)
    checkpoints_of = VideoCheckpoints(checkpoint, config, comm)
    growth = stages(config.epochs, len(nets.resolutions(config.size)))
    first = checkpoints_of.resume(lambda epochs: growing(growth[epochs - 1]), len(growth))
    arrays = (found.past, guess, found.future)
    steps = len(found.past) // config.global_batch
    sums, step_s, sizes = [], [], []
    with clock.phase("train"):
        for epoch in range(first, config.epochs):
            pair = growing(growth[epoch])
            parts, total = np.zeros(3), config.epochs * steps
            for step, rows in enumerate(_rows(config, epoch, len(found.past))):
                begin = perf_counter()
                done = epoch * steps + step
                pair.set_rate(rate_at(done, total, config.learning_rate))
                mine = rows[comm.rank :: comm.size]
                parts += pair.step(*(each[mine] for each in arrays), config.global_batch)
                seconds = perf_counter() - begin
                step_s += [seconds] * (growth[epoch] == growth[-1])
                report(
                    epoch=epoch + 1, epochs=config.epochs, step=step + 1, steps=steps,
                    loss=float(parts[0] * comm.size / (step + 1)), size=pair.resolutions[-1],
                    images_per_s=config.global_batch / seconds,
                )  # fmt: skip
            sums.append(comm.allreduce_sum(parts / steps))
            sizes.append(pair.resolutions[-1])
            _require_finite(sums[-1], epoch, config)
            checkpoints_of.save(pair, epoch + 1, (epoch + 1) * steps)
    predicted = {
        name: shown(predict(found.test_past, data.AFTER))
        for name, predict in baselines.PREDICTORS.items()
        if name not in ("flow", "blend")
    }
    predicted["flow"] = test_guess  # known already, and so is half of the blend
    predicted["blend"] = shown((test_guess.astype(float) + predicted["mean"]) / 2)
    weights = baselines.fit(found.past, found.future, guess)
    predicted["fitted"] = shown(baselines.fitted(weights, found.test_past, test_guess))
    predicted[GAN] = in_parts(
        comm, (found.test_past, test_guess), lambda *two: infer(growing.generator, *two)
    )
    return Outcome(
        rank=comm.rank,
        ranks=comm.size,
        data=found.name,
        size=found.size,
        drives=found.drives,
        clips=(len(found.past), len(found.test_past)),
        epochs=config.epochs,
        first_epoch=first,
        global_batch=config.global_batch,
        seed=seed,
        sizes=tuple(sizes),
        error=tuple(each[0] for each in sums),
        adversarial_loss=tuple(each[1] for each in sums),
        discriminator_loss=tuple(each[2] for each in sums),
        parameters=tuple(net.count_params() for net in growing.nets),
        nbytes=sum(
            np.dtype(config.dtype).itemsize * net.count_params()
            for net in growing.nets[: 1 + (config.adversarial > 0)]
        ),
        scores={name: judge(found.test_future, each) for name, each in predicted.items()},
        examples=examples(found.test_past, found.test_future, predicted),
        step_s=tuple(step_s[1:]),
        load_s=clock.total_s("load"),
        train_s=clock.total_s("train"),
        digest=measure.digest_of(weight for net in growing.nets for weight in net.weights),
    )


def rehearse(
    work: Rehearsal, real: str | os.PathLike | None = None, seed: int = 0, **own: Any
) -> None:
    """Measure a little of each part of `train`, for `usecases.plan`; all ranks call."""
    comm, config = work.comm, config_of(real, seed=seed, **own)
    config.check()
    with work.once("list of frames"):
        if real is None:
            sizes = config.size, config.drives, config.held_out, config.frames, seed
            learn, test = data.drawn(*sizes)
        else:
            learn, test = data.kitti(real, config.size)
        train_clips = len(data.clips(learn, data.BEFORE, data.AFTER, config.spacing).places)
        test_clips = len(data.clips(test, data.BEFORE, data.AFTER).places)
    one = data.BEFORE + data.AFTER
    frames, clips = sum(map(len, (*learn, *test))), train_clips + test_clips
    with work.once("frames", frames / (comm.size * one)):  # each rank makes its share
        clip = np.stack([learn[0][number].pixels for number in range(one)])
    mine = -(-config.global_batch // comm.size)
    past, future = (np.repeat(part[None], mine, 0) for part in np.split(clip, [data.BEFORE]))
    work.repeat("guesses", clips / (comm.size * mine), partial(guessed, past))
    guess = guessed(past)
    growing, saver = _GrowingPair(config, comm), VideoCheckpoints(work.folder, config, comm)
    growth, number = stages(config.epochs, len(nets.resolutions(config.size))), count(1)
    for stage in sorted(set(growth)):
        pair, epochs = growing(stage), growth.count(stage)
        step = partial(pair.step, past, guess, future, config.global_batch)
        steps = epochs * (train_clips // config.global_batch)
        work.repeat(f"step, {pair.resolutions[-1]} pixels", steps, step, epochs / len(growth))
    work.repeat("checkpoint", config.epochs, lambda: saver.save(pair, 1, next(number)))
    sizes = [file.stat().st_size for file in work.folder.glob("*.dlguide")]
    work.disk_nbytes += 3 * max(sizes, default=0)
    predict = partial(infer, growing.generator, past, guess)
    work.repeat("predictions", test_clips / (comm.size * mine), predict)
    work.repeat("fit", train_clips / mine, partial(baselines.fit, past, future, guess))
    scored = len(baselines.PREDICTORS) + 2  # the fitted blend and the GAN
    work.repeat("scores", scored * test_clips / mine, partial(judge, future, guess))
    # past, guess and future of all clips, and once all frames
    work.cache_nbytes += clip[0].nbytes * (clips * (one + data.AFTER) + frames)


def step(
    global_batch: int = 16,
    ranks: int = 2,
    seed: int = 0,
    real: str | os.PathLike | None = None,
    **own: Any,
) -> TimedStep:
    """Return a training step of the whole pair, all resolutions, for `speedup.measure`.

    Args:
        global_batch: clips of all ranks in a step, as for `train`.
        ranks: among which they are divided; each takes as many as the one with most.
        seed: of the initial weights.
        real: not used: the content of the frames does not change a step's time.
        own: other fields of `VideoConfig`: size, filters, ...

    Raises:
        ValueError: if an argument is invalid.
    """
    config = config_of(None, seed=seed, global_batch=global_batch, **own)
    config.check()
    require_count(ranks, "ranks")
    must, then = f"be at least the {ranks} ranks", "Use fewer ranks."
    require(global_batch >= ranks, "global_batch", must, global_batch, then)
    label = f"video GAN of {config.filters} filters at {config.size} pixels"
    return TimedStep(
        label, -(-global_batch // ranks), partial(_worker, config), partial(_noise, config.size)
    )


class _GrowingPair:
    """Both nets, and the pair of the current stage, made when the stage begins."""

    def __init__(self, config: VideoConfig, comm: Communicator) -> None:
        self._config, self._comm = config, comm
        self.nets = build(config)
        self.generator = self.nets[0]
        comm.broadcast([weight for net in self.nets for weight in net.weights])
        self._stage, self._pair = 0, None

    def __call__(self, stage: int) -> AdversarialPair:
        if stage != self._stage:
            self._stage = stage
            self._pair = pair_of(self.nets, stage, self._comm, self._config)
        return self._pair


def build(config: VideoConfig) -> tuple[keras.Model, keras.Model]:
    """Build generator and discriminator, equal on every rank."""
    generator = nets.generator(
        config.size, config.filters, config.blocks, data.BEFORE, config.volume, config.seed,
        config.dtype,
    )  # fmt: skip
    frames = data.BEFORE + data.AFTER
    discriminator = nets.discriminator(
        config.size, config.discriminator_filters, frames, config.seed, config.dtype
    )
    return generator, discriminator


def pair_of(
    nets_of: tuple[keras.Model, keras.Model], stage: int, comm: Communicator,
    config: VideoConfig, optimizer: Callable[[float], Any] | None = None,
) -> AdversarialPair:  # fmt: skip
    """Return the pair that trains the first `stage` resolutions of both nets."""
    return AdversarialPair(
        *nets_of, stage, comm, config.learning_rate, config.gradient_loss_weight,
        config.adversarial, optimizer,
    )  # fmt: skip


def guessed(past: np.ndarray) -> np.ndarray:
    """Return the guess that the generator corrects: everything continues to move as it did."""
    return shown(baselines.flow(past, data.AFTER))


def infer(generator: keras.Model, past: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Predict the finest frames from past and guess, all uint8 (clips, frames, size, size, 3)."""
    frames = []
    for begin in range(0, len(past), 16):  # a few at a time: activations need much memory
        both = (centred(each[begin : begin + 16], generator.outputs[0].dtype)
                for each in (past, guess))  # fmt: skip
        frames.append(np.asarray(flat(generator(list(both), training=False))[-1], np.float64))
    return shown(255 * (np.concatenate(frames) + 0.5))


def in_parts(
    comm: Communicator,
    clips: np.ndarray | tuple[np.ndarray, ...],
    function: Callable[..., np.ndarray],
) -> np.ndarray:
    """Apply a function to each rank's clips and return all results on all ranks; collective."""
    arrays = clips if isinstance(clips, tuple) else (clips,)
    count, begin = len(arrays[0]), comm.rank
    with comm.agree_or_raise():
        # a rank without clips uses the first one, to know the shape of the results
        mine = function(*(each[begin :: comm.size] if begin < count else each[:1]
                          for each in arrays))  # fmt: skip
    whole = np.empty((count, *mine.shape[1:]), np.uint8)
    for rank, sent in enumerate(comm.allgather_bytes(np.ascontiguousarray(mine).tobytes())):
        held = np.frombuffer(sent, np.uint8).reshape(-1, *mine.shape[1:])
        whole[rank :: comm.size] = held[: len(whole[rank :: comm.size])]
    return whole


class VideoCheckpoints:
    """Writes a checkpoint after each epoch and resumes from the last; without a folder, nothing.

    A checkpoint holds the weights of the resolutions trained so far, of both nets, and the state
    of their optimizers. Order of the clips, rates and initial weights of finer parts follow from
    seed, epoch and step.
    """

    def __init__(
        self, folder: str | os.PathLike | None, config: VideoConfig, comm: Communicator
    ) -> None:
        self._folder = None if folder is None else Path(folder)
        self._config, self._comm = config, comm

    def resume(self, pair_of: Callable[[int], AdversarialPair], epochs: int) -> int:
        """Restore the last checkpoint on all ranks and return its epochs; all must call it."""
        if self._folder is None:
            return 0
        done, path = 0, None
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:  # other ranks may not see the folder
                require_writable(self._folder, "checkpoint", 3_000_000)
                path = checkpoints.latest(self._folder)
                if path is not None:
                    done = self._epochs(path, epochs)
        done = int(self._comm.allreduce_sum([done])[0])
        if done == 0:
            return 0
        pair = pair_of(done)
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:
                checkpoints.restore(path, pair, pair, self._config.as_dict())
                self._announce(path, done, epochs)
        self._comm.broadcast([*pair.weights, *pair.variables])
        return done

    def save(self, pair: AdversarialPair, epoch: int, step: int) -> None:
        """Write a checkpoint; all ranks must call."""
        if self._folder is None:
            return
        with self._comm.agree_or_raise():
            if self._comm.rank == 0:
                checkpoints.save(self._folder, pair, pair, step, epoch, self._config.as_dict())

    def _epochs(self, path: Path, epochs: int) -> int:
        found, _ = checkpoints.read(path)
        other = found.settings.get("epochs", epochs)
        if found.epoch > epochs or other != epochs:
            raise CheckpointError(
                f"{path} belongs to a training of {other} epochs, here {epochs} are requested. "
                "How the nets grow and how the rate falls depend on their number. "
                f"{checkpoints.anew(path.parent)}"
            )
        return found.epoch

    def _announce(self, path: Path, done: int, epochs: int) -> None:
        if done == epochs:
            print(
                f"{path} is a finished training: epoch {done} of {epochs}. Nothing will be "
                f"trained. {checkpoints.anew(path.parent)}",
                flush=True,
            )
        else:
            print(f"Resuming from {path}: epoch {done} of {epochs}.", flush=True)


def _rows(config: VideoConfig, epoch: int, clips: int) -> Iterator[np.ndarray]:
    """Yield the clips of each step of an epoch in its random order; a remainder is left out."""
    order = np.random.default_rng([config.seed, epoch]).permutation(clips)
    for begin in range(0, clips - config.global_batch + 1, config.global_batch):
        yield order[begin : begin + config.global_batch]


def _require_finite(losses: list[float], epoch: int, config: VideoConfig) -> None:
    if not np.isfinite(losses).all():
        raise DivergedError(
            f"The losses of epoch {epoch + 1} are {losses}: the training has diverged. Use a "
            f"lower `learning_rate` than {config.learning_rate}."
        )


def _worker(config: VideoConfig, comm: Communicator) -> StepWorker:
    nets_of = build(config)
    pair = pair_of(nets_of, len(nets_of[0].outputs), comm, config, _timed_optimizer)

    def one(past: Any, guess: Any, future: Any) -> float:
        return pair.step(past, guess, future, comm.size * len(past))[0]

    return StepWorker(one, tuple(pair.optimizers))


def _timed_optimizer(rate: float) -> Any:
    import keras

    # Adam's first step is the gradient's sign, which rounding can flip; with a larger epsilon it is
    # the gradient, and takes the same time
    return keras.optimizers.Adam(rate, beta_1=0.5, epsilon=1.0)


def _noise(size: int, samples: int, seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    shape = (samples, data.BEFORE, size, size, 3)
    return tuple(random.integers(0, 256, shape, np.uint8) for _ in range(3))
