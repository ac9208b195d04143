"""Find and end the processes of our clusters, and no others.

Every process that a cluster starts, down to the last nanny, inherits two environment variables:
which cluster it belongs to and which process owns the cluster. The kernel keeps them in /proc,
so that ours can be told from everybody else's without a list that could go stale.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlguide.cluster import shared_memory

MARK = "DLGUIDE_CLUSTER"
OWNER = "DLGUIDE_OWNER"
FOLDER = "DLGUIDE_RUN_FOLDER"
PREFIX = "dlguide-"


@dataclass(frozen=True)
class ClusterProcess:
    """One living process of a cluster: its pid, cluster id, owner, run folder and command."""

    pid: int
    cluster: str
    owner: str
    folder: str
    command: str


def identity(pid: int) -> str:
    """Name a process for good: pids are reused, a pid with its start time is not.

    Args:
        pid: a process id.

    Returns:
        str: "pid:start time in clock ticks", or "" when there is no such process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}:{fields[19]}"


def living() -> Iterator[ClusterProcess]:
    """Yield the living processes of all clusters of this user, in order of their pids."""
    for pid in sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if MARK.encode() not in environ or not identity(pid):
                continue
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        pairs = (entry.partition(b"=") for entry in environ.split(b"\0"))
        values = {name.decode(): value.decode(errors="replace") for name, _, value in pairs}
        if MARK in values:
            yield ClusterProcess(
                pid,
                values[MARK],
                values.get(OWNER, ""),
                values.get(FOLDER, ""),
                command.replace(b"\0", b" ").decode(errors="replace").strip(),
            )


def leftovers() -> list[ClusterProcess]:
    """List the processes whose owner is gone; a watchdog at its work does not count."""
    return [each for each in living() if not _owner_lives(each)]


def _owner_lives(process: ClusterProcess) -> bool:
    """Tell whether the process that started this one's cluster is still there."""
    pid = process.owner.partition(":")[0]
    return pid.isdigit() and identity(int(pid)) == process.owner


def end(cluster: str, timeout_s: float = 5.0) -> list[int]:
    """End every process of one cluster and remove the shared memory that it leaves."""
    deadline = time.monotonic() + timeout_s
    ended: set[int] = set()
    shared: set[Path] = set()
    while True:
        ours = [each for each in living() if each.cluster == cluster and each.pid != os.getpid()]
        if not ours:
            break
        for each in ours:
            shared |= shared_memory.opened_by(each.pid)
            try:
                os.kill(each.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            ended.add(each.pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[each.pid for each in ours]} do not end")
        time.sleep(0.02)
    for path in shared:
        path.unlink(missing_ok=True)
    return sorted(ended)


def cleanup() -> list[ClusterProcess]:
    """End all leftovers of this user's clusters and remove their folders."""
    found = leftovers()
    for cluster in {each.cluster for each in found}:
        end(cluster)
    for folder in {each.folder for each in found if each.folder}:
        remove_folder(Path(folder))
    shared_memory.remove_orphans()
    return found


def remove_folder(folder: Path) -> None:
    """Remove a cluster's folder and the shared memory that its ranks wrote down there."""
    if not folder.name.startswith(PREFIX):
        return  # the name came from an environment variable: remove nothing that is not ours
    for note in folder.glob("shared-memory-*"):
        for line in note.read_text().splitlines():
            if line.startswith("/dev/shm/mpich_shm"):
                Path(line).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
