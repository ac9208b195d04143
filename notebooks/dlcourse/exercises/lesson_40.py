"""Exercises of lesson 40: sizes, damage, opens, a reader, a safe writer."""

import os
import re
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from unittest import mock

import google_crc32c

from dlcourse.exercises.engine import Exercise, Letters, letter
from dlguide.data.formats.records import FRAMINGS

CUT, MANIFEST = "cut between two records", "tfrecord with manifest"
NOTICED = {
    "npy, a bit of a pixel": ("S", "An npy file has no checksum: what could notice?"),
    "tfrecord, a bit of a record": ("E", "Each record has a checksum of its bytes."),
    f"tfrecord, {CUT}": ("S", "The records that are left are whole, and there is no end mark."),
    "lmdb, a bit of an unused page": ("R", "What reads that page?"),
    f"{MANIFEST}, {CUT}": ("E", "The manifest contains the length of the file."),
    "tfrecord, an older file of the same name": ("S", "It is whole. Only its SHA-256 differs."),
}
AGAINST = {
    "A": "1 GB/s is little for a parallel file system; your function shows what is too much.",
    "C": "Each image is one small file on one target: no target gets more requests than another.",
    "D": "A cache on a node helps where the data fit. Which of the two values is too large?",
}
GUIDE = (1_280_000, 32_812.5, 90, 3600.0)  # samples, bytes of one, epochs, seconds
TRAININGS = [(*GUIDE, 1, 10_000, 5e9), (*GUIDE, 1250, 10_000, 5e9), (*GUIDE, 1, 30_000, 1e8)]
TRAININGS += [(1_280_000, 107_812.5, 90, 3600.0, 1250, 10_000, 1e9)]
TRAININGS += [(60_000, 784, 5, 60.0, 100, 40.0, 1e6)]
RECORDS = [bytes(range(40)), b"", bytes(300), b"seventh"]
WATCHED = ("fsync", "rename", "replace")
PARTS = [b"first", b"second" * 1000, b"third"]


def file_nbytes(kind, lengths, end=48):
    records = sum(lengths) + 16 * len(lengths)
    return records if kind == "tfrecord" else 16 + records + 8 * len(lengths) + end


def limit(samples, nbytes, epochs, seconds, per_file, opens, given, packed=1, enough=1):
    rate = samples * epochs / seconds
    needed = rate / per_file, rate * nbytes / packed
    over = {"opens": needed[0] / opens, "bytes": needed[1] / given}
    worst = max(over, key=over.get)
    return *needed, worst if over[worst] > enough else "nothing"


def frame(record):
    return FRAMINGS["tfrecord"].frame(len(record), google_crc32c.value(record))


def read_records(contents, compared=range(4), error=ValueError, huge=ValueError, first=0, cut=True):
    records, at = [], 0
    while at < len(contents):
        nbytes = int.from_bytes(contents[at : at + 8], "little")
        record = contents[at + 12 : at + 12 + nbytes]
        (before, after), end = frame(record), at + 12 + len(record)
        if not cut and len(record) < nbytes < 1000:  # a flipped length is larger
            break
        right = before[:8], before[8:], after[:3], after[3:]
        came = contents[at : at + 8], contents[at + 8 : at + 12], contents[end : end + 3]
        came = (*came, contents[end + 3 : end + 4])
        if any(came[part] != right[part] for part in compared):
            raise (huge if nbytes > 1 << 30 else error)(f"record {len(records) + first} is damaged")
        records.append(record)
        at = end + 4
    return records


def files():
    framed = [frame(record)[0] + record + frame(record)[1] for record in RECORDS]
    starts, whole = [*accumulate(map(len, framed), initial=0)], b"".join(framed)
    flips = [(s + 1, s + 9, s + 12, e - 1) for s, e in pairwise(starts) if e - s > 16]
    damaged = [bytearray(whole) for _ in range(12)]
    for contents, place in zip(damaged, sum(flips, ()), strict=True):
        contents[place] ^= 4
    cuts = [whole[:end] for end in (starts[2] + 5, starts[2] + 12, starts[3] - 2)]
    huge = framed[0] + FRAMINGS["tfrecord"].frame(1 << 36, 0)[0]
    return [(bytes(contents),) for contents in (whole, b"", *damaged, *cuts, huge)]


def refused(answer, contents):
    """The records, or whether a ValueError names the first that is damaged."""
    number = None
    try:
        read_records(contents)
    except ValueError as error:
        number = re.search(r"\d+", str(error))[0]
    try:
        came = answer(contents)
    except ValueError as error:
        return f"a ValueError {'with' if number and number in str(error) else 'without'} the number"
    return came if number is None or came is ... else "no error"


def save(path, parts, sync=True, tidy=True, swallow=False, beside=True, folder=None):
    unfinished = (folder or path.parent) / f"{path.parent.name}.unfinished" if beside else path
    try:
        with open(unfinished, "wb") as file:
            file.writelines(parts)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        if tidy:
            unfinished.unlink()
        if not swallow:
            raise


def saved(answer, case):
    """What is wrong with a file that was saved from parts, of which one may fail."""
    before, fails_at, seen = *case.values(), []
    calls = mock.Mock(**{name: mock.Mock(wraps=getattr(os, name)) for name in WATCHED})

    def parts():
        for number, part in enumerate([*PARTS, b""]):
            seen.append(contents())
            if number == fails_at:
                raise InterruptedError("stopped here")
            yield part

    def contents():
        return path.read_bytes() if path.exists() else None

    with TemporaryDirectory() as folder:
        path, failed = Path(folder) / "data.bin", False
        if before is not None:
            path.write_bytes(before)
        try:
            with mock.patch.multiple(os, **{name: getattr(calls, name) for name in WATCHED}):
                if answer(path, parts()) is ...:
                    return ...
        except InterruptedError:
            failed = True
        own = [each for each in calls.mock_calls if each[0] == "fsync" or folder in str(each)]
        moves = [list(map(Path, at)) for name, at, _ in own if name != "fsync"]
        faults = {
            "no error": failed == (fails_at is None),
            "another file at the path": failed and contents() != before,
            "a file that is left": len(os.listdir(folder)) != (contents() is not None),
            "a part at the path meanwhile": any(each != before for each in seen),
            "other contents": not failed and contents() != b"".join(PARTS),
            "no rename": not failed and [to for _, to in moves] != [path],
            "a rename between folders": any(name.parent != to.parent for name, to in moves),
            "no fsync first": not failed and [name for name, *_ in own][:1] != ["fsync"],
        }
    return next((fault for fault, found in faults.items() if found), "the whole file, or none")


EXERCISES = {
    "40-1": Exercise(file_nbytes,
        [(k, n) for n in ([100], [5, 0, 70_000], [33_000] * 1000, []) for k in FRAMINGS], {
        "That is the data alone. What is around each record?": lambda kind, lengths: sum(lengths),
        "A checksum follows each record, 4 bytes more.":
            lambda kind, lengths: sum(lengths) + 12 * len(lengths),
        "A RecordIO file has a beginning of 16 bytes, and an end.":
            lambda kind, lengths: file_nbytes("tfrecord", lengths),
        "A RecordIO file has an end: a header, the offsets, 32 bytes.":
            lambda kind, lengths: file_nbytes(kind, lengths, -8 * len(lengths)),
        "Before the offsets there is a header of 16 bytes: no more records.":
            lambda kind, lengths: file_nbytes(kind, lengths, 32),
    }, hint="Add up the parts of the drawing, one record after the other.",
        remark="16 bytes for a record of 33 000: 0.05 %. A file per image costs half a block.",
        relative=0),
    "40-2": Letters(NOTICED,
        "A checksum shows what changed inside. Only a manifest shows what is missing."),
    "40-3": [
        Exercise(limit, TRAININGS, {
            "That is one epoch. The run reads all samples in each of its epochs.":
                lambda n, size, epochs, *rest: limit(n, size, 1, *rest),
            "A packed file is opened once for all the samples in it.":
                lambda *case: limit(*case[:4], 1, *case[5:]),
            "Packing saves opens, not bytes: all samples must still be read.":
                lambda *case: limit(*case, packed=case[4]),
            "Divide what is needed by what is given, for both.":
                lambda *case: (*limit(*case)[:2], "bytes"),
            "A ratio over 1 is too much.": lambda *case: limit(*case, enough=0),
        }, hint="Samples of all epochs, divided by the time, divided by the samples in a file; "
            "samples/s times the bytes of a sample; what exceeds its limit by the larger factor."),
        letter("B", AGAINST, "For the guide's run on single files the opens are too many.")],
    "40-4": Exercise(read_records, files, {
        "A bit was flipped in the length: compare it with its checksum.":
            lambda contents: read_records(contents, ()),
        "A bit was flipped in the checksum of the length: compare it with the length.":
            lambda contents: read_records(contents, (0, 2, 3)),
        "A bit was flipped in the data: compare them with their checksum.":
            lambda contents: read_records(contents, (0, 1)),
        "A bit was flipped in the checksum of the data: compare all of it.":
            lambda contents: read_records(contents, (0, 1, 2)),
        "The file ends inside a record. A slice that is too short raises nothing by itself.":
            lambda contents: read_records(contents, cut=False),
        "The length fits its checksum but not the file. Compare it with what is left.":
            lambda contents: read_records(contents, huge=MemoryError),
        "Count the records from 0.": lambda contents: read_records(contents, first=1),
        "Raise a ValueError.": lambda contents: read_records(contents, error=KeyError),
    }, hint="Return the list of all records, or raise a ValueError with the record's number.",
        remark="That is how `formats.open_plain` reads, a megabyte at a time.", call=refused),
    "40-5": Exercise(save,
        [({"before": old, "fails at": at},) for old in (None, b"older") for at in (0, 1, 3, None)],
        {
        "Do not swallow the error of `parts`.":
            lambda path, parts: save(path, parts, swallow=True),
        "Write under another name, and rename at the end.":
            lambda path, parts: save(path, parts, tidy=False, beside=False),
        "Remove the unfinished file when an error comes, then raise it again.":
            lambda path, parts: save(path, parts, tidy=False),
        "While the parts are written the final name must not show them.":
            lambda path, parts: save(path, parts, beside=False),
        "One rename to the final name: use `os.replace`.":
            lambda path, parts: path.write_bytes(b"".join(parts)),
        "A rename is one step only within a file system: write into the same folder.":
            lambda path, parts: save(path, parts, folder=Path(gettempdir())),
        "Bring the bytes to the disk first, or the rename may survive a power cut without them.":
            lambda path, parts: save(path, parts, sync=False),
    }, hint="All parts at the end, in one file with the final name, and no other file.",
        remark="The same three steps save checkpoints: other name, fsync, rename.", call=saved),
}  # fmt: skip
