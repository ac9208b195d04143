"""Run `dlguide` as a user does, and find what it leaves behind; run Python in a new process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from dlguide.cluster import processes


def dlguide(*words: object, timeout_s: float = 80, cwd: Path | None = None) -> SimpleNamespace:
    """Run one command to its end; return its pid, returncode, stdout and stderr."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dlguide", *map(str, words)],
        cwd=cwd, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return SimpleNamespace(
        pid=process.pid, returncode=process.returncode, stdout=stdout, stderr=stderr
    )


def left_by(pid: int) -> list[processes.ClusterProcess]:
    """Living processes of the clusters that the process with this pid has started."""
    return [each for each in processes.living() if each.owner.startswith(f"{pid}:")]


def python(
    code: str, *words: object, timeout_s: float = 120, fails: bool = False, **options
) -> subprocess.CompletedProcess:
    """Run Python code in a process of its own, which must end well unless it may fail."""
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **options)
    assert fails or done.returncode == 0, done.stderr[-3000:]
    return done
