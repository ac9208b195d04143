"""Verifying a data set: every byte of every file, and the place of what is wrong."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from dlguide.data.formats.dataset import (
    MOST,
    NAME,
    ROW,
    Damage,
    DamageError,
    Manifest,
    ManifestFile,
    StoredDataset,
    VerificationReport,
    open_file,
    read_digest,
    read_manifest,
    read_table,
)
from dlguide.data.formats.folder_format import FolderDataset
from dlguide.data.formats.opening import open_dataset
from dlguide.data.formats.records import FRAMINGS, PlainRecords, open_plain, scan

Progress = Callable[[int, int], None]


def verify(path: str | os.PathLike, progress: Progress | None = None) -> VerificationReport:
    """Compare every file of a data set with its SHA-256 and find the place of what differs.

    It does not stop at the first damage: the report names each damaged record, with the byte
    where it begins in its file (for HDF5 the chunk).

    Args:
        path: the folder that `create` or `convert` wrote.
        progress: called with the bytes done and the bytes in all; None for no report.

    Returns:
        VerificationReport: `ok` when nothing was found; `str()` of it has a line per damage.

    Raises:
        DataError: when LMDB cannot open its file although it is not damaged.
    """
    folder = Path(path)
    try:
        manifest = read_manifest(folder)
    except DamageError as error:
        return VerificationReport(str(path), "unknown", 0, 0, (error.damage,))
    damages: list[Damage] = []
    changed: list[ManifestFile] = []
    report = progress or (lambda done, of: None)
    done, total = 0, _nbytes_to_read(folder, manifest)
    for file in manifest.files:
        try:
            if read_digest(folder / file.name, file.nbytes) != file.sha256:
                changed.append(file)
        except DamageError as error:
            damages.append(_first_lost(folder, manifest, file, error.damage))
        done += file.nbytes
        report(done, total)
    damages += _places(folder, manifest, changed, {damage.file for damage in damages})
    nbytes = manifest.nbytes
    if manifest.kind == "folder" and not damages:
        more, found = _small_files(folder, lambda nbytes: report(done + nbytes, total))
        damages, nbytes = damages + more, nbytes + found
    unchecked = _unlisted(folder, manifest)
    return VerificationReport(
        str(path), manifest.kind, manifest.count, nbytes, tuple(damages[:MOST]), unchecked
    )


def verify_plain(path: str | os.PathLike, kind: str = "tfrecord") -> VerificationReport:
    """Check files without a manifest as far as their format allows.

    Args:
        path: a file, or a folder of such files, as for `open_plain`.
        kind: "tfrecord" or "recordio".

    Returns:
        VerificationReport: the first damage of each file; `unchecked` says what cannot be known.

    Raises:
        ValueError: when the kind is unknown.
    """
    try:
        files = open_plain(path, kind)
    except DamageError as error:
        return VerificationReport(str(path), kind, 0, 0, (error.damage,))
    count, damages = 0, []
    for one in files.paths:
        try:
            for found in PlainRecords([one], kind, files.fields).records(count):
                count = found.number + 1
        except DamageError as error:
            damages.append(error.damage)
    return VerificationReport(
        str(path), kind, count, files.nbytes, tuple(damages[:MOST]), files.unchecked
    )


def _nbytes_to_read(folder: Path, manifest: Manifest) -> int:
    """Count the bytes of all files, of the small ones as far as the index can be read."""
    nbytes = manifest.nbytes
    if manifest.kind == "folder":
        with contextlib.suppress(DamageError):  # reported when it is the index's turn
            nbytes += int(read_table(folder, manifest.of_role("index")[0], ROW)["nbytes"].sum())
    return nbytes


def _first_lost(folder: Path, manifest: Manifest, file: ManifestFile, damage: Damage) -> Damage:
    """Add to a file of the wrong length which record is the first that is not whole in it."""
    data = manifest.of_role("data")
    if file not in data or manifest.kind == "hdf5":
        return damage
    try:
        size = os.stat(folder / file.name).st_size
        index = read_table(folder, manifest.of_role("index")[0], ROW)
    except (OSError, DamageError):
        return damage  # the file is gone, or the index is damaged, which is reported by itself
    ends = index["offset"] + index["nbytes"]
    lost = (index["file"] == data.index(file)) & (ends > size)
    if not lost.any():
        return damage
    number = int(lost.argmax())
    return Damage(damage.file, damage.what, number, int(index["offset"][number]))


def _places(
    folder: Path, manifest: Manifest, changed: list[ManifestFile], reported: set[str]
) -> list[Damage]:
    """Find the damaged records of changed files; a file without any is reported whole."""
    damages = []
    data = [file for file in changed if file.role == "data"]
    try:
        # Opening holds the manifest, the index and the files against each other.
        with open_dataset(folder) as dataset:
            damages += _damaged_records(dataset) if data else []
    except DamageError as error:
        damages += [] if error.damage.file in reported else [error.damage]
    for file in data:
        if manifest.kind in FRAMINGS and len(damages) < MOST:
            path = str(folder / file.name)
            known = {each.offset for each in damages if each.file == path}
            damages += _damaged_frame(folder, manifest, file, known)
    reported |= {damage.file for damage in damages}
    for file in changed:
        path = str(folder / file.name)
        if path not in reported:
            outside = "its SHA-256 differs, outside of any record"
            text = outside if file in data else "does not fit the SHA-256 of its manifest"
            damages.append(Damage(path, text))
    return damages


def _damaged_records(dataset: StoredDataset) -> list[Damage]:
    damages = []
    for number in range(dataset.count):
        try:
            dataset[number]
        except DamageError as error:
            damages.append(error.damage)
        if len(damages) == MOST:
            break
    return damages


def _damaged_frame(
    folder: Path, manifest: Manifest, file: ManifestFile, known: set[int | None]
) -> list[Damage]:
    """Look for the first damage around records; behind it the file's own form is lost."""
    path, data = folder / file.name, manifest.of_role("data")
    first = sum(each.count for each in data[: data.index(file)])
    descriptor, size = open_file(path)
    try:
        for _ in scan(descriptor, size, path, FRAMINGS[manifest.kind], first):
            pass
    except DamageError as error:
        before_nbytes = FRAMINGS[manifest.kind].before_nbytes
        offset = error.damage.offset
        if offset is None or offset + before_nbytes not in known:
            return [error.damage]
    finally:
        os.close(descriptor)
    return []


def _small_files(folder: Path, report: Callable[[int], None]) -> tuple[list[Damage], int]:
    damages, nbytes, done = [], 0, 0
    with open_dataset(folder) as dataset:  # `_places` has opened it without an error
        assert isinstance(dataset, FolderDataset)
        for number in range(dataset.count):
            try:
                facts = dataset.facts(number)
                contents = dataset.stored(number)
            except DamageError as error:
                damages.append(error.damage)
            else:
                nbytes += len(contents)
                if hashlib.sha256(contents).hexdigest() != facts["sha256"]:
                    path, what = folder / facts["name"], "its SHA-256 differs from that of its list"
                    damages.append(Damage(str(path), what, number))
            done += int(dataset.index["nbytes"][number])
            report(done)
            if len(damages) >= MOST:
                break
    return damages, nbytes


def _unlisted(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Name files that stand in the folder but not in the manifest; they are never read."""
    listed = {file.name for file in manifest.files} | {NAME}
    there = {entry.name for entry in os.scandir(folder) if not entry.is_dir(follow_symlinks=False)}
    others = sorted(there - listed)
    if not others:
        return ()
    return (f"{len(others)} files that the manifest does not list, such as {others[0]!r}",)
