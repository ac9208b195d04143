"""Many small files: one per sample, in a folder per class, and a list of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlguide.data.formats.dataset import (
    Damage,
    DamageError,
    Manifest,
    ManifestFile,
    StoredDataset,
    crc32c,
    is_inside,
    open_file,
    read_exactly,
)
from dlguide.data.formats.sample import MalformedError, Sample
from dlguide.data.formats.writer import DatasetWriter, hash_file

LIST = "files.jsonl"
_SUFFIXES = ((b"\xff\xd8\xff", "jpg"), (b"\x89PNG\r\n", "png"), (b"\x93NUMPY", "npy"))


class FolderWriter(DatasetWriter):
    """Writes `CLASS/NUMBER.SUFFIX` per sample, and one line about it into `files.jsonl`.

    The key goes into that line, never into a file's name: a key like `../../x` cannot lead out.
    """

    kind = "folder"
    _list: Any = None

    def begin(self) -> None:
        self._list = open(self.folder / LIST, "xb")  # noqa: SIM115
        self._made: set[str] = set()

    def put(self, sample: Sample) -> tuple[int, int, int, int]:
        label = str(sample.labels[0]) if len(sample.labels) == 1 else "samples"
        if label not in self._made:
            (self.folder / label).mkdir()
            self._made.add(label)
        suffix = next((end for begin, end in _SUFFIXES if sample.data.startswith(begin)), "bin")
        name = f"{label}/{self.count:09d}.{suffix}"
        with open(self.folder / name, "xb") as file:
            file.write(sample.data)
        digest = hashlib.sha256(sample.data).hexdigest()
        facts = {"name": name, "sha256": digest, "labels": sample.labels, "key": sample.key}
        offset = self._list.tell()
        self._list.write(json.dumps(facts).encode() + b"\n")
        return 0, offset, len(sample.data), crc32c(sample.data)

    def finish(self) -> list[ManifestFile]:
        """Close the list and bring all files of this data set to the disk."""
        self._list.close()
        for path in (*self.folder.rglob("*"), self.folder):
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return [hash_file(self.folder / LIST, "list", self.count)]

    def close(self) -> None:
        if self._list is not None:
            self._list.close()


class FolderDataset(StoredDataset):
    """Reads one file per sample; the list says which, and the index where its line stands."""

    file_per_sample = True

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        lists = manifest.of_role("list")
        if len(lists) != 1:
            raise DamageError(Damage(str(folder), "its manifest names no list of files"))
        self._path, self._list_nbytes = folder / lists[0].name, lists[0].nbytes
        self._descriptor, _ = open_file(self._path, self._list_nbytes)
        self._own = {folder}  # folders that are no links
        self.opens += 1
        self.nbytes += int(self.index["nbytes"].sum())
        with open(self._descriptor, "rb", closefd=False) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != lists[0].sha256:
            os.close(self._descriptor)
            raise DamageError(Damage(str(self._path), "does not fit the SHA-256 of its manifest"))

    def facts(self, number: int) -> dict[str, Any]:
        """Read the line of a sample."""
        start = int(self.index[number]["offset"])
        last = number + 1 == self.count
        end = self._list_nbytes if last else int(self.index[number + 1]["offset"])
        if not 0 <= start < end <= self._list_nbytes:
            raise self._wrong_line(number, start, "the index puts its line outside of the list")
        line = read_exactly(self._descriptor, end - start, start, self._path)
        try:
            facts = json.loads(line)
            labels, key = facts["labels"], facts["key"]
            sound = is_inside(facts["name"]) and isinstance(key, str)
            sound &= all(type(label) is int for label in labels) and bool(facts["sha256"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._wrong_line(number, start, f"its line is broken ({error})") from error
        if not sound:
            raise self._wrong_line(number, start, "its line names a place outside, or no sample")
        return facts

    def stored(self, number: int) -> bytes:
        path = self.folder / self.facts(number)["name"]
        if path.parent not in self._own:
            between = [path.parent, *path.parent.parents]
            between = between[: between.index(self.folder)]
            if any(each.is_symlink() for each in between):
                raise DamageError(Damage(str(path), "its folder is a link", number))
            self._own.add(path.parent)
        try:
            descriptor, nbytes = open_file(path, int(self.index[number]["nbytes"]))
        except DamageError as error:
            raise DamageError(Damage(str(path), error.damage.what, number)) from error
        self.opens += 1
        try:
            return read_exactly(descriptor, nbytes, 0, path)
        finally:
            os.close(descriptor)

    def records(self, checked: bool = False) -> Iterator[bytes]:
        return map(self.stored, range(self.count))

    def sample(self, number: int, record: bytes) -> Sample:
        facts = self.facts(number)
        try:
            facts["key"].encode()
        except UnicodeEncodeError as error:
            raise MalformedError(f"its key {facts['key'][:40]!r} is not UTF-8") from error
        return Sample(record, tuple(facts["labels"]), facts["key"])

    def place(self, number: int, file: int, offset: int) -> tuple[str, int | None]:
        return self.facts(number)["name"], 0

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()

    def _wrong_line(self, number: int, start: int, what: str) -> DamageError:
        return DamageError(Damage(str(self._path), what, number, start))


FORMAT = (FolderWriter, FolderDataset)
