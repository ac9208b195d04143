"""Where the logical CPUs lie: cores, sockets, NUMA nodes and caches, as the kernel tells."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dlguide.machine.kernel_files import cpu_list, integer, read

# Arm's kernel gives numbers for maker and model: the servers one meets, by Arm's own tables.
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


def cpuinfo(proc: Path) -> dict[int, dict[str, str]]:
    """Read what the kernel says of each logical CPU."""
    blocks = [
        {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        for lines in (block.splitlines() for block in read(proc / "cpuinfo").split("\n\n"))
    ]
    return {
        int(block["processor"]): block for block in blocks if block.get("processor", "").isdigit()
    }


def processor_name(block: dict[str, str]) -> str:
    """Find the model of the processor in what the kernel says of one logical CPU."""
    maker, part = block.get("CPU implementer", ""), block.get("CPU part", "")
    arm = f"Arm processor, maker {maker}, part {part}" if part else ""
    said = block.get("model name") or block.get("cpu")
    return said or _ARM.get((maker.lower(), part.lower()), arm)


def cores(sysfs: Path, info: dict[int, dict[str, str]], allowed: Iterable[int]) -> tuple[Core, ...]:
    """Find the physical core, socket and NUMA node of logical CPUs."""
    allowed = tuple(allowed)
    folder = sysfs / "devices/system/cpu"
    # numbered over all online CPUs, so that a core has one number in every process
    everyone = sorted({*cpu_list(read(folder / "online")), *allowed})
    nodes = {
        cpu: int(path.parent.name[4:])
        for path in sorted((sysfs / "devices/system/node").glob("node[0-9]*/cpulist"))
        for cpu in cpu_list(read(path))
    }
    places = {
        cpu: _place(folder / f"cpu{cpu}/topology", info.get(cpu, {}), cpu) for cpu in everyone
    }
    numbers = {place: number for number, place in enumerate(sorted(set(places.values())))}
    return tuple(
        Core(cpu, numbers[places[cpu]], places[cpu][0], nodes.get(cpu, 0)) for cpu in allowed
    )


def _place(folder: Path, info: dict[str, str], cpu: int) -> tuple[int, int, int]:
    """Give (socket, die, core) of a logical CPU, equal for siblings only; die -1 is unknown."""
    socket = integer(folder / "physical_package_id")
    if socket is None:
        socket = int(info.get("physical id", 0))
    siblings = cpu_list(read(folder / "core_cpus_list") or read(folder / "thread_siblings_list"))
    if siblings:
        return max(socket, 0), -1, min(siblings)
    core = integer(folder / "core_id")
    if core is None:
        core = int(info.get("core id", -1))
    die = integer(folder / "die_id")
    # the kernel writes -1 for what the firmware does not tell
    return (max(socket, 0), -1, cpu) if core < 0 else (max(socket, 0), max(die or 0, 0), core)


def caches(sysfs: Path, cpu: int) -> dict[str, int]:
    """Find the caches of one logical CPU."""
    return {kind: size for kind, size, _ in _caches(sysfs, cpu)}


def last_level_cache_bytes(sysfs: Path, cpus: Iterable[int]) -> int:
    """Add up the last-level caches that logical CPUs can use; shared ones count once.

    What is measured as memory must be much larger than this.
    """
    found: dict[tuple[str, str], int] = {}
    for cpu in cpus:
        levels = _caches(sysfs, cpu)
        if levels:
            kind, size, sharers = levels[-1]
            found[kind, sharers or str(cpu)] = size
    return sum(found.values())


def clock_hz(sysfs: Path, proc: Path, cpu: int) -> float | None:
    """Find the clock that the system states for a logical CPU.

    The highest one that the kernel may set; where it sets none (virtual machines), the one in
    /proc/cpuinfo. The processor itself may run faster or slower than either says.
    """
    highest = integer(sysfs / f"devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq")
    if highest:
        return 1e3 * highest
    stated = re.fullmatch(r"\d+(\.\d+)?", cpuinfo(proc).get(cpu, {}).get("cpu MHz", ""))
    return 1e6 * float(stated[0]) if stated else None


def _caches(sysfs: Path, cpu: int) -> list[tuple[str, int, str]]:
    found = []
    for folder in sorted((sysfs / f"devices/system/cpu/cpu{cpu}/cache").glob("index[0-9]*")):
        kind = {"Data": "d", "Instruction": "i"}.get(read(folder / "type"), "")
        size = re.fullmatch(r"(\d+)([KMG]?)", read(folder / "size"))
        if size:
            level = f"L{read(folder / 'level')}{kind}"
            nbytes = int(size[1]) * _UNITS[size[2]]
            found.append((level, nbytes, read(folder / "shared_cpu_list")))
    return found
