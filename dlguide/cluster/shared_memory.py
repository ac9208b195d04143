"""The shared memory of MPI that killed ranks leave behind, and why it must go.

MPICH names the memory through which its ranks meet after the process id of their launcher. Ranks
that end well remove it, killed ones cannot. Process ids come round again: a later launcher that
gets the same one takes the dead ranks' memory for its own, and its ranks fail in MPI_Init ("Out
of memory", "invalid bandwidth 0.00", "Message truncated") or wait there for ever.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

FOLDER = Path("/dev/shm")
NAME = "mpich_shm_"
SETTLED_S = 10.0  # ranks that are just starting may not have opened theirs yet


def opened_by(pid: int) -> set[Path]:
    """Find the shared memory of MPI that a process has open."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return set()
    return {Path(path) for path in re.findall(rf"{FOLDER}/{NAME}\S+(?=\n)", maps)}


def remove_orphans() -> list[Path]:
    """Remove the shared memory of MPI that this user owns and no process has open.

    To be called before ranks are started.
    """
    settled = time.time() - SETTLED_S
    found = [path for path in FOLDER.glob(f"{NAME}*") if _is_ours(path, settled)]
    if not found:
        return []
    opened = set[Path]()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            opened |= opened_by(int(entry.name))
    orphans = [path for path in found if path not in opened]
    for path in orphans:
        path.unlink(missing_ok=True)
    return orphans


def _is_ours(path: Path, settled: float) -> bool:
    """Tell whether a file belongs to this user and has been there for a while."""
    try:
        about = path.stat()
    except FileNotFoundError:
        return False
    return about.st_uid == os.getuid() and about.st_mtime < settled
