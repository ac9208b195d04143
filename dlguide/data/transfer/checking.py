"""Verifying a data set of any kind that is known here: what is damaged, and where."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dlguide.data import layouts
from dlguide.data.datasets.originals import ORIGINALS, OriginalSet
from dlguide.data.formats.damage import MOST, Damage, DamageError, Report
from dlguide.data.formats.manifest import NAME as MANIFEST
from dlguide.data.formats.verifying import verify as verify_format
from dlguide.data.layouts import chestxray14, imagenet, imagenet_shards, kitti_tracking
from dlguide.data.transfer.catalogue import CATALOGUE
from dlguide.data.transfer.copying import read_digest
from dlguide.data.transfer.listing import SUMS, list_files, read_sums
from dlguide.data.transfer.progress import Progress, reporting
from dlguide.errors import DataError, MissingComponentError, require


def verify(folder: str | os.PathLike, progress: bool | Progress | None = None) -> Report:
    """Check every file of a data set as far as its kind allows.

    A folder of `formats.create` is held against its manifest; one with SHA256SUMS, and the
    originals of MNIST, Fashion-MNIST and CIFAR-10, against their checksums. ImageNet's shards
    have a checksum for each record. ImageNet's folders, ChestX-ray14 and KITTI tracking have none:
    there tables and lists are held against each other and every image is decoded. The report
    names what cannot be seen that way.

    Args:
        folder: of the data set.
        progress: True draws a bar; a function is called with what is done and what there is in
            all: bytes, and for layouts images.

    Returns:
        Report: `ok` tells whether nothing was found; `str()` of it has a line per damage. With
            SHA256SUMS its `count` is of files.

    Raises:
        ValueError: when the folder holds none of these.
        MissingComponentError: when there is no such folder; says how to get a data set.
    """
    place = Path(folder)
    if not place.is_dir():
        raise MissingComponentError(_missing(place))
    check, unit = _known(place)
    with reporting(progress, f"verifying {place.resolve().name}", unit) as report:
        return check(place, report)


_Check = Callable[[Path, Progress], Report]


def _known(place: Path) -> tuple[_Check, str]:
    """Find out which kind of data set a folder holds, and the unit of its progress."""
    if os.path.lexists(place / MANIFEST):
        return verify_format, "bytes"
    if os.path.lexists(place / SUMS):
        return _sums, "bytes"
    original = ORIGINALS.get(place.resolve().name)
    if original is not None and any((place / file.name).exists() for file in original.files):
        return partial(_originals, original), "bytes"
    for name, marks in _MARKS.items():
        if any(next(place.glob(mark), None) for mark in marks):
            return partial(_layout, name), "images"
    known = (
        f"{MANIFEST}, {SUMS}, the files of {', '.join(ORIGINALS)} or those of {', '.join(_MARKS)}"
    )
    require(False, "folder", f"hold {known}", str(place), "`sha256sum` writes SHA256SUMS.")
    raise AssertionError  # `require` has raised


# What stands at the top of the folder of each layout.
_MARKS = {
    "imagenet": imagenet.SPLITS,
    "imagenet_shards": tuple(f"{split}-?????-of-?????" for split in imagenet_shards.SPLITS),
    "chestxray14": (chestxray14.TABLE,),
    "kitti_tracking": (kitti_tracking.IMAGES, kitti_tracking.LABELS),
}


def _sums(folder: Path, report: Progress) -> Report:
    try:
        listing = list_files(folder)
        sums = read_sums(folder / SUMS)
    except DamageError as error:
        return Report(str(folder), SUMS, 0, 0, (error.damage,))
    files = [(file.name, file.sha256, file.nbytes) for file in listing.files if file.sha256]
    damages, nbytes = _digests(folder, files, report)
    others = [file.name for file in listing.files if not file.sha256]
    unchecked = [
        f"{len(others)} files that {SUMS} does not list, such as {each!r}" for each in others[:1]
    ]
    return _OfFiles(str(folder), SUMS, len(sums), nbytes, damages, tuple(unchecked))


class _OfFiles(Report):
    """A report that counts files: a list of checksums knows no records."""

    def __str__(self) -> str:
        begin = f"{self.path}: {self.kind}, {self.count}"
        return f"{begin} files" + super().__str__().removeprefix(f"{begin} records")


def _originals(original: OriginalSet, folder: Path, report: Progress) -> Report:
    files = [(file.name, file.sha256, file.nbytes) for file in original.files]
    damages, nbytes = _digests(folder, files, report)
    images = sum(file.shape[0] for file in original.files if len(file.shape) > 1)
    return Report(str(folder), original.name, images, nbytes, damages)


def _digests(
    folder: Path, files: Sequence[tuple[str, str, int]], report: Progress
) -> tuple[tuple[Damage, ...], int]:
    """Hold files against their checksums; gives the damages and the bytes that were read."""
    total, done, damages = sum(nbytes for _, _, nbytes in files), 0, []

    def add(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        report(done, total)

    for name, sha256, nbytes in files:
        try:
            if read_digest(folder / name, nbytes, add) != sha256:
                damages.append(Damage(str(folder / name), f"its SHA-256 is not {sha256}"))
        except DamageError as error:
            damages.append(error.damage)
        if len(damages) == MOST:
            break
    return tuple(damages), done


# What nothing tells of each layout.
_DECODED = "changed bytes of an image that can still be decoded: it has no checksum"
_UNCHECKED = {
    "imagenet_shards": (
        "whether a record decodes to a picture: it is held against its checksum only",
        "whether a shard lost one record, or the last shard some, at its end",
    ),
}
_NO_LABELS = f"labels: there is no {kitti_tracking.LABELS}, as in the published `testing`"


def _layout(name: str, folder: Path, report: Progress) -> Report:
    unchecked = _UNCHECKED.get(name, (_DECODED,))
    if name == "kitti_tracking" and not (folder / kitti_tracking.LABELS).exists():
        unchecked = (*unchecked, _NO_LABELS)
    try:
        parts, damages = _opened(name, folder, _parts(name, folder))
    except _WRONG as error:
        return Report(str(folder), name, 0, 0, (_damage(error),))
    count, total = 0, sum(map(len, parts))
    for part, number in ((one, number) for one in parts for number in range(len(one))):
        if len(damages) >= MOST:
            break
        try:
            part[number]
        except DataError as error:
            damages.append(_damage(error))
        count += 1
        report(count, total)
    return Report(str(folder), name, count, 0, tuple(damages[:MOST]), unchecked)


def _damage(error: Exception) -> Damage:
    """Take a reader's sentence apart, which begins with the file, and the line where it has one."""
    if isinstance(error, DamageError):
        return error.damage
    file, _, what = str(error).partition(": ")
    return Damage(file, what or "cannot be read")


_WRONG = (DataError, MissingComponentError, OSError)


def _opened(
    name: str, folder: Path, wanted: list[dict[str, Any]]
) -> tuple[list[Sequence], list[Damage]]:
    """Open the parts, which checks tables and lists; give the damages of those that are bad."""
    parts: list[Sequence] = []
    damages: dict[Damage, None] = {}  # in order; two splits may share what is wrong
    for part in wanted:
        try:
            parts.append(getattr(layouts, name).read(folder, **part))
        except _WRONG as error:
            damages[_damage(error)] = None
    return parts, list(damages)


def _parts(name: str, folder: Path) -> list[dict[str, Any]]:
    """Name the parts of a data set, as its `read` takes them."""
    if name == "kitti_tracking":
        labels = (folder / kitti_tracking.LABELS).exists()
        return [{"name": part, "labels": labels} for part in kitti_tracking.names(folder)]
    if name == "chestxray14":
        return [{"split": split} for split in chestxray14.LISTS]
    of_split = "{}" if name == "imagenet" else "{}-?????-of-?????"
    splits = getattr(layouts, name).SPLITS
    return [{"split": one} for one in splits if next(folder.glob(of_split.format(one)), None)]


def _missing(place: Path) -> str:
    name = place.name if place.name in CATALOGUE else "NAME"
    return (
        f"There is no folder {place}. Run `dlguide data fetch {name}` to get "
        f"{'it' if name != 'NAME' else 'a data set; `dlguide data list` names them'}. Without a "
        "network, copy the folder from another machine, or use dlguide.data.synthetic."
    )
