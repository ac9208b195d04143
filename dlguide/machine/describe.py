"""The machine as this process may use it: cores, sockets, caches, memory, GPUs and limits.

The cores are those that the affinity mask and the control group allow, not all that the machine
has: a batch job or a container often gets a few of many.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dlguide.errors import require, require_count, require_known
from dlguide.machine import simd, topology
from dlguide.machine.topology import Core, read_integer, read_text


class MachineFileError(ValueError):
    """A machine's file does not describe a machine; the text names the key."""


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
        """Physical cores to compute on: at most the CPU quota, rounded down, and at least 1."""
        if self.quota_cores is None:
            return self.physical_cores
        return max(1, min(self.physical_cores, math.floor(self.quota_cores)))

    def as_dict(self) -> dict[str, Any]:
        """Return the machine as plain lists, numbers and texts, ready for JSON."""
        plain = asdict(self)
        return plain | {key: list(plain[key]) for key in ("cores", "simd", "gpus")}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], source: str = "machine") -> Machine:
        """Build the machine from what `as_dict` returned.

        Args:
            source: name of the file for error messages.

        Raises:
            MachineFileError: if a key is missing, unknown, or has an unusable value.
        """
        _check(plain, source)
        lists = {key: tuple(plain[key]) for key in ("simd", "gpus")}
        cores = tuple(Core(**core) for core in plain["cores"])
        for key, count in _counts(cores).items():
            fits = _whole(plain.get(key), 1) and plain[key] == count
            _expect(fits, source, key, f"{count}, as `cores` lists", plain.get(key, "nothing"))
        return cls(**{**plain, **lists, "cores": cores, "caches": dict(plain["caches"])})

    def to_file(self, path: str | os.PathLike) -> None:
        """Write the machine as JSON, so that threads can be planned for it elsewhere."""
        Path(path).write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Machine:
        """Read a machine that `to_file` wrote, on another machine for example.

        Raises:
            MachineFileError: if the file is not JSON or does not describe a machine.
            OSError: if the file cannot be read.
        """
        file = Path(path)
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:  # no UTF-8, or no JSON: both texts name the place
            expected = f"JSON in UTF-8 ({error})"
            raise _invalid(file.name, "the top", expected, "something else") from None
        return cls.from_dict(plain, file.name)

    def has(self, extension: str) -> bool:
        """Return whether the processor has a SIMD or matrix extension, by any of its flags.

        Args:
            extension: one of avx2, fma, avx512, vnni, dot, bf16, fp16, amx, neon, sve.

        Raises:
            ValueError: if `extension` is unknown; the message lists the known ones.
        """
        return simd.has(self.simd, extension)

    def summary(self) -> str:
        """Return a description of a few lines, as printed at the head of a notebook."""
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

    Two logical CPUs are one physical core if the kernel lists them as siblings; otherwise, if
    socket, die and core number agree; if those are missing too (containers), each is a core.
    Clock frequencies and measured rates are left out.

    Args:
        sys_root: mount point of sysfs.
        proc_root: mount point of procfs.
        cpus: logical CPUs to describe; None takes the affinity mask of this process.

    Returns:
        Machine: what this process may use of it.

    Raises:
        ValueError: if `cpus` is empty.
    """
    sysfs, proc = Path(sys_root), Path(proc_root)
    allowed = sorted(set(os.sched_getaffinity(0) if cpus is None else cpus))
    require(bool(allowed), "cpus", "name at least one logical CPU", allowed)
    info = topology.cpuinfo(proc)
    first = info.get(allowed[0]) or next(iter(info.values()), {})
    flags = (first.get("flags") or first.get("Features") or "").split()
    cores = topology.cores(sysfs, info, allowed)
    return Machine(
        name=platform.node(),
        processor=topology.processor_name(first) or platform.machine(),
        **_counts(cores),
        cores=cores,
        quota_cores=quota_cores(sysfs, proc),
        caches=topology.caches(sysfs, allowed[0]),
        simd=tuple(name for name in simd.FLAGS if name in flags),
        memory_bytes=memory_bytes(sysfs, proc),
        gpus=_gpus(sysfs, proc),
        os=_system(),
    )


def imagine(
    sockets: int = 2,
    cores: int = 24,
    threads: int = 1,
    numbering: str = "blocks",
    numa_nodes: int | None = None,
    name: str = "imagined",
) -> Machine:
    """Describe a machine by its counts, to plan threads for one that you are not on.

    The logical CPUs are numbered in one of the two common ways; second hardware threads always
    come after all first ones. With 2 sockets of 2 cores each:

        "blocks": socket 0 has CPUs 0 and 1, socket 1 has 2 and 3
        "turns":  socket 0 has CPUs 0 and 2, socket 1 has 1 and 3

    Memory, caches and vector units are left out. To plan for a real machine, write it with
    `Machine.to_file` there and read it with `Machine.from_file` here.

    Args:
        sockets: processor packages (count).
        cores: physical cores of each socket (count).
        threads: hardware threads of each core (count).
        numbering: "blocks" or "turns".
        numa_nodes: NUMA nodes of each socket (count); None for one.

    Returns:
        Machine: with the named counts.

    Raises:
        ValueError: if a count is below 1 or `numbering` is unknown.

    >>> imagine(2, 2, numbering="turns").cores[2]
    Core(cpu=2, core=1, socket=0, numa=0)
    """
    require_count(sockets, "sockets")
    require_count(cores, "cores")
    require_count(threads, "threads")
    require_known(numbering, ("blocks", "turns"), "numbering")
    nodes = require_count(1 if numa_nodes is None else numa_nodes, "numa_nodes")
    made = []
    for socket in range(sockets):
        for core in range(cores):
            number = socket * cores + core
            first = number if numbering == "blocks" else core * sockets + socket
            numa = socket * nodes + core * nodes // cores
            made += [
                Core(thread * sockets * cores + first, number, socket, numa)
                for thread in range(threads)
            ]
    listed = tuple(sorted(made, key=lambda core: core.cpu))
    return Machine(
        name=name, processor=f"{sockets} x {cores} cores", **_counts(listed), cores=listed,
        quota_cores=None, caches={}, simd=(), memory_bytes=0, gpus=(), os="",
    )  # fmt: skip


def _counts(cores: Sequence[Core]) -> dict[str, int]:
    return {
        "sockets": len({core.socket for core in cores}),
        "numa_nodes": len({core.numa for core in cores}),
        "physical_cores": len({core.core for core in cores}),
        "logical_cores": len(cores),
    }


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _quota(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (number and 0 < value < math.inf)


_TEXT = ("a text", lambda value: isinstance(value, str))
_TEXTS = ("a list of texts", lambda value: isinstance(value, list | tuple))
# What each key of a machine's file must contain, in words and as a test.
_CHECKS = {
    **dict.fromkeys(("name", "processor", "os"), _TEXT),
    **dict.fromkeys(("simd", "gpus"), _TEXTS),
    "cores": ("a list of logical CPUs", lambda value: isinstance(value, list | tuple)),
    "quota_cores": ("a positive number, or null for no limit", _quota),
    "caches": (
        'sizes in bytes by name, such as {"L1d": 32768}',
        lambda value: isinstance(value, Mapping),
    ),
    "memory_bytes": ("a whole number of at least 0", lambda value: _whole(value, 0)),
}


def _check(plain: Any, source: str) -> None:
    """Check all but the counts; an error names the element, such as cores[3].numa."""
    names, parts = ([each.name for each in fields(kind)] for kind in (Machine, Core))
    _expect(
        isinstance(plain, Mapping), source, "the top", f"an object with {', '.join(names)}", plain
    )
    for key in plain:
        _expect(key in names, source, key, f"only {', '.join(names)}", "a key of that name")
    for key, (expected, holds) in _CHECKS.items():
        fits = key in plain and holds(plain[key])
        _expect(fits, source, key, expected, plain.get(key, "nothing"))
    for key in ("simd", "gpus"):
        for at, value in enumerate(plain[key]):
            _expect(isinstance(value, str), source, f"{key}[{at}]", "a text", value)
    for name, size in plain["caches"].items():
        _expect(_whole(size, 1), source, f"caches.{name}", "a size in bytes", size)
    seen = set()
    for at, core in enumerate(plain["cores"]):
        place, fits = f"cores[{at}]", isinstance(core, Mapping) and set(core) == set(parts)
        _expect(fits, source, place, f"an object with {', '.join(parts)}", core)
        for key, value in core.items():
            expected = "a whole number of at least 0"
            _expect(_whole(value, 0), source, f"{place}.{key}", expected, value)
        cpu = core["cpu"]
        _expect(cpu not in seen, source, f"{place}.cpu", "each logical CPU once", cpu)
        seen.add(cpu)


def _expect(holds: bool, source: str, place: str, expected: str, came: Any) -> None:
    if not holds:
        raise _invalid(source, place, expected, came)


def _invalid(source: str, place: str, expected: str, came: Any) -> MachineFileError:
    return MachineFileError(
        f"{source}, at {place}: expected {expected}, got {came!r:.60}. "
        "`machine.describe().to_file(path)` writes such a file."
    )


def _control_groups(sysfs: Path, proc: Path, controller: str) -> list[Path]:
    """Return the control groups of this process from the innermost to the root, v2 and v1.

    Inside a container the path in /proc may be the host's, which is not mounted: such folders
    do not exist, and the root of the mount is the container's group.
    """
    folders = []
    # some containers hide the list: then the root of each mount is looked at
    unknown = ["0::/", f"1:{controller}:/"]
    for line in read_text(proc / "self/cgroup").splitlines() or unknown:
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
    """Return the least quota / period of the control groups, in cores; None if unlimited."""
    limits = []
    for folder in _control_groups(sysfs, proc, "cpu"):
        words = read_text(folder / "cpu.max").split()
        words = words or [read_text(folder / f"cpu.cfs_{word}_us") for word in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            limits.append(int(words[0]) / int(words[1]))
    return min(limits, default=None)


def memory_bytes(sysfs: Path, proc: Path) -> int:
    """Return the machine's memory, or the control groups' limit if that is less (bytes)."""
    total = re.search(r"^MemTotal:\s+(\d+) kB", read_text(proc / "meminfo"), re.MULTILINE)
    sizes = [int(total[1]) * 1024] if total else []
    for folder in _control_groups(sysfs, proc, "memory"):
        limits = (read_integer(folder / file) for file in ("memory.max", "memory.limit_in_bytes"))
        sizes += [limit for limit in limits if limit is not None]
    return min(sizes, default=0)


def _gpus(sysfs: Path, proc: Path) -> tuple[str, ...]:
    nvidia = [
        re.search(r"^Model:\s*(.+)$", read_text(path), re.MULTILINE)
        for path in sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    ]
    amd = [
        read_text(path.parent / "name") or "AMD GPU"
        for path in sorted((sysfs / "class/kfd/kfd/topology/nodes").glob("*/gpu_id"))
        if read_integer(path)
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
