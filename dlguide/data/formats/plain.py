"""Record files without a manifest: TFRecord of others, or a RecordIO file on its own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlguide.data.formats.damage import Damage, DamageError
from dlguide.data.formats.framing import FRAMINGS, Found, scan
from dlguide.data.formats.manifest import open_file
from dlguide.data.formats.sample import Fields, MalformedError, Sample, decode
from dlguide.errors import require, require_known

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(.*)", re.S)


class PlainRecords:
    """The records of files that no manifest vouches for; only from front to back.

    Every record is held against its own checksum. A DamageError names file, record and byte
    where that fails; `unchecked` says what these files give no means to check.

    Attributes: paths (files, in order), kind, nbytes (of all files), opens (files opened so
    far), unchecked (sentences).
    """

    def __init__(self, paths: list[Path], kind: str, fields: Fields) -> None:
        self.paths, self.kind, self.fields = paths, kind, fields
        self.opens = self.nbytes = 0
        for path in paths:
            descriptor, nbytes = open_file(path)
            os.close(descriptor)
            self.nbytes += nbytes
        self.unchecked = (
            "there is no manifest: files that were exchanged, or are older than they should be, "
            "look whole",
        )
        if not FRAMINGS[kind].has_end:
            self.unchecked += (
                f"a {kind} file has no end mark: cut between two records, or empty, it looks "
                "like a shorter file",
            )

    def records(self, first: int = 0) -> Iterator[Found]:
        """Read all records, as they stand in the files.

        Args:
            first: number to give to the first one.

        Returns:
            Iterator: of `Found`, numbered through all files.

        Raises:
            DamageError: where a file is damaged, with record and byte.
        """
        number = first
        for path in self.paths:
            descriptor, size = open_file(path)
            self.opens += 1
            try:
                for found in scan(descriptor, size, path, FRAMINGS[self.kind], number):
                    yield found
                    number = found.number + 1
            finally:
                os.close(descriptor)

    def __iter__(self) -> Iterator[Sample]:
        for found in self.records():
            try:
                yield decode(found.block, found.start, found.end, self.fields, None)
            except MalformedError as error:
                then = "Name its features with `fields=formats.Fields(...)`, or leave it out."
                damage = Damage(str(found.path), str(error), found.number, found.offset)
                raise DamageError(damage, then) from error

    def __enter__(self) -> PlainRecords:
        return self

    def __exit__(self, *_: Any) -> None:
        """Nothing stays open."""


def open_plain(
    path: str | os.PathLike, kind: str = "tfrecord", fields: Fields | None = None
) -> PlainRecords:
    """Open record files that were not written here, to read them from front to back.

    Args:
        path: a file, or a folder; in a folder all files that are called `*-00000-of-00008` or
            end in `.tfrecord` are taken in the order of their names. Shards must be those of
            one data set: "train" beside "validation", or 2 beside 4 of "train", are two.
        kind: "tfrecord" or "recordio".
        fields: what the features of a record are called; None for those written here.

    Returns:
        PlainRecords: a loop over it gives Samples.

    Raises:
        ValueError: when the kind is unknown.
        DamageError: when there is no such file, one of the shards is missing, or the folder
            holds several data sets.
    """
    require_known(kind, FRAMINGS, "kind")
    fields = Fields() if fields is None else fields
    require(isinstance(fields, Fields), "fields", "be formats.Fields", type(fields).__name__)
    path = Path(path)
    if not path.is_dir():
        return PlainRecords([path], kind, fields)
    names = sorted(os.listdir(path))
    taken = [name for name in names if _SHARD.fullmatch(name) or name.endswith(f".{kind}")]
    if not taken:
        text = f"holds no file called *-00000-of-00008 or *.{kind}"
        raise DamageError(Damage(str(path), text), "Give the file itself.")
    _require_one_set(path, taken, f"*.{kind}")
    return PlainRecords([path / name for name in taken], kind, fields)


def _require_one_set(folder: Path, names: list[str], alone: str) -> None:
    """See that the files are one data set, of whose shards none is missing."""
    sets: dict[tuple[str, ...], set[int]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        stem, number, shards, suffix = match.groups() if match else (alone, "0", "", "")
        sets.setdefault((stem, shards, suffix), set()).add(int(number))
    if len(sets) > 1:
        called = [f"{a}-*-of-{shards}{z}" if shards else a for a, shards, z in sets]
        what = f"holds {len(sets)} data sets: {', '.join(called[:5])}"
        raise DamageError(Damage(str(folder), what), "Put each into a folder of its own.")
    for (stem, shards, suffix), there in sets.items():
        if not shards:
            continue
        missing = sorted(set(range(int(shards))) - there)
        if missing:
            first = f"{stem}-{missing[0]:05d}-of-{shards}{suffix}"
            what = f"{len(missing)} of {int(shards)} shards are missing, the first is {first}"
            raise DamageError(Damage(str(folder), what), "Copy them from their source.")
        if max(there) >= int(shards):
            what = f"{stem}-{max(there):05d}-of-{shards}{suffix} is none of {int(shards)} shards"
            raise DamageError(Damage(str(folder), what), "Shards are counted from 0: rename them.")
