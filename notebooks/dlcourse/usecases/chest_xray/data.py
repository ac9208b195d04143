"""The radiographs of the case: synthetic or published, packed in TFRecords, divided by patient.

A packed collection is a folder:

    train/ and test/    data sets of `dlguide.data.formats`, each radiograph a PNG with 14 labels
    patients.txt        "train 12" or "test 12" for each radiograph, in their order
    phantoms.json       how phantoms were made; published radiographs have none

Published radiographs can also be read as they were unpacked; then every epoch opens each file.
An archive for the pre-training is a folder with train/ alone, whose radiographs have the three
labels `ARCHIVE_LABELS`: view, sex and age, which any archive has, and no finding.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dlcourse.readers.image_files import decode_image
from dlcourse.synthetic import encoded, sample_rng
from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.chest_xray.model import normalisation
from dlcourse.usecases.chest_xray.phantoms import FINDINGS, SMALLEST
from dlguide.data import formats, input_pipeline
from dlguide.data.formats import Sample
from dlguide.data.input_pipeline import CentreCrop, FileSource, Flip, Pipeline, ResizedCrop, Source
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

# What is known of each radiograph of an archive. None says anything of a finding: in phantoms the
# findings are drawn independently of all three.
ARCHIVE_LABELS = ("lying", "female", "over 50")
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

    def of_patients(self, patients: np.ndarray) -> Split:
        """The radiographs of some patients."""
        return self.rows(np.flatnonzero(np.isin(self.patients, patients)))

    def rows(self, rows: np.ndarray) -> Split:
        """Some of the radiographs."""
        return Split(Subset(self.source, rows), self.labels[rows], self.patients[rows])

    def times(self, factor: float) -> Split:
        """So many times as many radiographs: the same ones, of further patients."""
        rows = np.arange(round(factor * len(self)))
        more = self.rows(rows % len(self))
        further = rows // len(self) * (1 + self.patients.max())
        return replace(more, patients=more.patients + further)


class Subset(Source):
    """Some samples of another source, counted from 0."""

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        self.source, self.rows = source, np.asarray(rows)
        self.name, self.count = source.name, len(self.rows)
        self.label_shape, self.encoded = source.label_shape, source.encoded

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        return self.source.read(self.rows[numbers], throttle)

    def damaged(self, number: int, what: str) -> Exception:
        return self.source.damaged(int(self.rows[number]), what)

    def checksum(self) -> int:
        return zlib.crc32(self.rows.astype(np.int64).tobytes(), self.source.checksum())

    def close(self) -> None:
        self.source.close()


class RadiographFiles(FileSource):
    """Image files; a JPEG is handed on as a grey PNG, because TensorFlow reads no CMYK as grey."""

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        found, labels = super().read(numbers, throttle)
        for at, (number, contents) in enumerate(zip(numbers.tolist(), found, strict=True)):
            if contents[:2] == b"\xff\xd8":
                pixels, _ = decode_image(contents, "L", self.paths[number])
                found[at] = encoded(pixels, "png")
        return found, labels


@dataclass(frozen=True)
class Collection:
    """Radiographs to train, to choose settings (validation) and to test with.

    No patient is in two of them. `validation` is None until `with_validation` makes one;
    `external` is the test of another collection. `files` says that each radiograph is a file.
    """

    name: str
    train: Split
    test: Split
    synthetic: bool = False
    files: bool = False
    validation: Split | None = None
    external: Split | None = None

    @property
    def parts(self) -> dict[str, Split]:
        """Those that are there, by name."""
        names = ("train", "test", "validation", "external")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def with_validation(self, share: float, seed: int) -> Collection:
        """Take a share of the training patients, drawn at random, for the validation."""
        patients = np.random.default_rng(seed).permutation(np.unique(self.train.patients))
        count = round(share * len(patients))
        if not count:
            return self
        return replace(self, train=self.train.of_patients(patients[count:]),
                       validation=self.train.of_patients(patients[:count]))  # fmt: skip

    def labelled(self, count: int, seed: int) -> Collection:
        """Keep the labels of `count` training radiographs only, of patients drawn at random."""
        must = f"be at most the {len(self.train)} radiographs to train with"
        require(count <= len(self.train), "labelled", must, count)
        patients = np.random.default_rng(seed).permutation(np.unique(self.train.patients))
        place = np.argsort(patients)[np.unique(self.train.patients, return_inverse=True)[1]]
        order = np.argsort(place, kind="stable")
        return replace(self, train=self.train.rows(np.sort(order[:count])))


def read(path: str | os.PathLike) -> Collection:
    """Open a packed collection, or ChestX-ray14 as it was unpacked.

    All labels are read and checked, no image yet.
    """
    base = Path(path)
    packed = [split for split in SPLITS if (base / split / MANIFEST).is_file()]
    if packed or (base / PATIENTS).is_file():
        return _packed(base)
    if (base / chestxray14.TABLE).is_file():
        return _unpacked(base)
    there = sorted(os.listdir(base))[:5] if base.is_dir() else None
    found = "no folder" if there is None else ", ".join(there) or "nothing"
    raise MissingComponentError(
        f"There are no chest X-rays at {base}. Looked for {base / chestxray14.TABLE} "
        f"(ChestX-ray14 as published) and for {base / 'train' / MANIFEST} (packed by "
        f"`chest_xray.pack`); found {found}. {chestxray14.ORIGIN} Give the folder that holds the "
        "table, or leave `real` out to work with synthetic radiographs, which need no download."
    )


def pack(real: str | os.PathLike, folder: str | os.PathLike, size: int | None = 256) -> Path:
    """Pack ChestX-ray14 into TFRecords once, so that no epoch opens 112 000 files again.

    The guide shrank to 250 pixels, the published sides have 1024; `size=None` keeps the files.
    Returns the folder, complete or not there at all.
    """
    if size is not None:
        require_count(size, "size", least=SMALLEST)
    samples = {split: chestxray14.read(real, split).samples() for split in SPLITS}
    if size is not None:
        samples = {split: map(partial(_shrunk, size=size), part) for split, part in samples.items()}
    return _write(folder, samples)


def make_phantoms(
    folder: str | os.PathLike,
    count: int,
    size: int,
    seed: int,
    rates: str = "even",
    shortcut: str | None = None,
    marked: float = 0.9,
) -> Path:
    """Make synthetic radiographs and pack them; every third patient is for the test.

    Args:
        folder: the new folder.
        count: of radiographs in all.
        size: length of the sides (pixels).
        seed: another one makes other patients.
        rates: "even", or "published" for each finding as often as in ChestX-ray14.
        shortcut: a finding that goes together with a hospital: its radiographs come from the
            hospital that lays a lead letter beside the patient with the probability `marked`,
            those without it with 1 - `marked`. 0.5 is no shortcut.
        marked: see `shortcut`.
    """
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for one in phantoms.chest(count, size, seed, rates):
        if shortcut is not None:
            chance = marked if shortcut in one.findings else 1 - marked
            if sample_rng(seed, "radiograph", one.index, 2).random() < chance:
                one = replace(one, pixels=phantoms.marked(one.pixels))
        split = "train" if one.patient % _TEST_ONE_IN else "test"
        splits[split].append(_sample(one, one.labels))
    must = "be enough for patients to train and to test with"
    require(all(splits.values()), "count", must, count)
    return _write(folder, splits, phantom_settings(count, size, seed, rates))


def make_archive(folder: str | os.PathLike, count: int, size: int, seed: int) -> Path:
    """Make an archive of synthetic radiographs of other patients, labelled `ARCHIVE_LABELS`."""
    drawn = phantoms.chest(count, size, seed + OTHER_PATIENTS)
    with new_folder(folder) as made, formats.create(made / "train", "tfrecord") as writer:
        for one in drawn:
            writer.append(_sample(one, (one.view == "AP", one.gender == "F", one.age > 50)))
        settings = phantom_settings(count, size, seed)
        (made / PHANTOMS).write_text(json.dumps(settings) + "\n")
    return Path(folder)


def archive_labels(folder: str | os.PathLike) -> np.ndarray:
    """Read the labels of an archive, int32 of shape (radiographs, 3); raise without one."""
    wanted = Path(folder) / "train" / MANIFEST
    if not wanted.is_file():
        raise MissingComponentError(
            f"There is no archive to pre-train with at {folder}: looked for {wanted}. Make one "
            "with `chest_xray.make_archive`, or give a count of phantoms as `archive`."
        )
    with formats.open(wanted.parent) as records:
        labels = [one.labels for one in records]
    if {len(one) for one in labels} != {len(ARCHIVE_LABELS)}:
        raise DataError(
            f"{wanted.parent}: must have {len(ARCHIVE_LABELS)} labels per radiograph "
            f"({', '.join(ARCHIVE_LABELS)}), has {len(labels[0])}. This is no archive to pre-train "
            "with."
        )
    return np.array(labels, np.int32)


def read_archive(folder: str | os.PathLike) -> Split:
    """Open an archive, whose patients are not known."""
    labels = archive_labels(folder)
    source = input_pipeline.FormatSource(Path(folder) / "train")
    return Split(source, labels, np.arange(len(labels)))


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


def pipeline_for(source: object, model: keras.Model, batch: int, augment: bool = False) -> Pipeline:
    """Build the pipeline that brings radiographs to the input of a net.

    Those that have the net's size already are only normalised; others are resized first. If all
    decoded pixels fit into memory, each radiograph is read and decoded once. `augment` crops 80 %
    of the area or more at random and mirrors half of the images, as CheXNet did the latter.
    """
    rows, columns, channels = model.inputs[0].shape[1:]
    found = as_source(source)
    height, width = _size(found)
    fits = (height, width) == (rows, columns)
    resize: tuple = () if fits else (CentreCrop(rows, columns, max(rows, columns)),)
    if augment:
        resize = ResizedCrop(rows, columns, area=(0.8, 1.0)), Flip()
    small = fits and found.count * height * width * channels <= _CACHE_NBYTES
    return Pipeline(
        found, batch, channels=channels, augment=(*resize, normalisation(model.name)),
        cache="decoded" if small else "none", threads=1 if small else len(os.sched_getaffinity(0)),
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


def _write(
    folder: str | os.PathLike, splits: dict[str, Iterable[Sample]],
    settings: dict[str, Any] | None = None,
) -> Path:  # fmt: skip
    with new_folder(folder) as made, (made / PATIENTS).open("w") as patients:
        for split, samples in splits.items():
            with formats.create(made / split, "tfrecord", _SHARD_SAMPLES) as writer:
                for sample in samples:
                    writer.append(sample)
                    patients.write(f"{split} {int(sample.key[:8])}\n")
        if settings is not None:
            (made / PHANTOMS).write_text(json.dumps(settings) + "\n")
    return Path(folder)


def _shrunk(sample: Sample, size: int) -> Sample:
    image = Image.fromarray(decode_image(sample.data, "L", sample.key)[0])
    pixels = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
    return Sample(encoded(pixels, "png"), sample.labels, sample.key)


def _packed(base: Path) -> Collection:
    for wanted in (base / "train" / MANIFEST, base / "test" / MANIFEST, base / PATIENTS):
        if not wanted.is_file():
            raise MissingComponentError(
                f"The packed chest X-rays at {base} are incomplete: looked for {wanted}, which is "
                "missing. Copy the folder again, or pack it anew with `chest_xray.pack`."
            )
    path = base / PATIENTS
    patients: dict[str, list[int]] = {split: [] for split in SPLITS}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        split, _, patient = line.partition(" ")
        if split not in SPLITS or not patient.isdigit():
            raise DataError(f"{path}, line {number}: must be like 'train 12', got {line!r}.")
        patients[split].append(int(patient))
    parts = {split: _packed_split(base, split, patients[split]) for split in SPLITS}
    both = set(patients["train"]) & set(patients["test"])
    if both:
        raise DataError(f"{path}: patient {min(both)} is in both splits.")
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


def _unpacked(base: Path) -> Collection:
    parts: dict[str, Any] = {}
    for split in SPLITS:
        listed = chestxray14.read(base, split)
        source = RadiographFiles(listed.items(), f"{base.name} ({split})")
        labels = np.array([labels for _, labels in listed.items()], np.int32)
        patients = np.array([row.patient for row in listed.rows], np.int64)
        parts[split] = Split(source, labels, patients)
    return Collection(base.name, **parts, files=True)
