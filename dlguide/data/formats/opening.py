"""Opening, creating and converting data sets of all formats."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import Any

from dlguide.data.formats.dataset import (
    NAME,
    Damage,
    DamageError,
    Manifest,
    StoredDataset,
    read_manifest,
)
from dlguide.data.formats.folder_format import FolderDataset, FolderWriter
from dlguide.data.formats.hdf5_format import Hdf5Dataset, Hdf5Writer
from dlguide.data.formats.lmdb_format import LmdbDataset, LmdbWriter
from dlguide.data.formats.records import FRAMINGS, FramedDataset, FramedWriter, PlainRecords
from dlguide.data.formats.writer import DatasetWriter
from dlguide.data.progress import Progress, reporting
from dlguide.errors import require, require_count, require_known

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


def create(path: str | os.PathLike, kind: str, shard_samples: int | None = None) -> DatasetWriter:
    """Begin a new data set: use it in a `with` and append samples.

    Until the `with` has ended well nothing stands under the path.

    Args:
        path: folder to write; it must not exist yet, the folder around it must.
        kind: one of "folder", "tfrecord", "lmdb", "hdf5", "recordio".
        shard_samples: begin a new file after so many samples (tfrecord and recordio only);
            None writes one file.

    Returns:
        DatasetWriter: with `append` and `count`.

    Raises:
        ValueError: when an argument is out of range, something stands at `path`, or another
            writer is at work on it.
    """
    require_known(kind, KINDS, "kind")
    shard_samples = _require_shards(shard_samples, kind)
    # Links in the folders above are followed; the last name is ours and may be none.
    return _WRITERS[kind](_absolute(path), shard_samples)


def open_dataset(path: str | os.PathLike) -> StoredDataset:
    """Open a data set that `create` or `convert` wrote; `formats.open` is this function.

    Checked at once: the manifest fits its own checksum, the index fits the manifest, and files
    have their length. So nothing is mapped that is shorter than it should be. Each record is
    compared with its checksum when it is read.

    Args:
        path: the folder.

    Returns:
        StoredDataset: `len`, `[number]`, a loop over all samples; to be used in a `with`.

    Raises:
        DamageError: when a file is missing or not as it was written; names file and place.
        DataError: when LMDB cannot open a file that is not damaged.
    """
    folder = _absolute(path)
    manifest = read_manifest(folder)
    if manifest.kind not in _READERS:
        what = f"names the format {manifest.kind!r}; known are {', '.join(KINDS)}"
        raise DamageError(Damage(str(folder / NAME), what))
    return _READERS[manifest.kind](folder, manifest)


def _require_shards(shard_samples: int | None, kind: str) -> int | None:
    """Return the samples per file when the format can have several files."""
    if shard_samples is None:
        return None
    known = " and ".join(sorted(FRAMINGS))
    require(kind in FRAMINGS, "shard_samples", f"be None but for {known}", shard_samples)
    return require_count(shard_samples, "shard_samples")


def _absolute(path: Any) -> Path:
    text = isinstance(path, str | os.PathLike) and "\0" not in os.fspath(path)
    require(text, "path", "be the name of a folder", path)
    found = Path(os.path.abspath(path))
    require(found.name != "", "path", "have a name", str(path))
    return found


def convert(
    source: str | os.PathLike | StoredDataset | PlainRecords,
    target: str | os.PathLike,
    kind: str,
    shards: int | None = None,
    progress: bool | Progress = False,
) -> Manifest:
    """Write the samples of one data set as another, in the same order.

    One sample and a few megabytes that wait to be written are in memory, however large the data
    set is. The target appears whole, at the end, or not at all, also when the process is killed.

    Args:
        source: folder of a data set, or one that is open: also what `open_plain` gives.
        target: folder to write; it must not exist yet.
        kind: format of the target, as for `create`.
        shards: number of files to share the samples among, as evenly as whole samples allow
            (tfrecord and recordio only); None for one.
        progress: True draws a bar to standard error; a function is called with the samples done
            and all samples (None where it is not known).

    Returns:
        Manifest: of the target.

    Raises:
        ValueError: when an argument is out of range.
        DamageError: when the source is damaged; then there is no target.
    """
    require_known(kind, KINDS, "kind")
    with contextlib.ExitStack() as stack:
        if not isinstance(source, StoredDataset | PlainRecords):
            source = stack.enter_context(open_dataset(source))
        total = source.count if isinstance(source, StoredDataset) else None
        cuts = _cuts(shards, total, kind)
        writer = stack.enter_context(create(target, kind))
        report = stack.enter_context(reporting(progress, "converting", "samples"))
        for sample in source:
            if writer.count in cuts:
                writer.cut()
            writer.append(sample)
            report(writer.count, total)
    return read_manifest(Path(target))


def _cuts(shards: int | None, total: int | None, kind: str) -> set[int]:
    """Return the numbers of the samples with which a new file begins."""
    if shards is None:
        return set()
    known = " and ".join(sorted(FRAMINGS))
    require(kind in FRAMINGS, "shards", f"be None but for {known}", shards)
    require_count(shards, "shards")
    then = "Convert it to one file first, or use `create` with `shard_samples`."
    require(
        total is not None,
        "shards",
        "be None where the number of samples is not known",
        shards,
        then,
    )
    require(shards <= max(total, 1), "shards", f"be at most the {total} samples", shards)
    return {shard * total // shards for shard in range(1, shards)}
