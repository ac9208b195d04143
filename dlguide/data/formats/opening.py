"""Opening and creating data sets: one door for all formats."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.folder import FolderDataset, FolderWriter
from dlguide.data.formats.framed import FramedDataset, FramedWriter
from dlguide.data.formats.hdf5_file import Hdf5Dataset, Hdf5Writer
from dlguide.data.formats.lmdb_file import LmdbDataset, LmdbWriter
from dlguide.data.formats.manifest import NAME, read_manifest
from dlguide.data.formats.reading import Dataset
from dlguide.data.formats.writing import Writer, require_shards
from dlguide.errors import require, require_known

_WRITERS = {
    "folder": FolderWriter,
    "tfrecord": partial(FramedWriter, kind="tfrecord"),
    "recordio": partial(FramedWriter, kind="recordio"),
    "lmdb": LmdbWriter,
    "hdf5": Hdf5Writer,
}
_READERS = {
    "folder": FolderDataset,
    "tfrecord": FramedDataset,
    "recordio": FramedDataset,
    "lmdb": LmdbDataset,
    "hdf5": Hdf5Dataset,
}
KINDS = tuple(_WRITERS)


def create(path: str | os.PathLike, kind: str, shard_samples: int | None = None) -> Writer:
    """Begin a new data set: use it in a `with` and append samples.

    Until the `with` has ended well nothing stands under the path.

    Args:
        path: folder to write; it must not exist yet, the folder around it must.
        kind: one of "folder", "tfrecord", "lmdb", "hdf5", "recordio".
        shard_samples: begin a new file after so many samples (tfrecord and recordio only);
            None writes one file.

    Returns:
        Writer: with `append` and `count`.

    Raises:
        ValueError: when an argument is out of range, something stands at `path`, or another
            writer is at work on it.
    """
    require_known(kind, KINDS, "kind")
    shard_samples = require_shards(shard_samples, kind)
    # Links in the folders above are followed; the last name is ours and may be none.
    return _WRITERS[kind](_absolute(path), shard_samples)


def open_dataset(path: str | os.PathLike) -> Dataset:
    """Open a data set that was written here; `formats.open` is this.

    Before anything is read: the manifest fits its own checksum, the index fits the manifest,
    and files have their length. So nothing is mapped that is shorter than it should be.
    """
    folder = _absolute(path)
    manifest = read_manifest(folder)
    if manifest.kind not in _READERS:
        what = f"names the format {manifest.kind!r}; known are {', '.join(KINDS)}"
        raise DamageError(Damage(str(folder / NAME), what))
    return _READERS[manifest.kind](folder, manifest)


def _absolute(path: Any) -> Path:
    text = isinstance(path, str | os.PathLike) and "\0" not in os.fspath(path)
    require(text, "path", "be the name of a folder", path)
    found = Path(os.path.abspath(path))
    require(found.name != "", "path", "have a name", str(path))
    return found
