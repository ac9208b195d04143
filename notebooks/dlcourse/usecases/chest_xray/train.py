"""The whole case on all ranks: pre-train, choose a checkpoint, fine-tune, judge on other patients.

Each of the 14 findings is its own question, with one logit: the loss is the binary
cross-entropy, weighted so that rare findings count as much as their absence. Both stages are
calls of `dlguide.training.fit` with this loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.bench.scaling import StepWorker, TimedStep, classifier_worker
from dlcourse.usecases.chest_xray import data, phantoms, report
from dlcourse.usecases.chest_xray import model as nets
from dlcourse.usecases.chest_xray.data import Collection
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.chest_xray.report import Judged, Outcome
from dlcourse.usecases.plan import Rehearsal
from dlcourse.usecases.run import Option, shared_folder
from dlguide.collectives.communicator import Communicator
from dlguide.data.input_pipeline import Pipeline
from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.measure import digest_of
from dlguide.training import CheckpointConfig, FitConfig, connect, devices, fit
from dlguide.training import schedules as recipes
from dlguide.training.schedules import EpochSchedule

if TYPE_CHECKING:
    import keras

PRETRAINING = "pretraining"
# The folder of each start's checkpoints, so that none resumes from those of another.
STAGES = {"chosen": "tuning", "last": "tuning-last", "none": "scratch"}
DEVICES = ("auto", "cpu", "gpu")
# For 32 radiographs; a larger batch has a rate in proportion (Goyal et al.'s linear scaling).
RATE, RATE_BATCH = 0.05, 32
ARCHIVE = 1500  # phantoms to pre-train with
# The share of the pre-training at the highest rate; the epochs of the fine-tuning's warmup.
_HELD, _WARMUP = 0.75, 0.5
_VALIDATION = 0.1  # of the patients of published radiographs
SAMPLE = 240  # phantoms that `rehearse` draws
# In the timed step one label in eight is positive: as often as in the phantoms.
_ONE_POSITIVE_IN = 8


@dataclass(frozen=True, kw_only=True)
class ChestXrayConfig:
    """The settings of `train`, checked when this is made.

    Args:
        seed: of the initial weights, the order, and the patients of `labelled` and `validation`.
        real: whether the radiographs are published ones; some defaults follow from it.
        weights: file of the same net's weights to begin with instead of a pre-training.
        net: one of `model.NETS`; None for "chest_cnn", or "densenet121" with published ones.
        image: height and width (pixels); None for the net's own.
        epochs: of the fine-tuning.
        start: "chosen" or "last" checkpoint of the pre-training, or "none" for a training from
            scratch.
        learning_rate: highest rate of the global batch in the fine-tuning; None for the
            checkpoint's, or without one, for 0.05 per 32 radiographs of the global batch.
        head_times: rate of the last layer over that of the others.
        labelled: training radiographs whose labels are used; None for all.
        validation: share of the training patients that is kept apart to choose settings with;
            None for a tenth of published radiographs, and none of phantoms.
        external: folder of another collection, whose test is judged too.
        radiographs: phantoms to train and test with.
        archive: folder of an archive, or a count of phantoms; None for 1500 with phantoms.
            Published radiographs get no pre-training on drawings unless it is given.
        rates: of the findings in phantoms, "even" or "published".
        data_seed: of the phantoms.
    """

    seed: int = 0
    real: bool = False
    weights: str | os.PathLike | None = None
    net: str | None = None
    image: int | None = None
    batch_per_rank: int = 32
    epochs: int = 5
    pretrain_epochs: int = 8
    start: str = "chosen"
    learning_rate: float | None = None
    head_times: float = 1.0
    labelled: int | None = None
    validation: float | None = None
    external: str | os.PathLike | None = None
    dtype: str = "float32"
    device: str = "auto"
    radiographs: int = 1200
    archive: int | str | os.PathLike | None = None
    rates: str = "even"
    data_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_per_rank", "epochs", "pretrain_epochs", "radiographs"):
            require_count(getattr(self, name), name)
        for name in ("seed", "data_seed"):
            require_count(getattr(self, name), name, least=0)
        asked = {name: value for name, value in vars(self).items() if value is not None}
        if "archive" in asked and not isinstance(self.archive, str | os.PathLike):
            require_count(self.archive, "archive")
        for name, least in (("labelled", 1), ("image", data.SMALLEST)):
            if name in asked:
                require_count(asked[name], name, least)
        known = {"net": nets.NETS, "start": STAGES, "rates": phantoms.RATES, "dtype": nets.DTYPES,
                 "device": DEVICES}  # fmt: skip
        for name, values in known.items():
            if name in asked:
                require_known(asked[name], values, name)
        for name in ("learning_rate", "head_times"):
            if name in asked:
                require_positive(asked[name], name)
        share = self.held_out
        require(0 <= share < 1, "validation", "be at least 0 and below 1", self.validation)
        given = self.weights is not None
        path = not given or isinstance(self.weights, str | os.PathLike)
        require(path, "weights", "be a file or folder", self.weights)
        must = 'be None with start="none", which begins from scratch'
        then = "Leave one of them out."
        require(not given or self.start != "none", "weights", must, self.weights, then)
        drawn = self.real and not given and self.start != "none" and self.archive is None
        must = "be given for published radiographs, which are not pre-trained on drawings"
        then = (
            f"Take Keras' ImageNet weights of {nets.REAL} (densenet121_weights_*.h5), start=none "
            f"for a training from scratch, or archive={ARCHIVE} for the drawings all the same."
        )
        require(not drawn, "weights", must, None, then)

    @property
    def used_net(self) -> str:
        """Name of the net."""
        return self.net or (nets.REAL if self.real else nets.SMALL)

    @property
    def held_out(self) -> float:
        """Share of the training patients in the validation."""
        return (_VALIDATION if self.real else 0) if self.validation is None else self.validation

    @property
    def size(self) -> int:
        """Height and width of the radiographs (pixels)."""
        return nets.SIZES[self.used_net] if self.image is None else self.image

    def build(self, outputs: int) -> keras.Model:
        """Build the net, the same on every rank."""
        return nets.build(self.used_net, self.size, outputs, self.seed, self.dtype)


_KINDS = {"weights": str, "net": str, "image": int, "learning_rate": float, "labelled": int,
          "validation": float, "external": str, "archive": (int, str)}  # fmt: skip
# What `dlguide usecase chest_xray --set` accepts.
OPTIONS = {
    one.name: Option(one.default, _KINDS.get(one.name, type(one.default)))
    for one in fields(ChestXrayConfig)
    if one.name not in ("seed", "real")
}


def check(real: str | os.PathLike | None = None, **own: Any) -> None:
    """Raise, before any rank starts, for what `train` would refuse on all ranks."""
    config = ChestXrayConfig(real=_published(real), **own)
    if real is not None:
        data.read(real)
    if isinstance(config.archive, str | os.PathLike):
        data.archive_labels(config.archive)
    if config.external is not None:
        data.read(config.external)
    if config.weights is not None:
        nets.require_weights(config.weights, config.used_net)


def train(
    real: str | os.PathLike | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    report: Callable[..., None] | None = None,
    parallel: bool | None = None,
    **own: Any,
) -> Outcome:
    """Pre-train a net, fine-tune it on the 14 findings, and judge it on other patients.

    Synchronous data parallelism: p ranks with `batch_per_rank` radiographs each train like one
    process with p times as many. The pre-training writes a checkpoint each epoch; fine-tuning
    begins with the one that `start` names and with its learning rate, which a gradual warmup
    raises in proportion to the global batch.

    Args:
        real: ChestX-ray14 as published or packed by `pack`, or packed phantoms; None makes
            phantoms.
        own: the fields of `ChestXrayConfig`.
    """
    comm = connect(parallel)
    every = {"real": real, "seed": seed, **own}
    plain = {name: str(one) if isinstance(one, os.PathLike) else one for name, one in every.items()}
    with comm.agree_or_raise(plain):
        config = ChestXrayConfig(seed=seed, real=_published(real), **own)
    place = devices.choose(config.device, comm)
    import tensorflow as tf

    with (
        shared_folder(checkpoint, comm, seen_by_all=True) as folder,
        tf.device(devices.require_device(place.device)),
    ):
        found = _collection(real, config, folder, comm)
        return _CaseTraining(config, found, folder, comm, report).run()


def rehearse(
    work: Rehearsal, real: str | os.PathLike | None = None, seed: int = 0, **own: Any
) -> None:
    """Measure a little of each stage of `train`, for `usecases.plan`; all ranks call."""
    config, comm = ChestXrayConfig(seed=seed, real=_published(real), **own), work.comm
    place = devices.choose(config.device, comm)
    import tensorflow as tf

    with tf.device(devices.require_device(place.device)):
        drawn = min(SAMPLE, config.radiographs)
        times = 1.0 if real is not None else config.radiographs / drawn
        with work.once("radiographs: labels" if real else "radiographs: drawing", times):
            found = _collection(real, replace(config, radiographs=drawn), work.folder, comm)
        if times > 1:  # the same ones again and again
            found = replace(found, **{
                name: getattr(found, name).times(times) for name in ("train", "test")
            })  # fmt: skip
            size = sum(one.stat().st_size for one in work.folder.rglob("*") if one.is_file())
            work.disk_nbytes += round(times * size)
        _CaseTraining(config, found, work.folder, comm).rehearse(work)


def _published(real: str | os.PathLike | None) -> bool:
    return real is not None and not (Path(real) / data.PHANTOMS).is_file()


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


def _divided(found: Collection, config: ChestXrayConfig, ranks: int) -> Collection:
    """Take validation and labelled radiographs; refuse what could not be trained or judged."""
    found = found.with_validation(config.held_out, config.seed)
    if config.labelled is not None:
        found = found.labelled(config.labelled, config.seed)
    if config.external is not None:
        found = replace(found, external=data.read(config.external).test)
    for name, part in found.parts.items():
        who = f"{len(part)} radiographs of {len(np.unique(part.patients))} patients"
        must = f"be at most the {who} in the {name} part of {found.name}"
        require(ranks <= len(part), "ranks", must, ranks, "Use fewer ranks, or more radiographs.")
        if name != "train":
            report.require_judgeable(part.labels, f"{name} part of {found.name}")
    return found


class _CaseTraining:
    """The stages of one call of `train`, or a little of each for `rehearse`."""

    def __init__(
        self, config: ChestXrayConfig, radiographs: Collection, folder: Path, comm: Communicator,
        on_result: Callable[..., None] | None = None,
    ) -> None:  # fmt: skip
        self.config, self.folder = config, folder
        self.comm, self.on_result = comm, on_result
        self.global_batch = config.batch_per_rank * comm.size
        self.usual_rate = RATE * self.global_batch / RATE_BATCH
        with comm.agree_or_raise():
            self.radiographs = _divided(radiographs, config, comm.size)

    def run(self) -> Outcome:
        """Take all stages and judge the net."""
        config, comm, found = self.config, self.comm, self.radiographs
        origin = pretrained = first = None
        rate = config.learning_rate or self.usual_rate
        model = config.build(len(FINDINGS))
        if config.start != "none":
            weights = config.weights
            if weights is None:
                pretrained = fit(**self.pretraining(self.archive()))
                with comm.agree_or_raise():
                    weights = nets.choose_checkpoint(self.folder / PRETRAINING, config.start)
            with comm.agree_or_raise():
                origin = nets.transfer(model, weights)
            first, rate = self.rates_from(origin)
        tuned = fit(**self.tuning(model, tuning_schedule(rate, config.epochs, first)))
        judged = {}
        for name, part in found.parts.items():
            if name != "train":
                scores = self.scores(model, part)
                areas = report.areas(part.labels, scores, part.patients, FINDINGS)
                judged[name] = Judged(areas, part.labels, scores, part.patients)
        return Outcome(
            model.name, found.name, found.synthetic, found.files, len(found.train), origin,
            rate if first is None else first, class_weights(found.train.labels), pretrained,
            tuned, judged,
        )  # fmt: skip

    def rehearse(self, work: Rehearsal) -> None:
        """Measure a little of each stage."""
        config, found = self.config, self.radiographs
        model, begins, share = config.build(len(FINDINGS)), config.start != "none", 1.0
        if begins and config.weights is None:
            share = 0.5
            with work.once("archive: drawing", self.archive_count() / SAMPLE):
                drawn = replace(config, archive=min(SAMPLE, self.archive_count()))
                archive = _CaseTraining(drawn, found, self.folder, self.comm).archive()
            archive = archive.rows(np.arange(self.archive_count()) % len(archive))
            work.fit("pre-training", share, **self.pretraining(archive))
        elif begins:
            with work.once("initial weights"):
                nets.transfer(model, config.weights)
        schedule = tuning_schedule(self.usual_rate, config.epochs)
        work.fit("fine-tuning", share, **self.tuning(model, schedule))
        for name, part in found.parts.items():
            if name != "train":
                few = min(len(part), 2 * self.global_batch)
                some = part.rows(np.arange(few))
                work.repeat(f"{name}: scores", len(part) / few, partial(self.scores, model, some))
        with work.once("areas"):
            noise = np.random.default_rng(0).random(found.test.labels.shape)
            report.areas(found.test.labels, noise, found.test.patients, FINDINGS)

    def archive_count(self) -> int:
        """How many radiographs the archive has."""
        archive = self.config.archive
        if isinstance(archive, str | os.PathLike):
            return len(data.archive_labels(archive))
        return archive or ARCHIVE

    def archive(self) -> data.Split:
        """Read the archive to pre-train with; rank 0 draws it unless it is there."""
        config, archive = self.config, self.folder / "archive"
        with self.comm.agree_or_raise():
            if isinstance(config.archive, str | os.PathLike):
                archive = Path(config.archive)
            elif self.comm.rank == 0:
                settings = self.archive_count(), config.size, config.data_seed
                if not archive.is_dir():
                    data.make_archive(archive, *settings)
                data.require_same_phantoms(archive, data.phantom_settings(*settings))
        with self.comm.agree_or_raise():
            return data.read_archive(archive)

    def pretraining(self, archive: data.Split) -> dict[str, Any]:
        """What `fit` needs to train on the archive; the checkpoint of every epoch is kept."""
        epochs = self.config.pretrain_epochs
        model = self.config.build(len(data.ARCHIVE_LABELS))
        schedule = pretraining_schedule(self.usual_rate, epochs)
        return self.fitted(model, archive, PRETRAINING, schedule, 1.0, epochs)

    def tuning(self, model: keras.Model, schedule: EpochSchedule) -> dict[str, Any]:
        """What `fit` needs to train on the 14 findings."""
        stage, head = STAGES[self.config.start], self.config.head_times
        return self.fitted(model, self.radiographs.train, stage, schedule, head)

    def rates_from(self, origin: nets.WeightsOrigin) -> tuple[float, float]:
        """The first and the highest rate of a fine-tuning from these weights."""
        if self.config.learning_rate is not None:
            return self.config.learning_rate, self.config.learning_rate
        if origin.rate is None:
            return self.usual_rate / 10, self.usual_rate
        highest = origin.rate * self.global_batch / (origin.global_batch or self.global_batch)
        return min(origin.rate, highest), highest

    def scores(self, model: keras.Model, part: data.Split) -> np.ndarray:
        """The logits of all radiographs of a part."""
        with self.comm.agree_or_raise():
            pipeline = data.pipeline_for(part.source, model, 1)
        return predict_logits(model, pipeline, self.comm, self.config.batch_per_rank)

    def fitted(
        self, model: keras.Model, part: data.Split, stage: str, schedule: EpochSchedule,
        head_times: float, keep: int = 2,
    ) -> dict[str, Any]:  # fmt: skip
        """The arguments of `fit`: momentum 0.9, resuming from a checkpoint of the same stage."""
        config = self.config
        with self.comm.agree_or_raise():
            augment = config.real and stage != PRETRAINING
            pipeline = data.pipeline_for(part.source, model, config.batch_per_rank, augment)
        facts = {
            "stage": stage, "schedule": schedule.config(), "net": model.name,
            "data": pipeline.fingerprint(), "dtype": config.dtype,
            "initial_weights": digest_of(model.weights), "head_times": config.head_times,
            "preprocessing": nets.preprocessing(model.name),
        }  # fmt: skip
        return {
            "model": model,
            "data": pipeline,
            "loss": partial(weighted_loss, weights=class_weights(part.labels)),
            "metrics": {"accuracy": label_accuracy},
            "epochs": round(schedule.epochs),
            "batch_per_rank": config.batch_per_rank,
            "learning_rate": schedule,
            "optimizer": partial(optimizer, head_times=head_times),
            "checkpoint": CheckpointConfig(folder=str(self.folder / stage), keep=keep, facts=facts),
            "comm": self.comm,
            "config": FitConfig(seed=config.seed, evaluate=False, label_check=not_binary),
            "on_result": self.on_result,
        }


def optimizer(learning_rate: Any, head_times: float = 1.0) -> keras.Optimizer:
    """Momentum 0.9 without weight decay; the last layer's rate is `head_times` as high."""
    from keras import ops

    from dlguide.training.optimizers import MomentumSGD

    class HeadRateSGD(MomentumSGD):
        def local_rate(self, gradient: Any, variable: Any) -> Any:
            mine = self._trainable_variables[self._get_variable_index(variable)]
            head = mine.path.split("/")[0] == nets.HEAD
            return ops.cast(head_times if head else 1.0, variable.dtype)

    made = MomentumSGD if head_times == 1 else HeadRateSGD
    return made(learning_rate, weight_decay=None)


def end_rates(schedule: EpochSchedule, steps_per_epoch: int) -> np.ndarray:
    """The learning rates of the last step of each epoch."""
    ends = steps_per_epoch * np.arange(1, round(schedule.epochs) + 1) - 1
    return np.array([float(schedule.to_steps(steps_per_epoch).rate(step)) for step in ends])


def pretraining_schedule(rate: float, epochs: int) -> EpochSchedule:
    """Gradual warmup over half an epoch, then `rate` for three quarters and a tenth of it.

    The rate changes at the end of an epoch; a single epoch has no decay.
    """
    warm = recipes.warmup("gradual", rate, 0.5, rate / 10)
    if epochs == 1:
        return warm.over(recipes.Constant(rate, 1))
    held = max(1, int(_HELD * epochs))
    return warm.over(recipes.StepDecay(rate, (held,), epochs))


def tuning_schedule(rate: float, epochs: int, first: float | None = None) -> EpochSchedule:
    """Gradual warmup from `first`, by default a tenth of `rate`, then linear decay to 0."""
    warm = recipes.warmup("gradual", rate, _WARMUP, rate / 10 if first is None else first)
    return warm.then(recipes.linear(rate, epochs - _WARMUP))


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


def predict_logits(
    model: keras.Model, pipeline: Pipeline, comm: Communicator, block: int
) -> np.ndarray:
    """The logits of all radiographs, shape (samples, labels); each rank computes its share."""
    block = max(1, min(block, pipeline.samples // comm.size))
    mine = pipeline.replace(batch_per_rank=block, shuffle=False, rank=comm.rank, ranks=comm.size)
    logits = np.zeros((pipeline.samples, model.outputs[0].shape[-1]))
    with comm.agree_or_raise(), mine.epoch() as batches:  # one rank's data may be damaged
        for part, (images, _) in zip(mine.steps(), batches, strict=True):
            if len(part.indices):
                logits[part.indices] = np.asarray(model(images, training=False))
    # each row was computed by one rank and is 0 on all others
    return np.sum([np.frombuffer(one).reshape(logits.shape)
                   for one in comm.allgather_bytes(logits.tobytes())], axis=0)  # fmt: skip


def step(
    batch_per_rank: int = 128, seed: int = 0, net: str | None = None, image: int | None = None,
    real: str | os.PathLike | None = None,
) -> TimedStep:  # fmt: skip
    """Return one step of the fine-tuning, for `usecases.speedup.measure`.

    The radiographs are in memory, because the input has its own measurements. With fewer than
    about 100 a rank, a step of the small net is so short that the exchange takes much of it.
    """
    net = net or (nets.REAL if _published(real) else nets.SMALL)
    size = nets.SIZES.get(net) if image is None else image
    shape = size, size, 3 if net in nets.LARGE else 1
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

    labels = np.eye(_ONE_POSITIVE_IN)[:, :1].repeat(len(FINDINGS), axis=1)
    loss = partial(weighted_loss, weights=class_weights(labels))
    spec = tf.TensorSpec([None, len(FINDINGS)], tf.int32, name="labels")
    model, metrics = nets.build(net, image, seed=seed), {"accuracy": label_accuracy}
    return classifier_worker(model, optimizer(1e-3), comm, loss, metrics, spec)
