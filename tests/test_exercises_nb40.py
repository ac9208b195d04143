"""Notebook 40's checks tick what is right and say which usual mistake was made."""

import contextlib
import os
import tempfile
from pathlib import Path

import google_crc32c
import pytest
from exercise_parts import Parts

from dlguide import exercises
from dlguide.data import formats
from dlguide.data.formats.framing import FRAMINGS
from dlguide.exercises import nb40
from dlguide.scaling import demand


def file_nbytes(kind, lengths):
    records = sum(16 + nbytes for nbytes in lengths)
    return records if kind == "tfrecord" else 16 + records + 16 + 8 * len(lengths) + 32


DAMAGE = dict(zip(nb40.DAMAGE_CASES, "SESRES", strict=True))


def limit(samples, nbytes, epochs, seconds, per_file, opens_given, bytes_given):
    rate = samples * epochs / seconds
    over = {"opens": rate / per_file / opens_given, "bytes": rate * nbytes / bytes_given}
    worst = max(over, key=over.get)
    return rate / per_file, rate * nbytes, worst if over[worst] > 1 else "nothing"


def frame(payload):
    return FRAMINGS["tfrecord"].frame(len(payload), google_crc32c.value(payload))


def read_records(contents):
    records, at = [], 0
    while at < len(contents):
        head, nbytes = contents[at : at + 12], int.from_bytes(contents[at : at + 8], "little")
        payload = contents[at + 12 : at + 12 + nbytes]
        end = at + 12 + len(payload)
        if (head, contents[end : end + 4]) != frame(payload):
            raise ValueError(f"record {len(records)} is damaged")
        records.append(payload)
        at = end + 4
    return records


def trusting(contents, checks=(), error=ValueError):
    """Read records, and check only what is named."""
    records, at = [], 0
    while at < len(contents):
        nbytes = int.from_bytes(contents[at : at + 8], "little")
        payload = contents[at + 12 : at + 12 + nbytes]
        before, after = frame(payload)
        right = {
            "length": contents[at : at + 8] == before[:8],
            "length's checksum": contents[at + 8 : at + 12] == before[8:],
            "checksum": contents[at + 12 + nbytes : at + 16 + nbytes] == after,
        }
        if not all(right[part] for part in checks):
            raise error(f"record {len(records)}")
        records.append(payload)
        at += nbytes + 16
    return records


def save(path, parts):
    beside = path.with_name(path.name + ".partial")
    try:
        with open(beside, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink()
        raise


def save_in_place(path, parts):
    with open(path, "wb") as file:
        file.writelines(parts)


def save_leaving_rest(path, parts):
    beside = path.with_name("rest")
    _write(beside, parts)
    os.replace(beside, path)


def _write(path, parts):
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def save_without_fsync(path, parts):
    contents = b"".join(parts)
    beside = path.with_name("rest")
    beside.write_bytes(contents)
    beside.rename(path)


def save_elsewhere(path, parts):
    contents = b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder) / "a", [contents])
        os.replace(Path(folder) / "a", path)


def save_quietly(path, parts):
    with contextlib.suppress(InterruptedError):
        save(path, parts)


RIGHT = {
    "40-1": file_nbytes,
    "40-2": DAMAGE,
    "40-3": Parts((limit, "B")),
    "40-4": read_records,
    "40-5": save,
}
EMPTY = {
    "40-2": [dict.fromkeys(DAMAGE, ...), DAMAGE | {nb40.DAMAGE_CASES[3]: ...}],
    "40-3": [
        Parts((limit, ...)),
        Parts((lambda *given: ..., "B")),
        Parts((lambda *given: (..., ..., ...), "B")),
    ],
}
WRONG = {
    "data alone": ("40-1", lambda kind, lengths: sum(lengths), "data alone"),
    "one checksum": ("40-1", lambda kind, each: sum(each) + 12 * len(each), "4 bytes more"),
    "no end": ("40-1", lambda kind, lengths: sum(lengths) + 16 * len(lengths), "has an end"),
    "no end mark": (
        "40-1",
        lambda kind, lengths: file_nbytes(kind, lengths) - (16 if kind == "recordio" else 0),
        "no more records",
    ),
    "npy notices": ("40-2", DAMAGE | {nb40.DAMAGE_CASES[0]: "E"}, "no checksum"),
    "cut is seen": ("40-2", DAMAGE | {nb40.DAMAGE_CASES[2]: "E"}, "no end mark"),
    "unused page": ("40-2", DAMAGE | {nb40.DAMAGE_CASES[3]: "S"}, "Who reads that page"),
    "old file": ("40-2", DAMAGE | {nb40.DAMAGE_CASES[5]: "E"}, "SHA-256"),
    "no letter": ("40-2", DAMAGE | {nb40.DAMAGE_CASES[1]: "error"}, "E, S or R"),
    "a case left out": ("40-2", {"npy": "S"}, "the cases"),
    "one epoch": ("40-3", Parts((lambda *g: limit(g[0], g[1], 1, *g[3:]), "B")), "one epoch"),
    "each sample opened": (
        "40-3",
        Parts((lambda *g: (g[0] * g[2] / g[3], *limit(*g)[1:]), "B")),
        "opened once for all",
    ),
    "bytes packed away": (
        "40-3",
        Parts((lambda *g: (limit(*g)[0], limit(*g)[1] / g[4], limit(*g)[2]), "B")),
        "not bytes",
    ),
    "always opens": (
        "40-3",
        Parts((lambda *g: (*limit(*g)[:2], "opens"), "B")),
        "over 1 is too much",
    ),
    "larger number": (
        "40-3",
        Parts((lambda *g: (*limit(*g)[:2], "bytes"), "B")),
        "Divide what is needed",
    ),
    "bytes blamed": ("40-3", Parts((limit, "A")), "1 GB/s is little"),
    "one target": ("40-3", Parts((limit, "C")), "no target is asked more"),
    "caches": ("40-3", Parts((limit, "D")), "Which of the two numbers"),
    "no reason": ("40-3", Parts((limit, "opens")), "one of the letters A, B, C, D"),
    "no checks": ("40-4", trusting, "flipped in the"),
    "data not checked": (
        "40-4",
        lambda c: trusting(c, ["length", "length's checksum"]),
        "flipped in the data",
    ),
    "length's checksum not checked": (
        "40-4",
        lambda c: trusting(c, ["length", "checksum"]),
        "checksum of the length",
    ),
    "another error": (
        "40-4",
        lambda c: trusting(c, ["length", "length's checksum", "checksum"], KeyError),
        "a ValueError at record 0",
    ),
    "written in place": ("40-5", save_in_place, "another name"),
    "rest left": ("40-5", save_leaving_rest, "Remove the unfinished file"),
    "no fsync": ("40-5", save_without_fsync, "to the disk first"),
    "another folder": ("40-5", save_elsewhere, "same folder"),
    "error swallowed": ("40-5", save_quietly, "Do not swallow"),
    "no function": ("40-5", 3, "Write it with `def`"),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["tfrecord", "recordio"])
def test_sizes_are_those_of_files_that_were_written(kind, tmp_path):
    with formats.create(tmp_path / "a", kind) as writer:
        for nbytes in (100, 0, 5000):
            writer.append(formats.Sample(bytes(nbytes)))
    with formats.open(tmp_path / "a") as dataset:
        (data,) = dataset.data
        assert data.nbytes == file_nbytes(kind, dataset.index["nbytes"].tolist())


def test_records_of_the_check_are_those_of_the_package():
    for payload in (b"", b"abc", bytes(1000)):
        before, after = frame(payload)
        assert nb40._framed(payload) == before + payload + after


def test_the_case_of_the_guide_has_its_numbers():
    needed = demand.of(demand.GUIDE)
    opens, nbytes_per_s, part = limit(1_280_000, 32_812.5, 90, 3600.0, 1, 10_000, 5e9)
    assert (opens, nbytes_per_s) == pytest.approx((needed.opens_per_s, needed.bytes_per_s))
    assert part == "opens"


def test_letters_may_be_small():
    assert exercises.check("40-2", {case: letter.lower() for case, letter in DAMAGE.items()})
    assert exercises.check("40-3", lambda *a: list(limit(*a)), "(b)")
