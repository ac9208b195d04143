"""What this process may run on: cores, sockets, caches, memory and limits, read from the system.

Cores are those this process may use, by its affinity and the limits of its control group, not
those the machine has: a batch job or a container often gets a few cores of many.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dlguide.errors import require
from dlguide.machine import extensions, record, topology
from dlguide.machine.kernel_files import integer, read
from dlguide.machine.limits import memory_bytes, quota_cores
from dlguide.machine.topology import Core

__all__ = ["Core", "Machine", "describe"]


@dataclass(frozen=True)
class Machine:
    """What this process may use of a machine; counts and caches are of those cores only.

    Args:
        name: host name.
        processor: model of the processor.
        sockets: processor packages (count).
        numa_nodes: NUMA nodes (count).
        physical_cores: physical cores (count).
        logical_cores: logical CPUs, hardware threads (count).
        quota_cores: CPU time the control group allows, in cores; None when unlimited.
        cores: the logical CPUs, in ascending order.
        caches: size of each kind of cache of the first core (bytes), such as {"L1d": 32768}.
        simd: vector extensions, named as in /proc/cpuinfo.
        memory_bytes: memory, or the control group's limit when that is less (bytes).
        gpus: model of each GPU that a driver shows.
        os: operating system and kernel.
    """

    name: str
    processor: str
    sockets: int
    numa_nodes: int
    physical_cores: int
    logical_cores: int
    quota_cores: float | None
    cores: tuple[Core, ...]
    caches: dict[str, int] = field(hash=False)
    simd: tuple[str, ...]
    memory_bytes: int
    gpus: tuple[str, ...]
    os: str

    @property
    def usable_cores(self) -> int:
        """Physical cores worth giving a thread to: no more than the quota pays for."""
        if self.quota_cores is None:
            return self.physical_cores
        return max(1, min(self.physical_cores, math.floor(self.quota_cores)))

    def as_dict(self) -> dict[str, Any]:
        """Give the machine as plain lists, numbers and texts, ready for JSON."""
        plain = asdict(self)
        return plain | {key: list(plain[key]) for key in ("cores", "simd", "gpus")}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Machine:
        """Build the machine again from what `as_dict` gave."""
        plain = record.check(plain)
        lists = {key: tuple(plain[key]) for key in ("simd", "gpus")}
        cores = tuple(Core(**core) for core in plain["cores"])
        return cls(**{**plain, **lists, "cores": cores, "caches": dict(plain["caches"])})

    def to_file(self, path: str | os.PathLike) -> None:
        """Write the machine to a file, so that threads can be planned for it elsewhere."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Machine:
        """Read a machine that `to_file` wrote, perhaps on another machine or by hand."""
        return cls.from_dict(record.read(path))

    def has(self, extension: str) -> bool:
        """Tell whether the processor has a SIMD or matrix extension.

        Args:
            extension: one of avx2, fma, avx512, vnni, dot, bf16, fp16, amx, neon, sve.

        Returns:
            bool: whether one of its flags is there; `extensions.told(machine.simd)` says which.

        Raises:
            ValueError: when there is no such extension; the message lists those there are.
        """
        return extensions.has(self.simd, extension)

    def summary(self) -> str:
        """Say in a few lines what was found: the stamp at the head of a notebook.

        Returns:
            str: lines of text, without a newline at the end.
        """
        quota = "" if self.quota_cores is None else f", CPU time for {self.quota_cores:g} cores"
        caches = ", ".join(f"{kind} {_binary(size)}" for kind, size in self.caches.items())
        widest = [name for name in self.simd if name.startswith(("avx", "amx", "sve", "asimd"))]
        return "\n".join(
            (
                f"{self.name}: {self.processor}",
                f"  this process may use {_count(self.physical_cores, 'physical core')} "
                f"({_count(self.logical_cores, 'hardware thread')}) on "
                f"{_count(self.sockets, 'socket')}, {_count(self.numa_nodes, 'NUMA node')}{quota}",
                f"  caches {caches or 'unknown'}; memory {_binary(self.memory_bytes)}",
                f"  vector units {' '.join(widest) or 'unknown'}",
                f"  GPUs {', '.join(self.gpus) or 'none'}; {self.os}",
            )
        )

    __str__ = summary


def describe(
    sys_root: str | os.PathLike = "/sys",
    proc_root: str | os.PathLike = "/proc",
    cpus: Iterable[int] | None = None,
) -> Machine:
    """Describe what this process may use of the machine it runs on.

    Two logical CPUs are one physical core when the kernel calls them siblings; where it does
    not say, when socket, die and core number agree; where that is missing too (containers), each
    counts as a core of its own. Leaves out clock speeds and measured rates.

    Args:
        sys_root: where the kernel's view of the hardware is mounted.
        proc_root: where its view of processes is mounted.
        cpus: logical CPUs to describe; None takes those this process may run on.

    Returns:
        Machine: the description.

    Raises:
        ValueError: when `cpus` is empty.
    """
    sysfs, proc = Path(sys_root), Path(proc_root)
    allowed = sorted(set(os.sched_getaffinity(0) if cpus is None else cpus))
    require(bool(allowed), "cpus", "name at least one logical CPU", allowed)
    info = topology.cpuinfo(proc)
    cores = topology.cores(sysfs, info, allowed)
    first = info.get(allowed[0]) or next(iter(info.values()), {})
    flags = (first.get("flags") or first.get("Features") or "").split()
    return Machine(
        name=platform.node(),
        processor=topology.processor_name(first) or platform.machine(),
        sockets=len({core.socket for core in cores}),
        numa_nodes=len({core.numa for core in cores}),
        physical_cores=len({core.core for core in cores}),
        logical_cores=len(cores),
        quota_cores=quota_cores(sysfs, proc),
        cores=cores,
        caches=topology.caches(sysfs, allowed[0]),
        simd=tuple(name for name in extensions.FLAGS if name in flags),
        memory_bytes=memory_bytes(sysfs, proc),
        gpus=_gpus(sysfs, proc),
        os=_system(),
    )


def _gpus(sysfs: Path, proc: Path) -> tuple[str, ...]:
    nvidia = [
        re.search(r"^Model:\s*(.+)$", read(path), re.MULTILINE)
        for path in sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    ]
    amd = [
        read(path.parent / "name") or "AMD GPU"
        for path in sorted((sysfs / "class/kfd/kfd/topology/nodes").glob("*/gpu_id"))
        if integer(path)
    ]
    return (*(model[1].strip() for model in nvidia if model), *amd)


def _system() -> str:
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        distribution = ""
    kernel = f"{platform.system()} {platform.release()}"
    return f"{distribution}, {kernel}" if distribution else kernel


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _binary(nbytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} bytes"
