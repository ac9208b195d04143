"""The radiographs of the case: synthetic or published, packed in TFRecords, divided by patient.

A packed collection is a folder:

    train/ and test/    data sets of `dlguide.data.formats`, each radiograph a PNG with 14 labels
    patients.txt        "train 12" or "test 12" for each radiograph, in their order
    phantoms.json       how phantoms were made; published radiographs have none

Published radiographs can also be read as they were unpacked; then every epoch opens each file.
An archive for the pre-training is a folder with train/ alone, whose radiographs have the five
labels `COARSE_LABELS`.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.chest_xray.model import NETS, SMALL, normalisation
from dlcourse.usecases.chest_xray.phantoms import FINDINGS, SMALLEST
from dlguide.data import formats, input_pipeline
from dlguide.data.formats import Sample
from dlguide.data.input_pipeline import Pipeline, Source
from dlguide.data.input_pipeline.sources import as_source
from dlguide.errors import DataError, MissingComponentError, require, require_count
from dlguide.files import new_folder

if TYPE_CHECKING:
    import keras

SPLITS = ("train", "test")
PATIENTS = "patients.txt"
PHANTOMS = "phantoms.json"
MANIFEST = "manifest.json"
# Every third synthetic patient is for the test: an area needs patients with and without a finding.
_TEST_ONE_IN = 3
_SHARD_SAMPLES = 2000

# An archive of many radiographs says only which part of the chest has changed: a task related to
# the 14 findings, from which a small net learns more than from pictures of other things.
COARSE_GROUPS = {
    "tissue of the lung": (
        *("Infiltration", "Pneumonia", "Consolidation", "Edema", "Fibrosis", "Atelectasis"),
    ),
    "something round": ("Mass", "Nodule"),
    "around the lung": ("Effusion", "Pleural_Thickening", "Pneumothorax"),
    "heart and diaphragm": ("Cardiomegaly", "Hernia", "Emphysema"),
}
# The fifth says whether the patient was lying (view AP).
COARSE_LABELS = (*COARSE_GROUPS, "lying")
# The patients of an archive are other ones than those of the case, with any seed.
OTHER_PATIENTS = 1_000_003

# The decoded radiographs of a lesson stay in memory; published ones do not fit.
_CACHE_NBYTES = 256_000_000


@dataclass(frozen=True)
class Split:
    """The radiographs to train with, or those to test with."""

    source: Source = field(repr=False)
    labels: np.ndarray = field(repr=False)
    patients: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Collection:
    """Radiographs to train and to test with; no patient is in both.

    Args:
        name: of the data set.
        train: to train with.
        test: to test with.
        synthetic: whether they are phantoms.
    """

    name: str
    train: Split
    test: Split
    synthetic: bool = False


def read(path: str | os.PathLike) -> Collection:
    """Open a packed collection, or ChestX-ray14 as it was unpacked.

    All labels are read and checked, no image yet.

    Args:
        path: folder of a packed collection, or the one that holds ChestX-ray14's table, lists
            and images.

    Raises:
        MissingComponentError: if neither is there, or a part of it is missing; the text lists
            the files it needs and what was found.
        DataError: if a label is unknown, a line is invalid, or a patient is in both splits;
            names file and line.
    """
    base = Path(path)
    packed = [split for split in SPLITS if (base / split / MANIFEST).is_file()]
    if packed or (base / PATIENTS).is_file():
        return _packed(base)
    if (base / chestxray14.TABLE).is_file():
        return _unpacked(base)
    there = sorted(os.listdir(base))[:5] if base.is_dir() else None
    found = "no folder" if there is None else f"{', '.join(there) or 'nothing'}"
    raise MissingComponentError(
        f"There are no chest X-rays at {base}. Looked for {base / chestxray14.TABLE} "
        f"(ChestX-ray14 as published) and for {base / 'train' / MANIFEST} (packed by "
        f"`chest_xray.pack`); found {found}. {chestxray14.ORIGIN} Give the folder that holds the "
        "table, or leave `real` out to work with synthetic radiographs, which need no download."
    )


def pack(real: str | os.PathLike, folder: str | os.PathLike, size: int | None = 256) -> Path:
    """Pack ChestX-ray14 into TFRecords once, so that no epoch opens 112 000 files again.

    Args:
        real: folder of the published table, lists and images.
        folder: the new folder.
        size: length of the sides that radiographs are shrunk to (pixels); the guide took 250,
            the published ones have 1024. None keeps the files as they are.

    Returns:
        pathlib.Path: the folder, complete or not there at all.

    Raises:
        MissingComponentError: if something is missing.
        DataError: if an image or a line is invalid; names it.
        ValueError: if the folder exists.
    """
    if size is not None:
        require_count(size, "size", least=SMALLEST)
    parts = {split: chestxray14.read(real, split) for split in SPLITS}
    samples = {split: part.samples() for split, part in parts.items()}
    return _write(folder, {
        split: samples[split] if size is None else (_shrunk(one, size) for one in samples[split])
        for split in SPLITS
    })  # fmt: skip


def make_phantoms(
    folder: str | os.PathLike, count: int, size: int, seed: int, rates: str = "even"
) -> Path:
    """Make synthetic radiographs and pack them; every third patient is for the test.

    Args:
        folder: the new folder.
        count: of radiographs in all.
        size: length of the sides (pixels).
        seed: 0 or more; another one makes other patients.
        rates: "even", or "published" for each finding as often as in ChestX-ray14.

    Returns:
        pathlib.Path: the folder.

    Raises:
        ValueError: if a number is out of range or the folder exists.
    """
    made = list(phantoms.chest(count, size, seed, rates))
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for one in made:
        split = "train" if one.patient % _TEST_ONE_IN else "test"
        splits[split].append(_sample(one, one.labels))
    must = "be enough for patients to train and to test with"
    require(all(splits.values()), "count", must, count)
    return _write(folder, splits, phantom_settings(count, size, seed, rates))


def make_archive(folder: str | os.PathLike, count: int, size: int, seed: int) -> Path:
    """Make an archive of synthetic radiographs with coarse labels, packed in TFRecords.

    Args:
        folder: the new folder.
        count: of radiographs.
        size: length of the sides (pixels).
        seed: 0 or more; with any seed the patients are other ones than those of `make_phantoms`.

    Returns:
        pathlib.Path: the folder.

    Raises:
        ValueError: if a number is out of range or the folder exists.
    """
    made = phantoms.chest(count, size, seed + OTHER_PATIENTS)
    with new_folder(folder) as partial, formats.create(partial / "train", "tfrecord") as writer:
        for one in made:
            writer.append(_sample(one, _coarse(one)))
        settings = phantom_settings(count, size, seed)
        (partial / PHANTOMS).write_text(json.dumps(settings) + "\n")
    return Path(folder)


def archive_labels(folder: str | os.PathLike) -> np.ndarray:
    """Read the coarse labels of an archive, int32 of shape (radiographs, 5); raise without one."""
    wanted = Path(folder) / "train" / MANIFEST
    if not wanted.is_file():
        raise MissingComponentError(
            f"There is no archive to pre-train with at {folder}: looked for {wanted}. Make one "
            "with `chest_xray.make_archive`, or give a count of phantoms as `archive`."
        )
    with formats.open(wanted.parent) as records:
        labels = [one.labels for one in records]
    if {len(one) for one in labels} != {len(COARSE_LABELS)}:
        raise DataError(
            f"{wanted.parent}: must have {len(COARSE_LABELS)} labels per radiograph "
            f"({', '.join(COARSE_LABELS)}), has {len(labels[0])}. This is no archive to pre-train "
            "with."
        )
    return np.array(labels, np.int32)


def phantom_settings(count: int, size: int, seed: int, rates: str = "even") -> dict[str, Any]:
    """The settings that phantoms are stored with."""
    return {"count": count, "size": size, "seed": seed, "rates": rates}


def require_same_phantoms(folder: str | os.PathLike, settings: dict[str, Any]) -> None:
    """Refuse phantoms that were made with other settings."""
    path = Path(folder) / PHANTOMS
    if not path.is_file():
        raise MissingComponentError(
            f"{path} is missing, so it is not known how the phantoms beside it were made. Use "
            "another checkpoint folder, or delete this one to make them anew."
        )
    there = json.loads(path.read_text())
    for name, value in settings.items():
        must = f"be {there.get(name)!r}, with which the phantoms at {folder} were made"
        then = "Use another checkpoint folder, or delete this one to make others."
        require(there.get(name) == value, name, must, value, then)


def pipeline_for(source: object, model: keras.Model, batch: int) -> Pipeline:
    """Build the pipeline that brings radiographs to the input of a net.

    Those that have the net's size already are only normalised; others are resized first. If all
    decoded pixels fit into memory, each radiograph is read and decoded once.
    """
    rows, columns, channels = model.inputs[0].shape[1:]
    net = model.name if model.name in NETS else SMALL
    found = as_source(source)
    height, width = _size(found)
    fits = (height, width) == (rows, columns)
    resize = () if fits else (input_pipeline.CentreCrop(rows, columns, max(rows, columns)),)
    small = fits and found.count * height * width * channels <= _CACHE_NBYTES
    return input_pipeline.Pipeline(
        found, batch, channels=channels, augment=(*resize, normalisation(net)),
        cache="decoded" if small else "none",
    )  # fmt: skip


def _size(source: Source) -> tuple[int, int]:
    """Height and width of the first image, from its header alone."""
    data, _ = source.read(np.arange(1))
    try:
        width, height = Image.open(io.BytesIO(data[0])).size
    except OSError as error:
        raise source.damaged(0, f"is no image that can be read: {error}") from error
    return height, width


def _sample(radiograph: phantoms.Radiograph, labels: Iterable[float]) -> Sample:
    return Sample(radiograph.encoded(), tuple(int(one) for one in labels), radiograph.name)


def _coarse(radiograph: phantoms.Radiograph) -> tuple[int, ...]:
    groups = [bool(set(group) & set(radiograph.findings)) for group in COARSE_GROUPS.values()]
    return *(int(one) for one in groups), int(radiograph.view == "AP")


def _write(
    folder: str | os.PathLike,
    splits: dict[str, Iterable[Sample]],
    settings: dict[str, Any] | None = None,
) -> Path:
    with new_folder(folder) as partial, (partial / PATIENTS).open("w") as patients:
        for split, samples in splits.items():
            with formats.create(partial / split, "tfrecord", _SHARD_SAMPLES) as writer:
                for sample in samples:
                    writer.append(sample)
                    patients.write(f"{split} {int(sample.key[:8])}\n")
        if settings is not None:
            (partial / PHANTOMS).write_text(json.dumps(settings) + "\n")
    return Path(folder)


def _shrunk(sample: Sample, size: int) -> Sample:
    image = Image.open(io.BytesIO(sample.data)).convert("L")
    file = io.BytesIO()
    image.resize((size, size), Image.Resampling.LANCZOS).save(file, "png")
    return Sample(file.getvalue(), sample.labels, sample.key)


def _packed(base: Path) -> Collection:
    for wanted in (base / "train" / MANIFEST, base / "test" / MANIFEST, base / PATIENTS):
        if not wanted.is_file():
            raise MissingComponentError(
                f"The packed chest X-rays at {base} are incomplete: looked for {wanted}, which is "
                "missing. Copy the folder again, or pack it anew with `chest_xray.pack`."
            )
    patients = _patients(base / PATIENTS)
    parts = {split: _packed_split(base, split, patients[split]) for split in SPLITS}
    both = set(patients["train"]) & set(patients["test"])
    if both:
        raise DataError(f"{base / PATIENTS}: patient {min(both)} is in both splits.")
    return Collection(base.name, **parts, synthetic=(base / PHANTOMS).is_file())


def _packed_split(base: Path, split: str, patients: list[int]) -> Split:
    source = input_pipeline.FormatSource(base / split)
    with formats.open(base / split) as records:
        labels = np.array([one.labels for one in records], np.int32)
    if labels.shape != (len(labels), len(FINDINGS)) or not np.isin(labels, (0, 1)).all():
        raise DataError(
            f"{base / split}: the labels have shape {labels.shape[1:]} and values up to "
            f"{labels.max(initial=0)}; must be {len(FINDINGS)} zeros and ones. This is another "
            "data set."
        )
    if len(patients) != len(labels):
        raise DataError(
            f"{base / PATIENTS}: {len(patients)} lines of {split}, but {base / split} holds "
            f"{len(labels)} radiographs."
        )
    return Split(source, labels, np.array(patients, np.int64))


def _patients(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        split, _, patient = line.partition(" ")
        if split not in SPLITS or not patient.isdigit():
            raise DataError(f"{path}, line {number}: must be like 'train 12', got {line!r}.")
        found[split].append(int(patient))
    return found


def _unpacked(base: Path) -> Collection:
    parts: dict[str, Any] = {}
    for split in SPLITS:
        listed = chestxray14.read(base, split)
        source = input_pipeline.FileSource(listed.items(), f"{base.name} ({split})")
        labels = np.array([labels for _, labels in listed.items()], np.int32)
        patients = np.array([row.patient for row in listed.rows], np.int64)
        parts[split] = Split(source, labels, patients)
    return Collection(base.name, **parts)
