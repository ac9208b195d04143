"""Data sets in five formats behind one interface: written whole, read verified.

    from dlguide.data import formats

    with formats.create("digits", "tfrecord", shard_samples=1000) as writer:
        writer.append(formats.Sample(png, labels=(7,), key="train/12.png"))
    with formats.open("digits") as dataset:
        print(len(dataset), dataset[0].label)
    print(formats.verify("digits"))
    formats.convert("digits", "digits-lmdb", "lmdb", progress=True)

A data set is a folder: data files in the form that other programs read too, `index.bin` (where
each sample stands, and its CRC-32C) and `manifest.json` (length and SHA-256 of every file).
"""

from __future__ import annotations

from dlguide.data.formats.converting import convert
from dlguide.data.formats.damage import Damage, DamageError, Report
from dlguide.data.formats.manifest import File, Manifest, read_manifest
from dlguide.data.formats.opening import KINDS, create
from dlguide.data.formats.opening import open_dataset as open
from dlguide.data.formats.plain import PlainRecords, open_plain
from dlguide.data.formats.reading import Dataset
from dlguide.data.formats.sample import (
    Fields,
    MalformedError,
    Sample,
    encode_features,
    features,
)
from dlguide.data.formats.verifying import verify, verify_plain
from dlguide.data.formats.writing import Writer

__all__ = [
    "KINDS",
    "Damage",
    "DamageError",
    "Dataset",
    "Fields",
    "File",
    "MalformedError",
    "Manifest",
    "PlainRecords",
    "Report",
    "Sample",
    "Writer",
    "convert",
    "create",
    "encode_features",
    "features",
    "open",
    "open_plain",
    "read_manifest",
    "verify",
    "verify_plain",
]
