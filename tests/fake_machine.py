"""Machines that exist only as files: trees such as the kernel shows under /sys and /proc."""

from __future__ import annotations

from pathlib import Path

from dlguide.machine import Core, Machine


def write(path: Path, text: object) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def tree(
    root: Path,
    sockets: int = 1,
    cores: int = 2,
    threads: int = 1,
    siblings: bool = True,
    model: str = "Some Processor",
    flags: str = "sse4_2 avx avx2 fma",
    nodes: int = 1,
) -> tuple[Path, Path]:
    """Write a machine's files, numbered as Linux does: first all cores, then their siblings.

    Core numbers have a gap and repeat on each socket, as on real Xeons. Each socket has so many
    NUMA `nodes`, which share its cores evenly.
    """
    sys_root, proc_root = root / "sys", root / "proc"
    total = sockets * cores
    info = []
    for cpu in range(total * threads):
        place, socket = cpu % total, cpu % total // cores
        number = place % cores
        core_id = number if number < cores / 2 else number + 2
        folder = sys_root / f"devices/system/cpu/cpu{cpu}"
        write(folder / "topology/physical_package_id", socket)
        write(folder / "topology/core_id", core_id)
        if siblings:
            same = ",".join(str(place + thread * total) for thread in range(threads))
            write(folder / "topology/thread_siblings_list", same)
        for index, (level, kind, size) in enumerate(
            [(1, "Data", "32K"), (1, "Instruction", "32K"), (2, "Unified", "1024K")]
        ):
            write(folder / f"cache/index{index}/level", level)
            write(folder / f"cache/index{index}/type", kind)
            write(folder / f"cache/index{index}/size", size)
        info.append(
            f"processor\t: {cpu}\nmodel name\t: {model}\nflags\t\t: {flags}\n"
            f"physical id\t: {socket}\ncore id\t\t: {core_id}\n"
        )
    write(sys_root / "devices/system/cpu/online", f"0-{total * threads - 1}")
    each = cores // nodes
    for node in range(sockets * nodes):
        low = node * each
        spans = [
            f"{low + thread * total}-{low + each - 1 + thread * total}" for thread in range(threads)
        ]
        write(sys_root / f"devices/system/node/node{node}/cpulist", ",".join(spans))
    write(proc_root / "cpuinfo", "\n".join(info))
    write(proc_root / "meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB")
    write(proc_root / "self/cgroup", "0::/")
    return sys_root, proc_root


def machine(*nodes: int, threads: int = 1, quota: float | None = None) -> Machine:
    """Make a machine with so many physical cores on each NUMA node, one socket a node."""
    places = [(numa, core) for numa, count in enumerate(nodes) for core in range(count)]
    cores = tuple(
        Core(cpu=thread * len(places) + number, core=number, socket=numa, numa=numa)
        for thread in range(threads)
        for number, (numa, _) in enumerate(places)
    )
    return Machine(
        name="fake",
        processor="Some Processor",
        sockets=len(nodes),
        numa_nodes=len(nodes),
        physical_cores=len(places),
        logical_cores=len(cores),
        quota_cores=quota,
        cores=cores,
        caches={},
        simd=(),
        memory_bytes=2**34,
        gpus=(),
        os="none",
    )
