"""Logical CPUs, cores, sockets, NUMA nodes and caches, as the kernel reports them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Arm's kernel reports numbers for maker and model: common servers, from Arm's own tables
_ARM = {
    ("0x41", "0xd0c"): "Arm Neoverse N1",
    ("0x41", "0xd40"): "Arm Neoverse V1",
    ("0x41", "0xd49"): "Arm Neoverse N2",
    ("0x41", "0xd4f"): "Arm Neoverse V2",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0xc0", "0xac3"): "Ampere-1",
}
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Core:
    """One logical CPU and the physical core it belongs to.

    Args:
        cpu: logical CPU, the number the operating system uses in affinity masks.
        core: physical core, unique in the whole machine; siblings share it.
        socket: processor package.
        numa: NUMA node, whose memory is nearest.
    """

    cpu: int
    core: int
    socket: int
    numa: int


def read_text(path: Path) -> str:
    """Return a small file's text without surrounding white space; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_integer(path: Path) -> int | None:
    """Return the whole number that a file holds; None if it holds anything else."""
    text = read_text(path)
    return int(text) if re.fullmatch(r"-?\d+", text) else None


def parse_cpus(text: str) -> list[int]:
    """Parse a list of logical CPUs in the kernel's form.

    >>> parse_cpus("0-3,8")
    [0, 1, 2, 3, 8]
    """
    spans = [part.partition("-") for part in text.split(",") if part]
    return [cpu for low, _, high in spans for cpu in range(int(low), int(high or low) + 1)]


def format_cpus(cpus: Iterable[int]) -> str:
    """Format logical CPUs as the kernel does.

    >>> format_cpus([8, 0, 1, 2, 3])
    '0-3,8'
    """
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans)


def cpuinfo(proc: Path) -> dict[int, dict[str, str]]:
    """Return the fields of /proc/cpuinfo by logical CPU."""
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        for lines in (block.splitlines() for block in read_text(proc / "cpuinfo").split("\n\n"))
    ]
    return {
        int(block["processor"]): block for block in blocks if block.get("processor", "").isdigit()
    }


def processor_name(block: dict[str, str]) -> str:
    """Return the processor model from the fields of one logical CPU."""
    maker, part = block.get("CPU implementer", ""), block.get("CPU part", "")
    arm = f"Arm processor, maker {maker}, part {part}" if part else ""
    model = block.get("model name") or block.get("cpu")
    return model or _ARM.get((maker.lower(), part.lower()), arm)


def cores(sysfs: Path, info: dict[int, dict[str, str]], allowed: Iterable[int]) -> tuple[Core, ...]:
    """Return the physical core, socket and NUMA node of logical CPUs."""
    allowed = tuple(allowed)
    folder = sysfs / "devices/system/cpu"
    # numbered over all online CPUs, so that a core has one number in every process
    online = sorted({*parse_cpus(read_text(folder / "online")), *allowed})
    nodes = {
        cpu: int(path.parent.name[4:])
        for path in sorted((sysfs / "devices/system/node").glob("node[0-9]*/cpulist"))
        for cpu in parse_cpus(read_text(path))
    }
    places = {cpu: _place(folder / f"cpu{cpu}/topology", info.get(cpu, {}), cpu) for cpu in online}
    numbers = {place: number for number, place in enumerate(sorted(set(places.values())))}
    return tuple(
        Core(cpu, numbers[places[cpu]], places[cpu][0], nodes.get(cpu, 0)) for cpu in allowed
    )


def _place(folder: Path, info: dict[str, str], cpu: int) -> tuple[int, int, int]:
    """Return (socket, die, core), equal for siblings only; die -1 is unknown."""
    socket = read_integer(folder / "physical_package_id")
    if socket is None:
        socket = int(info.get("physical id", 0))
    siblings = parse_cpus(
        read_text(folder / "core_cpus_list") or read_text(folder / "thread_siblings_list")
    )
    if siblings:
        return max(socket, 0), -1, min(siblings)
    core = read_integer(folder / "core_id")
    if core is None:
        core = int(info.get("core id", -1))
    die = read_integer(folder / "die_id")
    # the kernel writes -1 where the firmware gives no number
    return (max(socket, 0), -1, cpu) if core < 0 else (max(socket, 0), max(die or 0, 0), core)


def caches(sysfs: Path, cpu: int) -> dict[str, int]:
    """Return the size of each cache of one logical CPU (bytes)."""
    return {kind: size for kind, size, _ in _caches(sysfs, cpu)}


def cache_sets(sysfs: Path, cpu: int) -> dict[str, tuple[int, int, int]]:
    """Return sets, places in a set, and bytes of a line of each cache of one logical CPU.

    A line may only be kept in the set that its address chooses. Caches whose sets the kernel does
    not report are left out.
    """
    found = {}
    for level, folder in _cache_folders(sysfs, cpu):
        files = ("number_of_sets", "ways_of_associativity", "coherency_line_size")
        sets, places, line_bytes = (read_integer(folder / name) or 0 for name in files)
        if min(sets, places, line_bytes) > 0:
            found[level] = sets, places, line_bytes
    return found


def last_level_cache_bytes(sysfs: Path, cpus: Iterable[int]) -> int:
    """Return the total size of the last-level caches of logical CPUs; shared ones count once.

    Arrays for measuring memory must be much larger than this.
    """
    found: dict[tuple[str, str], int] = {}
    for cpu in cpus:
        levels = _caches(sysfs, cpu)
        if levels:
            kind, size, sharers = levels[-1]
            found[kind, sharers or str(cpu)] = size
    return sum(found.values())


def clock_hz(sysfs: Path, proc: Path, cpu: int) -> float | None:
    """Return the clock frequency that the system states for a logical CPU; None if it has none.

    This is the highest frequency that the kernel may set or, if it sets none (virtual machines),
    the one in /proc/cpuinfo. The processor itself may run faster or slower.
    """
    highest = read_integer(sysfs / f"devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
    if highest:
        return 1e3 * highest
    stated = re.fullmatch(r"\d+(\.\d+)?", cpuinfo(proc).get(cpu, {}).get("cpu MHz", ""))
    return 1e6 * float(stated[0]) if stated else None


def _caches(sysfs: Path, cpu: int) -> list[tuple[str, int, str]]:
    found = []
    for level, folder in _cache_folders(sysfs, cpu):
        size = re.fullmatch(r"(\d+)([KMG]?)", read_text(folder / "size"))
        if size:
            nbytes = int(size[1]) * _UNITS[size[2]]
            found.append((level, nbytes, read_text(folder / "shared_cpu_list")))
    return found


def _cache_folders(sysfs: Path, cpu: int) -> list[tuple[str, Path]]:
    """Name and folder of each cache, such as "L1d"."""
    found = []
    for folder in sorted((sysfs / f"devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*")):
        kind = {"Data": "d", "Instruction": "i"}.get(read_text(folder / "type"), "")
        found.append((f"L{read_text(folder / 'level')}{kind}", folder))
    return found
