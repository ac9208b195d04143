"""One writer a name; what fails or is killed leaves nothing in the way of the next one.

A target of a conversion stands whole under its name, or not at all.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest
from command_line import python
from lanes import long

from dlguide.data import formats

SAMPLE = formats.Sample(b"x" * 100, (1,), "k")


def write(path, kind, samples=(SAMPLE,)):
    with formats.create(path, kind) as writer:
        for sample in samples:
            writer.append(sample)
    return path


# --- an error ----------------------------------------------------------------------------------

FULL = """
import os, resource, sys
from dlguide.data import formats
path, kind = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
try:
    with formats.create(path, kind) as writer:
        for number in range(1000):
            writer.append(formats.Sample(bytes(100), (number % 3,)))
except OSError as error:
    print("full", [n for n in os.listdir(os.path.dirname(path)) if not n.endswith(".lock")])
    print(f"{error.errno} {error}", file=sys.stderr)
"""


def visible(folder):
    """Names in a folder but those of lock files, which stay."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".lock"))


@pytest.mark.parametrize("kind", formats.KINDS)
def test_a_full_disk_is_an_os_error_and_leaves_nothing_not_even_a_crash_at_the_end(kind, tmp_path):
    # no file may be longer than 16 kB: neither the data nor, when it is closed, the index
    done = python(FULL, tmp_path / "set", kind, fails=True)
    assert (done.returncode, done.stdout) == (0, "full []\n"), done.stderr
    assert str(tmp_path / "set") in done.stderr or str(tmp_path / ".set") in done.stderr


# --- another writer ----------------------------------------------------------------------------

WRITER = """
import sys
from dlguide.data import formats
with formats.create(*sys.argv[1:]) as writer:
    writer.append(formats.Sample(b"x" * 100, (1,), "k"))
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process_writing(path, kind):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("kind", ["tfrecord", "folder"])
def test_what_a_killed_process_left_is_removed_by_the_next(kind, tmp_path, monkeypatch):
    # in a container that starts again another process has the same number
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)
    with another_process_writing(tmp_path / "set", kind):
        pass
    (left,) = visible(tmp_path)
    assert left.endswith(".partial")
    of_another_host = tmp_path / left.replace(platform.node(), "elsewhere")
    of_another_host.mkdir()
    write(tmp_path / "set", kind)
    assert visible(tmp_path) == [of_another_host.name, "set"]
    assert formats.verify(tmp_path / "set").ok


def test_what_another_process_is_writing_is_left_alone(tmp_path, monkeypatch):
    # in another container, whose processes cannot be seen from here
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: False)
    path = tmp_path / "set"
    with another_process_writing(path, "tfrecord") as process:
        with pytest.raises(ValueError, match=r"`path` must be written once at a time, got .*/set'"):
            formats.create(path, "lmdb")
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert visible(tmp_path) == ["set"]
    with formats.open(path) as dataset:
        assert list(dataset) == [SAMPLE]


# --- killed while converting -------------------------------------------------------------------

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
        names = visible(folder)
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


# --- read back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", formats.KINDS)
def test_a_pass_gives_every_record_once_and_in_order_and_writing_again_the_same_bytes(
    kind, tmp_path
):
    # records smaller and larger than what is read at once (1 MiB), and empty ones
    sizes = [3000, 0, 700_000, 700_000, 2_500_000, 12, *[20_000] * 60]
    samples = [formats.Sample(NUMBER.randbytes(n), (n % 3,), f"k{i}") for i, n in enumerate(sizes)]
    found = []
    for name in ("a", "b"):
        path = tmp_path / name / "set"
        path.parent.mkdir()
        with formats.create(path, kind) as writer:
            for sample in samples:
                writer.append(sample)
        files = [file for file in path.rglob("*") if file.is_file()]
        found.append({file.relative_to(path): file.read_bytes() for file in files})
    assert found[0] == found[1]
    with formats.open(path) as dataset:
        assert list(dataset) == samples
        assert list(dataset.records()) == [dataset.stored(n) for n in range(len(samples))]
