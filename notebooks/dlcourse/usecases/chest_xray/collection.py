"""The radiographs of the case: made or published, packed in TFRecords, divided by patient.

A packed collection is a folder:

    train/ and test/    data sets of `dlguide.data.formats`, each radiograph a PNG with 14 labels
    patients.txt        "train 12" or "test 12" for each radiograph, in their order
    made.json           how phantoms were made; published radiographs have none

Published radiographs can also be read as they were unpacked; then every epoch opens each file.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dlcourse.usecases.chest_xray import chestxray14, phantoms
from dlcourse.usecases.chest_xray.phantoms import FINDINGS, SMALLEST
from dlguide.data import formats, input_pipeline
from dlguide.data.formats import Sample
from dlguide.data.input_pipeline import Source
from dlguide.errors import DataError, MissingComponentError, require, require_count
from dlguide.files import new_folder

SPLITS = ("train", "test")
PATIENTS = "patients.txt"
MADE = "made.json"
MANIFEST = "manifest.json"
# Made radiographs: every third patient is for the test, for an area needs both kinds of patients.
_TEST_ONE_IN = 3
_SHARD_SAMPLES = 2000


@dataclass(frozen=True)
class Part:
    """The radiographs of one split."""

    source: Source = field(repr=False)
    labels: np.ndarray = field(repr=False)
    patients: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Collection:
    """Radiographs to train and to test with; no patient is in both.

    Args:
        name: where they come from.
        train: to train with.
        test: to test with.
        made: whether they are phantoms.
    """

    name: str
    train: Part
    test: Part
    made: bool = False


def read(path: str | os.PathLike) -> Collection:
    """Open a packed collection, or ChestX-ray14 as it was unpacked.

    All labels are read and checked, no image yet.

    Args:
        path: folder of a packed collection, or the one that holds ChestX-ray14's table, lists
            and images.

    Returns:
        Collection: ready for pipelines.

    Raises:
        MissingComponentError: when neither is there, or a part of it is not; the text says what
            was looked for, where, and what was found.
        DataError: when a label is unknown, a line is not as it must be, or a patient stands in
            both splits; names file and line.
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
        "table, or leave `real` out to work with made radiographs, which need no download."
    )


def pack(real: str | os.PathLike, folder: str | os.PathLike, size: int | None = 256) -> Path:
    """Pack ChestX-ray14 into TFRecords once, so that no epoch opens 112 000 files again.

    Args:
        real: folder of the published table, lists and images.
        folder: the new folder.
        size: length of the sides that radiographs are shrunk to (pixels); the guide took 250,
            the published ones have 1024. None keeps the files as they are.

    Returns:
        pathlib.Path: the folder, which stands there whole or not at all.

    Raises:
        MissingComponentError: when something is missing.
        DataError: when an image or a line is not as it must be; names it.
        ValueError: when the folder exists.
    """
    if size is not None:
        require_count(size, "size", least=SMALLEST)
    parts = {split: chestxray14.read(real, split) for split in SPLITS}
    samples = {split: part.samples() for split, part in parts.items()}
    return _write(folder, {
        split: samples[split] if size is None else (_shrunk(one, size) for one in samples[split])
        for split in SPLITS
    })  # fmt: skip


def make(folder: str | os.PathLike, count: int, size: int, seed: int, rates: str = "even") -> Path:
    """Make radiographs of phantoms and pack them; every third patient is for the test.

    Args:
        folder: the new folder.
        count: radiographs in all (count).
        size: length of the sides (pixels).
        seed: 0 or more; another one makes other patients.
        rates: "even", or "published" for each finding as often as in ChestX-ray14.

    Returns:
        pathlib.Path: the folder.

    Raises:
        ValueError: when a number is out of range or the folder exists.
    """
    made = list(phantoms.chest(count, size, seed, rates))
    splits: dict[str, list[Sample]] = {split: [] for split in SPLITS}
    for one in made:
        split = "train" if one.patient % _TEST_ONE_IN else "test"
        splits[split].append(as_sample(one, one.labels))
    must = "be enough for patients to train and to test with"
    require(all(splits.values()), "count", must, count)
    return _write(folder, splits, told(count, size, seed, rates))


def told(count: int, size: int, seed: int, rates: str = "even") -> dict[str, Any]:
    """Describe how phantoms are made, as it stands beside them."""
    return {"count": count, "size": size, "seed": seed, "rates": rates}


def require_made(folder: str | os.PathLike, asked: dict[str, Any]) -> None:
    """Refuse phantoms that were made otherwise than is asked for now."""
    path = Path(folder) / MADE
    if not path.is_file():
        raise MissingComponentError(
            f"{path} is missing, so nobody knows how the phantoms beside it were made. Use another "
            "checkpoint folder, or delete this one to make them anew."
        )
    there = json.loads(path.read_text())
    for name, value in asked.items():
        must = f"be {there.get(name)!r}, with which the phantoms at {folder} were made"
        then = "Use another checkpoint folder, or delete this one to make others."
        require(there.get(name) == value, name, must, value, then)


def as_sample(radiograph: phantoms.Radiograph, labels: Iterable[float]) -> Sample:
    """Encode a radiograph for a record."""
    return Sample(radiograph.encoded(), tuple(int(one) for one in labels), radiograph.name)


def _write(
    folder: str | os.PathLike,
    splits: dict[str, Iterable[Sample]],
    made: dict[str, Any] | None = None,
) -> Path:
    with new_folder(folder) as partial, (partial / PATIENTS).open("w") as patients:
        for split, samples in splits.items():
            with formats.create(partial / split, "tfrecord", _SHARD_SAMPLES) as writer:
                for sample in samples:
                    writer.append(sample)
                    patients.write(f"{split} {int(sample.key[:8])}\n")
        if made is not None:
            (partial / MADE).write_text(json.dumps(made) + "\n")
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
                f"The packed chest X-rays at {base} are not whole: looked for {wanted}, which is "
                "missing. Copy the folder again, or pack it anew with `chest_xray.pack`."
            )
    patients = _patients(base / PATIENTS)
    parts = {split: _packed_part(base, split, patients[split]) for split in SPLITS}
    both = set(patients["train"]) & set(patients["test"])
    if both:
        raise DataError(f"{base / PATIENTS}: patient {min(both)} stands in both splits.")
    return Collection(base.name, **parts, made=(base / MADE).is_file())


def _packed_part(base: Path, split: str, patients: list[int]) -> Part:
    source = input_pipeline.FormatSource(base / split)
    labels = np.array([one.labels for one in _samples(base / split)], np.int32)
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
    return Part(source, labels, np.array(patients, np.int64))


def _samples(folder: Path) -> Iterator[Sample]:
    with formats.open(folder) as dataset:
        yield from dataset


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
        parts[split] = Part(source, labels, patients)
    return Collection(base.name, **parts)
