"""Killed while converting: the target stands whole under its name, or not at all."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from lanes import long

from dlguide.data import formats

# Converts again and again under new names, so that a kill at any time meets a conversion.
ENDLESS = """
import sys
from dlguide.data import formats
source, folder, kind = sys.argv[1:]
print("ready", flush=True)
for number in range(10**6):
    formats.convert(source, f"{folder}/{number}", kind)
"""
NUMBER = random.Random(11)
SAMPLES = [formats.Sample(NUMBER.randbytes(3000), (n % 3,), f"k{n}") for n in range(200)]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "a"
    with formats.create(path, "recordio") as writer:
        for sample in SAMPLES:
            writer.append(sample)
    return path


def partial_of(folder):
    return [name for name in os.listdir(folder) if name.endswith(".partial")]


def stop_within_a_conversion(process, folder):
    """Hold a process at a moment at which a folder is unfinished."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if partial_of(folder):
            process.send_signal(signal.SIGSTOP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            if partial_of(folder):
                return
            process.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    pytest.fail("no conversion was met in a minute")


@pytest.mark.parametrize("kind", formats.KINDS)
@pytest.mark.parametrize("kills", [2, *long(6)])
def test_a_killed_conversion_leaves_no_half_data_set_under_the_final_name(
    kind, kills, source, tmp_path
):
    # by turns at any moment of the first 0.4 s, and within a conversion
    for turn in range(kills):
        folder = tmp_path / str(turn)
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, str(source), str(folder), kind],
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout.readline() == b"ready\n"
            if turn % 2:
                stop_within_a_conversion(process, folder)
            else:
                time.sleep(NUMBER.uniform(0, 0.4))
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)
            process.stdout.close()
        names = [name for name in os.listdir(folder) if not name.endswith(".lock")]
        partial = partial_of(folder)
        assert len(partial) <= 1
        assert partial or turn % 2 == 0
        done = sorted(int(name) for name in names if name not in partial)
        assert done == list(range(len(done)))
        for number in done[-2:]:
            assert formats.verify(folder / str(number)).ok
            with formats.open(folder / str(number)) as dataset:
                assert list(dataset) == SAMPLES
        # the next one goes ahead under the name at which this one was killed, and clears up
        target = folder / str(len(done))
        formats.convert(source, target, kind)
        assert formats.verify(target).ok
        assert not partial_of(folder)
