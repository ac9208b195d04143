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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from dlcourse.readers.image_files import decode_image
from dlcourse.synthetic import encoded, sample_rng
from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.chest_xray.model import normalisation
from dlguide.data import formats
from dlguide.data.formats import Sample
from dlguide.data.input_pipeline import (
    CentreCrop,
    FileSource,
    Flip,
    FormatSource,
    Pipeline,
    ResizedCrop,
    Source,
)
from dlguide.errors import MissingComponentError, require
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


class Split(Source):
    """The radiographs to train with, or those to test with: some rows of a source."""

    def __init__(
        self, source: Source, labels: np.ndarray, patients: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.source, self.labels, self.patients = source, labels, patients
        self.numbers = np.arange(len(labels)) if rows is None else rows
        self.name, self.count = source.name, len(labels)
        self.label_shape, self.encoded = source.label_shape, source.encoded

    def __len__(self) -> int:
        return self.count

    def of_patients(self, patients: np.ndarray) -> Split:
        """The radiographs of some patients."""
        return self.rows(np.flatnonzero(np.isin(self.patients, patients)))

    def rows(self, rows: np.ndarray) -> Split:
        """Some of the radiographs."""
        return Split(self.source, self.labels[rows], self.patients[rows], self.numbers[rows])

    def read(self, numbers: np.ndarray, throttle: Any = None) -> tuple[Any, np.ndarray]:
        return self.source.read(self.numbers[numbers], throttle)

    def damaged(self, number: int, what: str) -> Exception:
        return self.source.damaged(int(self.numbers[number]), what)

    def checksum(self) -> int:
        return zlib.crc32(self.numbers.astype(np.int64).tobytes(), self.source.checksum())

    def close(self) -> None:
        self.source.close()


@dataclass(frozen=True)
class Collection:
    """Radiographs to train, to choose settings (validation) and to test with.

    No patient is in two of them. `validation` is None until `with_validation` makes one;
    `external` is the test of another collection.
    """

    name: str
    train: Split
    test: Split
    synthetic: bool = False
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


def read(folder: str | os.PathLike) -> Collection:
    """Open a packed collection, or ChestX-ray14 as it was unpacked.

    All labels are read and checked, no image yet.
    """
    base, splits = Path(folder), {}
    if (base / chestxray14.TABLE).is_file():
        for split in SPLITS:
            rows = chestxray14.read(base, split).rows
            source = FileSource([(row.path, row.labels) for row in rows], f"{base.name} ({split})")
            labels, patients = [row.labels for row in rows], [row.patient for row in rows]
            splits[split] = Split(source, np.array(labels, np.int32), np.array(patients))
        return Collection(base.name, **splits)
    if not (base / PATIENTS).is_file():
        raise MissingComponentError(
            f"There are no chest X-rays at {base}. Looked for {base / chestxray14.TABLE} "
            f"(ChestX-ray14 as published) and for {base / PATIENTS} (packed by `chest_xray.pack` "
            f"or `make_phantoms`). {chestxray14.ORIGIN}"
        )
    lines = [line.split() for line in (base / PATIENTS).read_text().splitlines()]
    for split in SPLITS:
        patients = np.array([int(patient) for name, patient in lines if name == split])
        splits[split] = Split(FormatSource(base / split), _labels(base / split), patients)
    return Collection(base.name, **splits, synthetic=(base / PHANTOMS).is_file())


def read_archive(folder: str | os.PathLike) -> Split:
    """Open an archive, whose patients are not known."""
    labels = _labels(Path(folder) / "train")
    return Split(FormatSource(Path(folder) / "train"), labels, np.arange(len(labels)))


def _labels(folder: Path) -> np.ndarray:
    with formats.open(folder) as records:
        return np.array([one.labels for one in records], np.int32)


def pack(real: str | os.PathLike, folder: str | os.PathLike, size: int = 256) -> Path:
    """Pack ChestX-ray14 into TFRecords once, so that no epoch opens 112 000 files again.

    The guide shrank to 250 pixels, the published sides have 1024. Returns the folder, complete or
    not there at all.
    """

    def shrunk(sample: Sample) -> Sample:
        image = Image.fromarray(decode_image(sample.data, "L", sample.key)[0])
        pixels = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
        return Sample(encoded(pixels, "png"), sample.labels, sample.key)

    return _write(folder, {split: map(shrunk, chestxray14.read(real, split).samples())
                           for split in SPLITS})  # fmt: skip


def make_phantoms(
    folder: str | os.PathLike,
    count: int,
    size: int,
    seed: int,
    shortcut: str | None = None,
    marked: float = 0.9,
) -> Path:
    """Make synthetic radiographs and pack them; every third patient is for the test.

    Args:
        folder: the new folder.
        count: of radiographs in all.
        size: length of the sides (pixels).
        seed: another one makes other patients.
        shortcut: a finding that goes together with a hospital: its radiographs come from the
            hospital that lays a lead letter beside the patient with the probability `marked`,
            those without it with 1 - `marked`. 0.5 is no shortcut.
        marked: see `shortcut`.
    """
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for one in phantoms.chest(count, size, seed):
        if shortcut is not None:
            chance = marked if shortcut in one.findings else 1 - marked
            if sample_rng(seed, "radiograph", one.index, 2).random() < chance:
                one = replace(one, pixels=phantoms.marked(one.pixels))
        split = "train" if one.patient % _TEST_ONE_IN else "test"
        splits[split].append(_sample(one, one.labels))
    return _write(folder, splits, {"count": count, "size": size, "seed": seed})


def make_archive(folder: str | os.PathLike, count: int, size: int, seed: int) -> Path:
    """Make an archive of synthetic radiographs of other patients, labelled `ARCHIVE_LABELS`."""
    drawn = phantoms.chest(count, size, seed + OTHER_PATIENTS)
    with new_folder(folder) as made, formats.create(made / "train", "tfrecord") as writer:
        for one in drawn:
            writer.append(_sample(one, (one.view == "AP", one.gender == "F", one.age > 50)))
    return Path(folder)


def pipeline_for(source: Source, model: keras.Model, batch: int, augment: bool = False) -> Pipeline:
    """Build the pipeline that brings radiographs to the input of a net.

    Those that have the net's size already are only normalised; others are resized first. If all
    decoded pixels fit into memory, each radiograph is read and decoded once. `augment` crops 80 %
    of the area or more at random and mirrors half of the images, as CheXNet did the latter.
    """
    rows, columns, channels = model.inputs[0].shape[1:]
    fits = _size(source) == (rows, columns)
    resize: tuple = () if fits else (CentreCrop(rows, columns, max(rows, columns)),)
    if augment:
        resize = ResizedCrop(rows, columns, area=(0.8, 1.0)), Flip()
    small = fits and source.count * rows * columns * channels <= _CACHE_NBYTES
    return Pipeline(
        source, batch, channels=channels, augment=(*resize, normalisation(model.name)),
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
