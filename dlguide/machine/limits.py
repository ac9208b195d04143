"""Limits a control group sets to this process: a container's, a batch job's, a service's."""

from __future__ import annotations

import re
from pathlib import Path

from dlguide.machine.kernel_files import integer, read


def _control_groups(sysfs: Path, proc: Path, controller: str) -> list[Path]:
    """Folders of this process's control groups from the innermost to the root, versions 2 and 1.

    Inside a container the path in /proc may be the host's, which is not mounted: such folders
    are simply not there, and the root of the mount is the container's own group.
    """
    folders = []
    # without the list (some containers hide it) the root of each mount is still looked at
    unknown = ["0::/", f"1:{controller}:/"]
    for line in read(proc / "self/cgroup").splitlines() or unknown:
        _, controllers, path = line.split(":", 2)
        mounts = ("", "unified") if not controllers else (controllers, controller)
        if controllers and controller not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for mount in dict.fromkeys(mounts):
            top = sysfs / "fs/cgroup" / mount
            folders += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders


def quota_cores(sysfs: Path, proc: Path) -> float | None:
    """Find the CPU time this process may use, in cores; None when unlimited.

    The least of quota / period of its control group and those around it.
    """
    limits = []
    for folder in _control_groups(sysfs, proc, "cpu"):
        words = read(folder / "cpu.max").split()
        words = words or [read(folder / f"cpu.cfs_{word}_us") for word in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            limits.append(int(words[0]) / int(words[1]))
    return min(limits, default=None)


def memory_bytes(sysfs: Path, proc: Path) -> int:
    """Find the memory this process may use: the machine's, or less by its control groups."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", read(proc / "meminfo"), re.MULTILINE)
    sizes = [int(total[1]) * 1024] if total else []
    for folder in _control_groups(sysfs, proc, "memory"):
        limits = (integer(folder / file) for file in ("memory.max", "memory.limit_in_bytes"))
        sizes += [limit for limit in limits if limit is not None]
    return min(sizes, default=0)
