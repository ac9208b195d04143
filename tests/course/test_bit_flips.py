"""Formats with checksums notice every flipped bit, plain arrays none, and the files are restored.

Tests dlcourse.bit_flips.
"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys

import numpy as np
import pytest

from dlcourse import bit_flips
from dlcourse.bench.io import files_of
from dlguide import commands
from dlguide.data import formats


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    return bit_flips.write(tmp_path_factory.mktemp("flips"), samples=10, nbytes=3000)


@pytest.mark.parametrize(
    "name", ["tfrecord", "hdf5 with fletcher32", *(f"checked {kind}" for kind in formats.KINDS)]
)
def test_formats_with_checksums_let_no_flip_pass(flipped, name):
    before = {path: path.read_bytes() for path in files_of(flipped[name])}
    found = bit_flips.trials(name, flipped[name], 20, anywhere=True)
    assert sum(found.values()) == 20
    assert found["silent"] == 0
    if name not in ("checked lmdb", "checked hdf5"):  # their libraries follow damaged pointers
        assert found["died"] == 0
    assert found["noticed"] > 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", bit_flips._WRITERS)
def test_every_reader_gets_the_same_bits_of_the_same_samples(flipped, name):
    places = bit_flips.places(name, flipped[name])
    contents = b"".join(path.read_bytes() for path in files_of(flipped[name]))
    array = np.load(flipped["npy"] / "data.npy")
    assert [contents[at] for at in places] == [row.tobytes() for row in array]
    found = bit_flips.trials(name, flipped[name], 10)
    silent = {"npy": 10, "hdf5": 10, "lmdb": 10}.get(name, 0)
    assert found == {"noticed": 10 - silent, "silent": silent, "harmless": 0, "died": 0}


@pytest.mark.parametrize("flipped_back", [False, True])
def test_a_reader_that_dies_is_counted_and_the_rest_goes_on(flipped, monkeypatch, flipped_back):
    path = flipped["npy"] / "data.npy"
    before, real, calls = path.read_bytes(), bit_flips.commands.run, []

    def dying(command, limit_s):
        calls.append(json.loads(command[-1]))
        assert limit_s > bit_flips.LIMIT_S * len(calls[-1])  # each trial has a whole limit
        if len(calls) == 1:  # it dies in the third trial, before or after it changed the bit back
            damaged = bytearray(before)
            damaged[calls[0][2] // 8] ^= 0 if flipped_back else 1 << calls[0][2] % 8
            path.write_bytes(damaged)
            return dataclasses.replace(
                real(["true"], limit_s), output="undamaged: right\nsilent\nnoticed\n"
            )
        return real(command, limit_s)

    monkeypatch.setattr(bit_flips.commands, "run", dying)
    found = bit_flips.trials("npy", flipped["npy"], 6)
    assert (found["died"], found["noticed"], sum(found.values())) == (1, 1, 6)
    assert calls[1] == calls[0][3:]
    assert path.read_bytes() == before


def test_files_are_as_before_when_the_trials_are_interrupted(flipped, monkeypatch):
    path = flipped["npy"] / "data.npy"
    before = path.read_bytes()

    def interrupted(command, _):
        place = json.loads(command[-1])[1]
        path.write_bytes(before[: place // 8] + b"?" + before[place // 8 + 1 :])
        raise KeyboardInterrupt

    monkeypatch.setattr(bit_flips.commands, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bit_flips.trials("npy", flipped["npy"], 6)
    assert path.read_bytes() == before


HANGING = """
import sys, time
from pathlib import Path
from dlcourse import bit_flips
calls = []
def read(folder):
    calls.append(folder)
    return [b"right"] if len(calls) < 3 else time.sleep(600)
bit_flips._READERS["npy"] = read
bit_flips.LIMIT_S = 3
bit_flips._child("npy", Path(sys.argv[1]), [8, 9, 10])
"""


def test_a_reader_that_hangs_is_ended_by_the_limit_of_its_trial(tmp_path):
    (tmp_path / "data").write_bytes(bytes(10))
    done = commands.run([sys.executable, "-c", HANGING, tmp_path], 200)
    assert done.status == -signal.SIGALRM, done.output
    assert done.output.split("\n")[:2] == ["undamaged: right", "harmless"]
