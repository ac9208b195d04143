"""Checks of the exercises of notebook 40: sizes, damage, opens, a reader, a safe writer."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import google_crc32c
import numpy as np

from dlguide.exercises import NotAnswered, answered, expect, expect_close, expect_function, near
from dlguide.exercises.matching import expect_reason

# What each case of 40-2 does: E an error, S other samples without an error, R the right samples.
_DAMAGE = {
    "npy, a bit of a pixel": ("S", "An npy file holds no checksum: who could notice?"),
    "tfrecord, a bit of a record": ("E", "Each record carries a checksum of its bytes."),
    "tfrecord, cut between two records": (
        "S",
        "Every record that is left is whole, and a TFRecord file has no end mark.",
    ),
    "lmdb, a bit of an unused page": ("R", "Who reads that page?"),
    "tfrecord with manifest, cut between two records": (
        "E",
        "The manifest knows the length of the file.",
    ),
    "tfrecord, an older file of the same name": (
        "S",
        "The older file is whole. Only somebody who knows its SHA-256 can tell.",
    ),
}
DAMAGE_CASES = tuple(_DAMAGE)
# The reasons of 40-3 that are wrong.
SPEAKS_AGAINST = {
    "A": "1 GB/s is little for a parallel file system, and your function says what is too much.",
    "C": "Each image is one small file on one target: no target is asked more than the others.",
    "D": "A cache on a node helps where the data fit. Which of the two numbers is too large?",
}


def exercise_40_1(file_nbytes: Callable[..., Any]) -> str:
    """Check the size of a file of records.

    Args:
        file_nbytes: called with "tfrecord" or "recordio" and the lengths of the records
            (bytes); returns the length of the file (bytes).

    Returns:
        str: what it means.
    """
    expect_function(file_nbytes)
    for lengths in ([100], [5, 0, 70_000], [33_000] * 1000, []):
        total, count = sum(lengths), len(lengths)
        right = {"tfrecord": total + 16 * count, "recordio": 16 + total + 16 * count + 48}
        right["recordio"] += 8 * count
        for kind, nbytes in right.items():
            came = answered(file_nbytes(kind, lengths))
            shown = f"{count} records with {total} bytes"
            hint = "Add up the parts of the drawing, one record after the other."
            if came == total:
                hint = "That is the data alone. What stands around each record?"
            elif kind == "tfrecord" and count and came == total + 12 * count:
                hint = "After each record follows its checksum, 4 bytes more."
            elif kind == "recordio" and came in (total + 16 * count, 16 + total + 16 * count):
                hint = "A RecordIO file has an end: a header that says so, the offsets, 32 bytes."
            elif kind == "recordio" and came == 16 + total + 24 * count + 32:
                hint = "Before the offsets stands a header of 16 bytes that says: no more records."
            expect(came == nbytes, f"the bytes of a {kind} file with {shown}", came, hint)
    return "16 bytes for a record of 33 000: 0.05 %. A file of its own costs half a block."


def exercise_40_2(answers: Mapping[str, str]) -> str:
    """Check what damage does, with and without checksums and a manifest.

    Args:
        answers: for each case "E" (an error), "S" (silently other samples) or "R" (the right
            samples).

    Returns:
        str: what it means.
    """
    expect(isinstance(answers, Mapping), "a dictionary", answers)
    expect(set(answers) == set(_DAMAGE), f"the cases {'; '.join(_DAMAGE)}", list(answers))
    if any(letter is Ellipsis for letter in answers.values()):
        raise NotAnswered
    for case, (letter, hint) in _DAMAGE.items():
        came = str(answers[case]).strip().upper()
        expect(came in ("E", "S", "R"), f"E, S or R for {case!r}", answers[case])
        expect(came == letter, f"what happens with {case!r}", came, hint)
    return "A checksum sees what changed inside. Only a manifest sees what is not there."


def exercise_40_3(limit: Callable[..., Any], why: Any) -> str:
    """Check what a training asks of a file system, what is too much, and what would help.

    Args:
        limit: called with samples, sample_nbytes, epochs, seconds, samples_per_file, and what
            the file system gives: opens_per_s, bytes_per_s; returns the opens/s and bytes/s
            that are needed, and which is further over what is given: "opens", "bytes" or
            "nothing".
        why: the letter of the reason.

    Returns:
        str: what it means.
    """
    expect_function(limit)
    guide = (1_280_000, 32_812.5, 90, 3600.0)
    cases = [
        (*guide, 1, 10_000, 5e9),
        (*guide, 1250, 10_000, 5e9),
        (1_280_000, 107_812.5, 90, 3600.0, 1250, 10_000, 1e9),
        (*guide, 1, 30_000, 1e8),
        (60_000, 784, 5, 60.0, 100, 40.0, 1e6),
    ]
    for samples, nbytes, epochs, seconds, per_file, opens_given, bytes_given in cases:
        case = (samples, nbytes, epochs, seconds, per_file, opens_given, bytes_given)
        came = answered(limit(*case))
        expect(isinstance(came, tuple | list) and len(came) == 3, "three parts", came)
        if any(part is Ellipsis for part in came):
            raise NotAnswered
        rate = samples * epochs / seconds
        opens, nbytes_per_s = rate / per_file, rate * nbytes
        hint = "Samples of all epochs, divided by the time, divided by the samples in a file."
        if near(came[0], opens / epochs):
            hint = "That is one epoch. The run reads all samples in each of its epochs."
        elif per_file > 1 and near(came[0], rate):
            hint = "A packed file is opened once for all the samples in it."
        expect_close(came[0], opens, f"the opens/s of {case}", hint)
        hint = "Samples/s times the bytes of a sample."
        if per_file > 1 and near(came[1], nbytes_per_s / per_file):
            hint = "Packing saves opens, not bytes: all samples must still be read."
        expect_close(came[1], nbytes_per_s, f"the bytes/s of {case}", hint)
        over = {"opens": opens / opens_given, "bytes": nbytes_per_s / bytes_given}
        worst = max(over, key=lambda name: over[name])
        right = worst if over[worst] > 1 else "nothing"
        hint = "Divide what is needed by what is given, for both; over 1 is too much."
        expect(came[2] == right, f"what is too much in {case}", came[2], hint)
    expect_reason(answered(why), "B", SPEAKS_AGAINST, "why more targets would not help")
    return "For the guide's run on single files it is the opens, not the 1 GB/s that it fears."


def exercise_40_4(read_records: Callable[..., Any]) -> str:
    """Check a reader of TFRecord files that believes nothing.

    Args:
        read_records: called with the bytes of a file; returns the list of its records, or
            raises a ValueError that names the record's number, from 0.

    Returns:
        str: what it means.
    """
    expect_function(read_records)
    random = np.random.default_rng(40)
    records = [random.bytes(nbytes) for nbytes in (40, 0, 300, 7)]
    framed = [_framed(record) for record in records]
    whole = b"".join(framed)
    expect(answered(read_records(whole)) == records, "the four records", "others")
    expect(read_records(b"") == [], "no record of an empty file", read_records(b""))
    starts = np.cumsum([0, *map(len, framed)]).tolist()
    for number in (0, 2, 3):
        places = {
            "length": starts[number] + 1,
            "checksum of the length": starts[number] + 9,
            "data": starts[number] + 12,
            "checksum of the data": starts[number + 1] - 1,
        }
        for part, place in places.items():
            damaged = bytearray(whole)
            damaged[place] ^= 4
            hint = f"A bit was flipped in the {part}: hold it against its checksum."
            _must_refuse(read_records, bytes(damaged), number, hint)
    for cut in (starts[2] + 5, starts[2] + 12, starts[3] - 2):
        hint = "The file ends inside a record. A slice that is too short raises nothing by itself."
        _must_refuse(read_records, whole[:cut], 2, hint)
    huge = (1 << 36).to_bytes(8, "little")
    hint = "The length fits its checksum but not the file. Compare it with what is left."
    _must_refuse(read_records, framed[0] + huge + _masked(huge), 1, hint)
    return "That is how `formats.open_plain` reads, a megabyte at a time."


def exercise_40_5(save: Callable[..., Any]) -> str:
    """Check a writer that leaves the whole file or none.

    Args:
        save: called with a path and an iterator of bytes; writes them to that path. When the
            iterator raises, the path is as it was before, and nothing else is left.

    Returns:
        str: what it means.
    """
    expect_function(save)
    parts = [b"first", b"second" * 1000, b"third"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.bin"
        for before in (None, b"older"):
            if before is not None:
                path.write_bytes(before)
            seen: list[Any] = []
            for fails_at in (0, 1, 3, None):
                try:
                    with _watched() as order:
                        answered(save(path, _parts(parts, fails_at, path, seen)))
                except InterruptedError:
                    expect(fails_at is not None, "no error", "one")
                else:
                    text = "the error of the parts, handed on"
                    expect(fails_at is None, text, "no error", "Do not swallow it.")
                    break
                there = path.read_bytes() if path.exists() else None
                hint = "Write under another name, and rename at the end."
                expect(there == before, "the path as before, after an error", there, hint)
                left = [each.name for each in Path(folder).iterdir() if each != path]
                hint = "Remove the unfinished file when an error comes, then raise it again."
                expect(not left, "nothing else left after an error", left, hint)
            hint = "While the parts are written the final name must not show them."
            expect(
                all(each == before for each in seen),
                "the path as before, meanwhile",
                "a part",
                hint,
            )
            expect(path.read_bytes() == b"".join(parts), "all parts at the end", "others")
            left = [each.name for each in Path(folder).iterdir()]
            expect(left == ["data.bin"], "only data.bin in the folder", left)
            _expect_order(order, path)
            path.unlink()
    return "The same three steps save checkpoints: other name, fsync, rename."


def _framed(record: bytes) -> bytes:
    length = len(record).to_bytes(8, "little")
    return length + _masked(length) + record + _masked(record)


def _masked(contents: bytes) -> bytes:
    crc = google_crc32c.value(contents)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def _must_refuse(read_records: Callable[..., Any], contents: bytes, number: int, hint: str) -> None:
    try:
        came = read_records(contents)
    except ValueError as error:
        text = f"a text that names record {number}"
        expect(str(number) in str(error), text, str(error), "Count the records from 0.")
        return
    except Exception as error:
        came = type(error).__name__
    expect(False, f"a ValueError at record {number}", str(came), hint)


def _parts(parts: list[bytes], fails_at: int | None, path: Path, seen: list) -> Iterator[bytes]:
    for number, part in enumerate([*parts, None]):
        seen.append(path.read_bytes() if path.exists() else None)
        if number == fails_at:
            raise InterruptedError("killed here")
        if part is not None:
            yield part


@contextmanager
def _watched() -> Iterator[list[tuple]]:
    """Note the order of fsync and rename of this thread, which are done all the same."""
    order: list[tuple] = []
    own = threading.get_ident()  # others, such as a cluster's, write files of their own
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def noted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == own:
                order.append((name, *arguments))
            return real[name](*arguments, **options)

        return call

    with mock.patch.multiple(os, **{name: noted(name) for name in real}):
        yield order


def _expect_order(order: list[tuple], path: Path) -> None:
    names = [name for name, *_ in order]
    moves = [(name, *rest) for name, *rest in order if name != "fsync"]
    text = "one rename to the final name"
    expect(len(moves) == 1 and Path(moves[0][2]) == path, text, names, "Use `os.replace`.")
    same = Path(moves[0][1]).resolve().parent == path.resolve().parent
    hint = "A rename is one step only within a file system: write into the same folder."
    expect(same, "a temporary file beside the final one", str(moves[0][1]), hint)
    hint = "Bring the bytes to the disk first, or the rename may survive a power cut without them."
    expect("fsync" in names[: names.index(moves[0][0])], "fsync before the rename", names, hint)
