"""Where a net learns to see before it learns the findings: an archive with coarse labels.

The guide pre-trains on ImageNet. A small net learns little of use for radiographs from pictures
of other things, so the default is a task nearer by: many radiographs of other patients, for
which an archive knows only which part of the chest is changed, and how the patient was lying.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from dlcourse.usecases.chest_xray import collection, fitting, net, phantoms, steps
from dlguide.collectives.communicator import Communicator
from dlguide.data import formats, input_pipeline
from dlguide.data.input_pipeline import Pipeline, Source
from dlguide.data.input_pipeline.pipeline import as_source
from dlguide.errors import DataError, MissingComponentError
from dlguide.files import new_folder
from dlguide.training import schedules
from dlguide.training.schedules import EpochSchedule

if TYPE_CHECKING:
    import keras

# What a coarse label gathers; the fifth says whether the patient lay (view AP).
PLACES = {
    "tissue of the lung": (
        *("Infiltration", "Pneumonia", "Consolidation", "Edema", "Fibrosis", "Atelectasis"),
    ),
    "something round": ("Mass", "Nodule"),
    "around the lung": ("Effusion", "Pleural_Thickening", "Pneumothorax"),
    "heart and diaphragm": ("Cardiomegaly", "Hernia", "Emphysema"),
}
COARSE = (*PLACES, "lying")
STAGE = "pretraining"
# Of 32 radiographs; more at once take it in proportion (Goyal et al.'s linear rule).
RATE, RATE_BATCH = 0.05, 32
# The part of the pre-training that goes on at the highest rate.
HELD = 0.75
# Decoded radiographs of a lesson stay in memory; published ones do not fit.
KEPT_NBYTES = 256_000_000
# Another archive's patients are not those of the case, whatever its seed.
_OTHER_PATIENTS = 1_000_003


def make_archive(folder: str | os.PathLike, count: int, size: int, seed: int) -> Path:
    """Make an archive of radiographs with coarse labels, packed in TFRecords."""
    made = phantoms.chest(count, size, seed + _OTHER_PATIENTS)
    about = collection.told(count, size, seed)
    with new_folder(folder) as partial, formats.create(partial / "train", "tfrecord") as writer:
        for one in made:
            writer.append(collection.as_sample(one, coarse(one)))
        (partial / collection.MADE).write_text(json.dumps(about) + "\n")
    return Path(folder)


def require_archive(folder: str | os.PathLike) -> np.ndarray:
    """Read the labels of an archive that must be there."""
    wanted = Path(folder) / "train" / collection.MANIFEST
    if not wanted.is_file():
        raise MissingComponentError(
            f"There is no archive to pre-train with at {folder}: looked for {wanted}. Make one "
            "with `pretraining.make_archive`, or give a count of phantoms as `archive`."
        )
    with formats.open(Path(folder) / "train") as records:
        labels = [one.labels for one in records]
    if {len(one) for one in labels} != {len(COARSE)}:
        raise DataError(
            f"{wanted.parent}: must have {len(COARSE)} labels a radiograph ({', '.join(COARSE)}), "
            f"has {len(labels[0])}. This is no archive to pre-train with."
        )
    return np.array(labels, np.int32)


def coarse(radiograph: phantoms.Radiograph) -> tuple[int, ...]:
    """Give the coarse labels of a radiograph."""
    places = [bool(set(found) & set(radiograph.findings)) for found in PLACES.values()]
    return *(int(one) for one in places), int(radiograph.view == "AP")


def pipeline_of(source: object, model: keras.Model, batch: int) -> Pipeline:
    """Build the pipeline that brings radiographs to what a net takes.

    Those that have the net's size already are only normalised; others are resized first. Where
    all decoded pixels fit into `KEPT_NBYTES`, each is read and decoded once.
    """
    rows, columns, channels = model.inputs[0].shape[1:]
    kind = model.name if model.name in net.NETS else net.SMALL
    found = as_source(source)
    height, width = _size(found)
    fits = (height, width) == (rows, columns)
    resize = () if fits else (input_pipeline.CentreCrop(rows, columns, max(rows, columns)),)
    small = fits and found.count * height * width * channels <= KEPT_NBYTES
    return input_pipeline.build(
        found, batch, channels=channels, augment=(*resize, net.normalised(kind)),
        cache="decoded" if small else "none",
    )  # fmt: skip


def _size(source: Source) -> tuple[int, int]:
    """Height and width of the first image, of its header alone."""
    data, _ = source.read(np.arange(1))
    try:
        width, height = Image.open(io.BytesIO(data[0])).size
    except OSError as error:
        raise source.damaged(0, f"is no image that can be read: {error}") from error
    return height, width


def schedule(
    rate: float, epochs: int, warmup: float = 0.5, start: float | None = None
) -> EpochSchedule:
    """Rise gradually to a rate, then fall in a straight line to 0."""
    first = rate / 10 if start is None else start
    rest = schedules.linear(rate, epochs - warmup)
    return schedules.warmup("gradual", rate, warmup, first).then(rest)


def stairs(rate: float, epochs: int) -> EpochSchedule:
    """Rise gradually to a rate, hold it for three quarters, and end with a tenth of it.

    The stair stands at the end of an epoch; a single epoch has none.
    """
    warm = schedules.warmup("gradual", rate, 0.5, rate / 10)
    if epochs == 1:
        return warm.over(schedules.Constant(rate, 1))
    held = max(1, int(HELD * epochs))
    return warm.over(schedules.StepDecay(rate, (held,), epochs))


def pretrain(
    model: keras.Model,
    archive: str | os.PathLike,
    epochs: int,
    batch: int,
    comm: Communicator,
    seed: int = 0,
    rate: float = RATE,
    checkpoint: str | None = None,
    report: Callable[..., None] | None = None,
) -> fitting.Fitted:
    """Train a net on an archive and keep the checkpoint of every epoch; all ranks must call."""
    with comm.agree_or_raise():
        labels = require_archive(archive)
        pipeline = pipeline_of(Path(archive) / "train", model, batch)
    highest = rate * batch * comm.size / RATE_BATCH
    about = {"net": model.name, "data": pipeline.fingerprint()}
    about["dtype"] = str(model.outputs[0].dtype)
    stage = fitting.Stage(
        STAGE, batch, stairs(highest, epochs), seed, about, checkpoint, keep_all=True
    )
    return fitting.fit_stage(model, pipeline, steps.balance(labels), stage, comm, report)
