"""The whole case on all ranks: pre-train, choose a checkpoint, fine-tune, judge on other patients.

Each of the 14 findings is its own question, with one logit: the loss is the binary
cross-entropy, weighted so that rare findings count as much as their absence.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray import auroc, data
from dlcourse.usecases.chest_xray import model as nets
from dlcourse.usecases.chest_xray.data import Collection
from dlcourse.usecases.chest_xray.model import WeightsOrigin
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.chest_xray.report import Outcome, StageResult
from dlcourse.usecases.run import Option
from dlguide.collectives.communicator import Communicator
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.measure import digest_of
from dlguide.training import CheckpointConfig, FitConfig, connect, devices, fit, train_step
from dlguide.training import schedules as recipes
from dlguide.training.schedules import EpochSchedule
from dlguide.training.step_breakdown import StepWorker, TimedStep

if TYPE_CHECKING:
    import keras

PRETRAINING = "pretraining"
# The folder of each start's checkpoints, so that none resumes from those of another.
STAGES = {"chosen": "tuning", "last": "tuning-last", "early": "tuning-early", "none": "scratch"}
RATES = ("even", "published")
DEVICES = ("auto", "cpu", "gpu")
# For 32 radiographs; a larger batch has a rate in proportion (Goyal et al.'s linear scaling).
RATE, RATE_BATCH = 0.05, 32
# The share of the pre-training at the highest rate.
_HELD = 0.75
_INFERENCE_BLOCK = 200
# In the timed step one label in eight is positive: as often as in the phantoms.
_ONE_POSITIVE_IN = 8

# What `dlguide usecase chest_xray --set` accepts.
OPTIONS = {
    "weights": Option(None, str),
    "compare": Option(None, bool),
    "net": Option(nets.SMALL, str),
    "image": Option(None, int),
    "batch_per_rank": Option(32, int),
    "epochs": Option(5, int),
    "pretrain_epochs": Option(8, int),
    "warmup": Option(0.5, float),
    "start": Option("chosen", str),
    "learning_rate": Option(None, float),
    "dtype": Option("float32", str),
    "device": Option("auto", str),
    "radiographs": Option(1200, int),
    "archive": Option(1500, (int, str)),
    "rates": Option("even", str),
    "data_seed": Option(0, int),
}


@dataclass(frozen=True, kw_only=True)
class ChestXrayConfig:
    """The settings of `train`, apart from where to read and write; checked when it is made."""

    seed: int = 0
    weights: str | os.PathLike | None = None
    compare: bool | None = None
    net: str = nets.SMALL
    image: int | None = None
    batch_per_rank: int = 32
    epochs: int = 5
    pretrain_epochs: int = 8
    warmup: float = 0.5
    start: str = "chosen"
    learning_rate: float | None = None
    dtype: str = "float32"
    device: str = "auto"
    radiographs: int = 1200
    archive: int | str | os.PathLike = 1500
    rates: str = "even"
    data_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_per_rank", "epochs", "pretrain_epochs", "radiographs"):
            require_count(getattr(self, name), name)
        if not isinstance(self.archive, str | os.PathLike):
            require_count(self.archive, "archive")
        for name in ("seed", "data_seed"):
            require_count(getattr(self, name), name, least=0)
        require_known(self.net, nets.NETS, "net")
        require_known(self.start, STAGES, "start")
        require_known(self.rates, RATES, "rates")
        require_known(self.dtype, nets.DTYPES, "dtype")
        require_known(self.device, DEVICES, "device")
        if self.image is not None:
            require_count(self.image, "image", least=data.SMALLEST)
        if self.learning_rate is not None:
            require_positive(self.learning_rate, "learning_rate")
        require_positive(self.warmup, "warmup")
        must = f"be above 0 and shorter than the {self.epochs} epochs of the training"
        require(0 < self.warmup < self.epochs, "warmup", must, self.warmup)
        known = self.compare in (True, False, None)
        require(known, "compare", "be True, False or None", self.compare)
        given = self.weights is not None
        path = not given or isinstance(self.weights, str | os.PathLike)
        require(path, "weights", "be a file or folder", self.weights)
        must, then = (
            'be None with start="none", which begins from scratch',
            "Leave one of them out.",
        )
        require(not given or self.start != "none", "weights", must, self.weights, then)

    @property
    def size(self) -> int:
        """Height and width of the radiographs (pixels)."""
        return nets.SIZES[self.net] if self.image is None else self.image

    def build(self, outputs: int) -> keras.Model:
        """Build the net, the same on every rank."""
        return nets.build(self.net, self.size, outputs, self.seed, self.dtype)


def check(real: str | os.PathLike | None = None, **own: Any) -> None:
    """Raise, before any rank starts, for what `train` would refuse on all ranks.

    Args:
        real: as in `train`.
        own: further arguments of `train`.

    Raises:
        ValueError: if a setting is out of range.
        MissingComponentError: if data or weights are not there.
        DataError: if a label file or a list is invalid; names file and line.
    """
    elsewhere = ("checkpoint", "report", "parallel")
    config = ChestXrayConfig(**{name: own[name] for name in own if name not in elsewhere})
    if real is not None:
        data.read(real)
    if isinstance(config.archive, str | os.PathLike):
        data.archive_labels(config.archive)
    if config.weights is not None:
        nets.require_weights(config.weights, config.net)


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    parallel: bool | None = None,
    weights: str | os.PathLike | None = None,
    compare: bool | None = None,
    net: str = nets.SMALL,
    image: int | None = None,
    batch_per_rank: int = 32,
    epochs: int = 5,
    pretrain_epochs: int = 8,
    warmup: float = 0.5,
    start: str = "chosen",
    learning_rate: float | None = None,
    dtype: str = "float32",
    device: str = "auto",
    radiographs: int = 1200,
    archive: int | str | os.PathLike = 1500,
    rates: str = "even",
    data_seed: int = 0,
) -> Outcome:
    """Pre-train a net, fine-tune it on the 14 findings, and judge it on other patients.

    Synchronous data parallelism: p ranks with `batch_per_rank` radiographs each train like one
    process with p times as many. All ranks must call it with the same arguments. The
    pre-training writes a checkpoint each epoch; fine-tuning begins with the one that `start` names
    and with its learning rate, which a gradual warmup raises in proportion to the global batch.

    Args:
        real: folder of ChestX-ray14, as published or packed by `pack`; None makes phantoms.
        seed: of the initial weights and of the order.
        checkpoint: folder for synthetic data and checkpoints that all ranks see, and to resume
            from; None for a temporary one.
        report: progress, as `on_result` of `training.fit`.
        parallel: False for this process alone, True for all ranks of the launcher; None for True
            if the launcher started more than one.
        weights: file of the same net's weights to begin with instead of a pre-training, such as
            ImageNet's: .weights.h5 of Keras, or a checkpoint of `usecases.imagenet`.
        compare: whether to train from scratch too, in as many steps; None for True with
            phantoms only.
        net: "chest_cnn", "vgg16", "resnet50" or "densenet121".
        image: height and width of the radiographs (pixels); None for the net's own.
        batch_per_rank: radiographs per rank and step (count).
        epochs: of the fine-tuning (count).
        pretrain_epochs: of the pre-training (count).
        warmup: until the highest rate of the fine-tuning (epochs).
        start: "chosen", "last" or "early" checkpoint of the pre-training, or "none" for a
            training from scratch.
        learning_rate: highest rate of the global batch in the fine-tuning; None for the
            checkpoint's, or without one, for 0.05 per 32 radiographs of the global batch.
        dtype: "float32" or "float64".
        device: "auto", "cpu" or "gpu".
        radiographs: synthetic radiographs with the 14 findings, those of the test included
            (count).
        archive: phantoms to make for the pre-training (count), or a folder that `make_archive`
            wrote.
        rates: of the findings in phantoms: "even", or "published" as in ChestX-ray14.
        data_seed: of the phantoms.

    Raises:
        ValueError: if an argument is out of range; on all ranks, before any work.
        MissingComponentError: if data, weights or device are not there; on all ranks.
        DataError: if the data are invalid; names file and line; on all ranks.
        CheckpointError: if a checkpoint is damaged or another training's, or the weights are
            another net's.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.4.
    """
    comm = connect(parallel)
    settings: dict[str, Any] = {
        "seed": seed, "weights": weights, "compare": compare, "net": net, "image": image,
        "batch_per_rank": batch_per_rank, "epochs": epochs, "pretrain_epochs": pretrain_epochs,
        "warmup": warmup, "start": start, "learning_rate": learning_rate, "dtype": dtype,
        "device": device, "radiographs": radiographs, "archive": archive, "rates": rates,
        "data_seed": data_seed,
    }  # fmt: skip
    every = {"real": real, **settings}
    plain = {name: str(one) if isinstance(one, os.PathLike) else one for name, one in every.items()}
    with comm.agree_or_raise(plain):
        config = ChestXrayConfig(**settings)
    place = devices.choose(config.device, comm)
    import tensorflow as tf

    with (
        _shared_folder(checkpoint, comm) as folder,
        tf.device(devices.require_device(place.device)),
    ):
        radiographs = _collection(real, config, folder, comm)
        return _CaseTraining(config, radiographs, folder, comm, report).run()


@contextmanager
def _shared_folder(checkpoint: str | os.PathLike | None, comm: Communicator) -> Iterator[Path]:
    """Yield the folder of the checkpoints, or a temporary one that all ranks share."""
    if checkpoint is not None:
        yield Path(checkpoint)
        return
    mine = ""
    with comm.agree_or_raise():
        if comm.rank == 0:
            mine = tempfile.mkdtemp(prefix="dlguide-chest-")
    folder = comm.allgather(mine)[0]
    try:
        with comm.agree_or_raise():
            must = f"be a folder that all ranks see; rank {comm.rank} does not see {folder}"
            then = "Name one on a shared disk."
            require(Path(folder).is_dir(), "checkpoint", must, checkpoint, then)
        yield Path(folder)
    finally:
        # ranks fail together, so none still reads
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _collection(
    real: str | os.PathLike | None, config: ChestXrayConfig, folder: Path, comm: Communicator
) -> Collection:
    """Read the radiographs; rank 0 makes phantoms unless there are real ones."""
    path = folder / "radiographs" if real is None else Path(real)
    with comm.agree_or_raise():
        if real is None and comm.rank == 0:
            settings = config.radiographs, config.size, config.data_seed, config.rates
            if not path.is_dir():
                data.make_phantoms(path, *settings)
            data.require_same_phantoms(path, data.phantom_settings(*settings))
    with comm.agree_or_raise():
        return data.read(path)


class _CaseTraining:
    """The stages of one call of `train`."""

    def __init__(
        self,
        config: ChestXrayConfig,
        radiographs: Collection,
        folder: Path,
        comm: Communicator,
        report: Callable[..., None] | None,
    ) -> None:
        self.config, self.radiographs, self.folder = config, radiographs, folder
        self.comm, self.report = comm, report
        self.global_batch = config.batch_per_rank * comm.size
        self.usual_rate = RATE * self.global_batch / RATE_BATCH

    def run(self) -> Outcome:
        """Take all stages and compare with a training from scratch if asked to."""
        config, comm = self.config, self.comm
        origin = pretrained = first = scratch = gains = None
        scratch_rate = config.learning_rate or self.usual_rate
        rate = scratch_rate
        model = config.build(len(FINDINGS))
        if config.start != "none":
            weights = config.weights
            if weights is None:
                pretrained = self.pretrain()
                with comm.agree_or_raise():
                    weights = nets.choose_checkpoint(self.folder / PRETRAINING, config.start)
            with comm.agree_or_raise():
                origin = nets.transfer(model, weights)
            first, rate = self.rates_from(origin)
        tuned, scores = self.tune(model, STAGES[config.start], rate, first)
        train, test = self.radiographs.train, self.radiographs.test
        areas = auroc.areas(test.labels, scores, test.patients, FINDINGS)
        compare = self.radiographs.synthetic if config.compare is None else config.compare
        if compare and origin is not None:
            plain = config.build(len(FINDINGS))
            _, others = self.tune(plain, STAGES["none"], scratch_rate, None)
            scratch = auroc.areas(test.labels, others, test.patients, FINDINGS)
            gains = auroc.differences(test.labels, scores, others, test.patients, FINDINGS)
        return Outcome(
            rank=comm.rank,
            ranks=comm.size,
            net=config.net,
            data=self.radiographs.name,
            synthetic=self.radiographs.synthetic,
            global_batch=self.global_batch,
            seed=config.seed,
            parameters=sum(int(np.prod(w.shape, dtype=int)) for w in model.trainable_weights),
            radiographs=(len(train), len(test)),
            patients=(len(np.unique(train.patients)), len(np.unique(test.patients))),
            origin=origin,
            start_rate=rate if first is None else first,
            scratch_rate=scratch_rate,
            pretraining=pretrained,
            tuning=tuned,
            areas=areas,
            scratch=scratch,
            gains=gains,
            labels=test.labels,
            scores=scores,
        )

    def pretrain(self) -> StageResult:
        """Train on the archive and keep the checkpoint of every epoch."""
        config, comm = self.config, self.comm
        archive = self.folder / "archive"
        with comm.agree_or_raise():
            if isinstance(config.archive, str | os.PathLike):
                archive = Path(config.archive)
            elif comm.rank == 0:
                settings = config.archive, config.size, config.data_seed
                if not archive.is_dir():
                    data.make_archive(archive, *settings)
                data.require_same_phantoms(archive, data.phantom_settings(*settings))
        with comm.agree_or_raise():
            model = config.build(len(data.COARSE_LABELS))
            labels = data.archive_labels(archive)
            pipeline = data.pipeline_for(archive / "train", model, config.batch_per_rank)
        schedule = pretraining_schedule(self.usual_rate, config.pretrain_epochs)
        return self.fit(model, pipeline, labels, PRETRAINING, schedule, keep=config.pretrain_epochs)

    def rates_from(self, origin: WeightsOrigin) -> tuple[float, float]:
        """The first and the highest rate of a fine-tuning from these weights."""
        if self.config.learning_rate is not None:
            return self.config.learning_rate, self.config.learning_rate
        if origin.rate is None:
            return self.usual_rate / 10, self.usual_rate
        highest = origin.rate * self.global_batch / (origin.global_batch or self.global_batch)
        return min(origin.rate, highest), highest

    def tune(
        self, model: keras.Model, stage: str, rate: float, first: float | None
    ) -> tuple[StageResult, np.ndarray]:
        """Train on the 14 findings; return the logits of the test too."""
        config, train = self.config, self.radiographs.train
        with self.comm.agree_or_raise():
            pipeline = data.pipeline_for(train.source, model, config.batch_per_rank)
            test = data.pipeline_for(self.radiographs.test.source, model, 1)
        schedule = tuning_schedule(rate, config.epochs, config.warmup, first)
        result = self.fit(model, pipeline, train.labels, stage, schedule)
        return result, predict_logits(model, test, self.comm)

    def fit(
        self,
        model: keras.Model,
        pipeline: Pipeline,
        labels: np.ndarray,
        stage: str,
        schedule: EpochSchedule,
        keep: int = 2,
    ) -> StageResult:
        """Train with momentum 0.9, resuming from a checkpoint of the same stage."""
        from dlguide.training.optimizers import MomentumSGD

        epochs = round(schedule.epochs)
        facts = {
            "stage": stage, "schedule": schedule.config(), "net": model.name,
            "data": pipeline.fingerprint(), "dtype": self.config.dtype,
            "initial_weights": digest_of(model.weights),
        }  # fmt: skip
        run = fit(
            model,
            pipeline,
            loss=partial(weighted_loss, weights=class_weights(labels)),
            metrics={"accuracy": label_accuracy},
            epochs=epochs,
            batch_per_rank=self.config.batch_per_rank,
            learning_rate=schedule,
            optimizer=partial(MomentumSGD, weight_decay=None),
            checkpoint=CheckpointConfig(folder=str(self.folder / stage), keep=keep, facts=facts),
            comm=self.comm,
            config=FitConfig(seed=self.config.seed, evaluate=False, label_check=not_binary),
            on_result=self.report,
        )
        steps = run.steps_per_epoch
        rates = schedule.to_steps(steps).rate(steps * np.arange(1, epochs + 1) - 1)
        return StageResult(
            epochs=epochs,
            first_epoch=run.first_epoch,
            loss=run.earlier_loss + run.loss,
            rates=tuple(float(rate) for rate in rates),
            steps_per_epoch=steps,
            samples=run.samples,
            step_s=run.step_s,
            wait_s=run.wait_s,
            images_per_s=run.images_per_s,
            digest=run.weights_digest,
        )


def pretraining_schedule(rate: float, epochs: int) -> EpochSchedule:
    """Gradual warmup over half an epoch, then `rate` for three quarters and a tenth of it.

    The rate changes at the end of an epoch; a single epoch has no decay.
    """
    warm = recipes.warmup("gradual", rate, 0.5, rate / 10)
    if epochs == 1:
        return warm.over(recipes.Constant(rate, 1))
    held = max(1, int(_HELD * epochs))
    return warm.over(recipes.StepDecay(rate, (held,), epochs))


def tuning_schedule(
    rate: float, epochs: int, warmup: float = 0.5, first: float | None = None
) -> EpochSchedule:
    """Gradual warmup from `first`, by default a tenth of `rate`, then linear decay to 0."""
    warm = recipes.warmup("gradual", rate, warmup, rate / 10 if first is None else first)
    return warm.then(recipes.linear(rate, epochs - warmup))


def class_weights(labels: np.ndarray) -> np.ndarray:
    """Weights of negatives and positives of each label, so that both kinds count equally.

    With P positives and N negatives of a label, a positive has the weight N / (P + N) and a
    negative P / (P + N), times one number for all labels that makes the mean weight 1, so that
    the learning rate need not change. A label that all samples have, or none, gets 0.

    Args:
        labels: zeros and ones, shape (samples, labels).

    Returns:
        numpy.ndarray: of negatives and of positives, shape (2, labels).

    Source:
        Rajpurkar et al., arXiv:1711.05225, section 2.1 (the two weights).

    >>> class_weights(np.array([[1], [0], [0], [0]])).ravel().tolist()
    [0.6666666666666666, 2.0]
    """
    often = np.asarray(labels, float).mean(axis=0)
    mean = float(np.mean(2 * often * (1 - often)))
    return np.stack([often, 1 - often]) / (mean or 1.0)


def weighted_loss(labels: Any, logits: Any, weights: np.ndarray) -> Any:
    """The weighted binary cross-entropy of each sample, the mean over its labels.

    mean over labels of w_1 y softplus(-z) + w_0 (1 - y) softplus(z)
    """
    import tensorflow as tf

    labels = tf.cast(labels, logits.dtype)
    negative, positive = (tf.constant(each, logits.dtype) for each in weights)
    losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
    return tf.reduce_mean(losses * (labels * positive + (1 - labels) * negative), axis=-1)


def label_accuracy(labels: Any, logits: Any) -> Any:
    """The share of correctly predicted labels of each sample."""
    import tensorflow as tf

    return tf.reduce_mean(tf.cast((logits > 0) == (labels > 0), logits.dtype), axis=-1)


def not_binary(labels: np.ndarray) -> np.ndarray:
    """Whether a sample has a label that is neither 0 nor 1, for each sample."""
    return ((np.asarray(labels) >> 1) != 0).any(axis=1)


def predict_logits(model: keras.Model, pipeline: Pipeline, comm: Communicator) -> np.ndarray:
    """Compute the logits of all radiographs on all ranks, each of which computes its share.

    Args:
        model: the net.
        pipeline: of the images.
        comm: the ranks; all of them must call.

    Returns:
        numpy.ndarray: float64, shape (samples, labels), in the order of the source.
    """
    block = max(1, min(_INFERENCE_BLOCK, pipeline.samples // comm.size))
    mine = pipeline.replace(batch_per_rank=block, shuffle=False, rank=comm.rank, ranks=comm.size)
    logits = np.zeros((pipeline.samples, model.outputs[0].shape[-1]))
    with comm.agree_or_raise(), mine.epoch() as batches:  # one rank's data may be damaged
        for part, (images, _) in zip(mine.steps(), batches, strict=True):
            if len(part.indices):
                logits[part.indices] = np.asarray(model(images, training=False))
    # each row was computed by one rank and is 0 on all others
    return np.sum([np.frombuffer(one).reshape(logits.shape)
                   for one in comm.allgather_bytes(logits.tobytes())], axis=0)  # fmt: skip


def label_step(
    model: keras.Model, optimizer: keras.Optimizer, ranks: int, weights: np.ndarray
) -> Callable[[Any, Any, float], Any]:
    """Compile the step of the training, as `fit` takes it."""
    import tensorflow as tf

    labels = tf.TensorSpec([None, weights.shape[1]], tf.int32, name="labels")
    loss = partial(weighted_loss, weights=weights)
    return train_step(model, optimizer, ranks, loss, {"accuracy": label_accuracy}, labels)


def step(
    batch_per_rank: int = 128, seed: int = 0, net: str = nets.SMALL, image: int | None = None
) -> TimedStep:
    """Return one step of the fine-tuning, for `usecases.speedup.measure`.

    Args:
        batch_per_rank: radiographs of one rank; with fewer a step of the small net is so short
            that the exchange takes a large part of it.
        seed: of the initial weights.
        net: one of `NETS`.
        image: height and width (pixels); None for the net's own.

    Returns:
        TimedStep: with radiographs in memory, because the input has its own measurements.

    Raises:
        ValueError: if a number is out of range or the net is unknown.
    """
    size = nets.SIZES.get(net) if image is None else image
    shape = size, size, nets.channels(net)
    return TimedStep(
        f"{net} with 14 labels", require_count(batch_per_rank, "batch_per_rank"),
        partial(_worker, net=net, image=size, seed=seed), partial(_samples, shape=shape),
    )  # fmt: skip


def _samples(count: int, seed: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(_ONE_POSITIVE_IN, size=(count, len(FINDINGS))) == 0
    return rng.standard_normal((count, *shape)).astype(np.float32), labels.astype(np.int32)


def _worker(comm: Communicator, net: str, image: int, seed: int) -> StepWorker:
    import tensorflow as tf

    from dlguide.training.optimizers import MomentumSGD

    model = nets.build(net, image, seed=seed)
    optimizer = comm.distribute(MomentumSGD(1e-3, weight_decay=None))
    optimizer.build(model.trainable_variables)
    labels = np.eye(_ONE_POSITIVE_IN)[:, :1].repeat(len(FINDINGS), axis=1)
    compiled = label_step(model, optimizer, comm.size, class_weights(labels))

    def whole(images: Any, labels: Any) -> float:
        scale = tf.constant(1 / (comm.size * len(images)), tf.float32)
        return float(compiled(images, labels, scale)[0])

    return StepWorker(whole, ((optimizer, model.trainable_variables),))
