"""One writer a name; what fails or is killed leaves nothing in the way of the next one."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys

import psutil
import pytest

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
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "set"), kind],
        capture_output=True,
        text=True,
        timeout=120,
    )
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
