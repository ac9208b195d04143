"""The whole case on all ranks: pre-train, choose a checkpoint, fine-tune, judge."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray import auroc, collection, fitting, steps
from dlcourse.usecases.chest_xray import net as nets
from dlcourse.usecases.chest_xray import pretraining as before
from dlcourse.usecases.chest_xray import weights as given
from dlcourse.usecases.chest_xray.outcome import Outcome
from dlcourse.usecases.chest_xray.phantoms import FINDINGS
from dlcourse.usecases.chest_xray.setting import Setting, require_start
from dlguide.collectives.communicator import Communicator
from dlguide.errors import require
from dlguide.training import devices
from dlguide.training.devices import connect

if TYPE_CHECKING:
    import keras

STAGES = {"chosen": "tuning", "last": "tuning-last", "early": "tuning-early", "none": "scratch"}


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
    rate: float | None = None,
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
        seed: of the first weights and of the order.
        checkpoint: folder for made data and checkpoints, which all ranks see, and which is gone
            on from; None for a temporary one.
        report: as in `training.fit`.
        parallel: as in `training.fit`.
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
        rate: highest rate of the global batch in the fine-tuning; None for the checkpoint's,
            or where there is none, for `pretraining.RATE` in proportion to the batch.
        dtype: "float32" or "float64".
        device: "auto", "cpu" or "gpu".
        radiographs: made phantoms with the 14 findings, those of the test included (count).
        archive: phantoms to make for the pre-training (count), or a folder that
            `pretraining.make_archive` wrote.
        rates: of the findings in phantoms: "even", or "published" as in ChestX-ray14.
        data_seed: of the phantoms.

    Returns:
        Outcome: as this rank saw it.

    Raises:
        ValueError: when an argument is out of range; on all ranks, before any work.
        MissingComponentError: when data, weights or device are not there; on all ranks.
        DataError: when the data are not as they must be; names file and line; on all ranks.
        CheckpointError: when a checkpoint is damaged or another training's, or the weights are
            another net's.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.4.
    """
    comm = connect(parallel)
    own = (net, image, batch_per_rank, epochs, pretrain_epochs, warmup, start, rate, dtype, device)
    asked = {"real": _text(real), "weights": _text(weights), "seed": seed, "compare": compare}
    with comm.agree_or_raise(asked | {"own": [*own, radiographs, str(archive), rates, data_seed]}):
        setting = Setting(seed, *own, radiographs, archive, rates, data_seed)
        require_start(setting.start, weights)
    place = devices.choose(setting.device, comm)
    import tensorflow as tf

    with _folder(checkpoint, comm) as folder, tf.device(devices.require_device(place.device)):
        data = _data(real, setting, folder, comm)
        return _Course(setting, data, folder, comm, report).run(weights, compare)


class _Course:
    """The stages of one call of `train`, in their order."""

    def __init__(
        self,
        setting: Setting,
        data: collection.Collection,
        folder: str,
        comm: Communicator,
        report: Callable[..., None] | None,
    ) -> None:
        self.setting, self.data, self.folder = setting, data, folder
        self.comm, self.report = comm, report

    @property
    def global_batch(self) -> int:
        return self.setting.batch_per_rank * self.comm.size

    @property
    def plain_rate(self) -> float:
        """The highest rate of a training from scratch."""
        usual = before.RATE * self.global_batch / before.RATE_BATCH
        return usual if self.setting.rate is None else self.setting.rate

    def run(self, weights: str | os.PathLike | None, compare: bool | None) -> Outcome:
        setting, origin, pretrained = self.setting, None, None
        model = setting.build(len(FINDINGS))
        highest, first, plain_rate = self.plain_rate, None, None
        if setting.start != "none":
            if weights is None:
                pretrained = self.pretrain()
                stage = fitting.folder_of(self.folder, before.STAGE)
                weights = self.agreed(lambda: given.choose(str(stage), setting.start))
            origin = self.agreed(lambda: given.transfer(model, weights))
            first, highest = self.rates_from(origin, highest)
        tuned, scores = self.tune(model, STAGES[setting.start], highest, first)
        rate = highest if first is None else first
        labels, patients = self.data.test.labels, self.data.test.patients
        areas = auroc.areas(labels, scores, patients, FINDINGS)
        scratch, gains = None, None
        if (self.data.made if compare is None else compare) and origin is not None:
            plain_rate = self.plain_rate
            _, plain = self.tune(setting.build(len(FINDINGS)), STAGES["none"], plain_rate, None)
            scratch = auroc.areas(labels, plain, patients, FINDINGS)
            gains = auroc.differences(labels, scores, plain, patients, FINDINGS)
        parts = self.data.train, self.data.test
        return Outcome(
            self.comm.rank, self.comm.size, setting.net, self.data.name, self.data.made,
            self.global_batch, setting.seed,
            sum(int(np.prod(one.shape, dtype=int)) for one in model.trainable_weights),
            tuple(len(one) for one in parts),
            tuple(len(np.unique(one.patients)) for one in parts),
            origin, rate, plain_rate, pretrained, tuned, areas, scratch, gains, labels, scores,
        )  # fmt: skip

    def pretrain(self) -> fitting.Fitted:
        setting, comm = self.setting, self.comm
        archive = Path(self.folder) / "archive"
        with comm.agree_or_raise():
            if isinstance(setting.archive, str | os.PathLike):
                archive = Path(setting.archive)
            elif comm.rank == 0:
                asked = setting.archive, setting.size, setting.data_seed
                if not archive.is_dir():
                    before.make_archive(archive, *asked)
                collection.require_made(archive, collection.told(*asked))
        with comm.agree_or_raise():
            model = setting.build(len(before.COARSE))
        stage = fitting.folder_of(self.folder, before.STAGE)
        return before.pretrain(
            model, archive, setting.pretrain_epochs, setting.batch_per_rank, comm, setting.seed,
            checkpoint=stage, report=self.report,
        )  # fmt: skip

    def rates_from(self, origin: given.Origin, highest: float) -> tuple[float, float]:
        """Give the first and the highest rate of a fine-tuning from weights of that origin."""
        if self.setting.rate is not None:
            return self.setting.rate, self.setting.rate
        if origin.rate is None:
            return highest / 10, highest
        grown = self.global_batch / (origin.global_batch or self.global_batch)
        return min(origin.rate, origin.rate * grown), origin.rate * grown

    def tune(
        self, model: keras.Model, stage: str, highest: float, first: float | None
    ) -> tuple[fitting.Fitted, np.ndarray]:
        setting = self.setting
        pipeline, test = self.agreed(
            lambda: [
                before.pipeline_of(part.source, model, batch)
                for part, batch in ((self.data.train, setting.batch_per_rank), (self.data.test, 1))
            ]
        )
        about = {"net": setting.net, "data": pipeline.fingerprint()}
        about |= {"dtype": setting.dtype, "first_weights": fitting.digest_of(model)}
        schedule = before.schedule(highest, setting.epochs, setting.warmup, first)
        folder = fitting.folder_of(self.folder, stage)
        asked = fitting.Stage(stage, setting.batch_per_rank, schedule, setting.seed, about, folder)
        balance = steps.balance(self.data.train.labels)
        tuned = fitting.fit_stage(model, pipeline, balance, asked, self.comm, self.report)
        return tuned, fitting.infer(model, test, self.comm)

    def agreed(self, made: Callable[[], Any]) -> Any:
        """Do on every rank what may fail, and fail together."""
        with self.comm.agree_or_raise():
            return made()


def _data(
    real: str | os.PathLike | None, setting: Setting, folder: str, comm: Communicator
) -> collection.Collection:
    path = Path(folder) / "radiographs" if real is None else Path(real)
    with comm.agree_or_raise():
        if real is None and comm.rank == 0:
            asked = setting.radiographs, setting.size, setting.data_seed, setting.rates
            if not path.is_dir():
                collection.make(path, *asked)
            collection.require_made(path, collection.told(*asked))
    with comm.agree_or_raise():
        return collection.read(path)


@contextmanager
def _folder(checkpoint: str | os.PathLike | None, comm: Communicator) -> Iterator[str]:
    """Give the folder of the checkpoints, or a temporary one that all ranks share."""
    if checkpoint is not None:
        yield os.fspath(checkpoint)
        return
    mine = ""
    with comm.agree_or_raise():
        if comm.rank == 0:
            mine = tempfile.mkdtemp(prefix="dlguide-chest-")
    folder = comm.allgather(mine)[0]
    try:
        with comm.agree_or_raise():
            must = (
                f"be a folder that all ranks see; rank {comm.rank} does not see rank 0's {folder}"
            )
            then = "Name one on a shared disk."
            require(Path(folder).is_dir(), "checkpoint", must, checkpoint, then)
        yield folder
    finally:
        # ranks fail together, so nobody still reads
        if comm.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _text(path: str | os.PathLike | None) -> str | None:
    return None if path is None else os.fspath(path)
