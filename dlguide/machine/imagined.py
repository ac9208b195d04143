"""A machine that is not here: made from its numbers, to plan for it."""

from __future__ import annotations

from dlguide.errors import require_count, require_known
from dlguide.machine.describe import Machine
from dlguide.machine.topology import Core


def imagine(
    sockets: int = 2,
    cores: int = 24,
    threads: int = 1,
    numbering: str = "blocks",
    numa_nodes: int | None = None,
    name: str = "imagined",
) -> Machine:
    """Make the description of a machine you are not on, for `threads.plan` and `threads.explain`.

    The logical CPUs are numbered in one of the two common ways; second hardware threads always
    come after all the first ones. Of 2 sockets with 2 cores each:

        "blocks": socket 0 has CPUs 0 and 1, socket 1 has 2 and 3
        "turns":  socket 0 has CPUs 0 and 2, socket 1 has 1 and 3

    Leaves out memory, caches, and vector units. The description of a real machine travels better
    as a file: `Machine.to_file` there, `Machine.from_file` here.

    Args:
        sockets: processor packages (count).
        cores: physical cores of each socket (count).
        threads: hardware threads of each core (count).
        numbering: "blocks" or "turns".
        numa_nodes: NUMA nodes of each socket (count); None for one.
        name: what it is called.

    Returns:
        Machine: the description.

    Raises:
        ValueError: when a count is below 1 or the numbering unknown.

    >>> imagine(2, 2, numbering="turns").cores[2]
    Core(cpu=2, core=1, socket=0, numa=0)
    """
    require_count(sockets, "sockets")
    require_count(cores, "cores")
    require_count(threads, "threads")
    require_known(numbering, ("blocks", "turns"), "numbering")
    nodes = require_count(1 if numa_nodes is None else numa_nodes, "numa_nodes")
    total = sockets * cores
    made = []
    for socket in range(sockets):
        for core in range(cores):
            first = socket * cores + core if numbering == "blocks" else core * sockets + socket
            numa = socket * nodes + core * nodes // cores
            number = socket * cores + core
            made += [
                Core(thread * total + first, number, socket, numa) for thread in range(threads)
            ]
    return Machine(
        name=name,
        processor=f"{sockets} x {cores} cores",
        sockets=sockets,
        numa_nodes=len({core.numa for core in made}),
        physical_cores=total,
        logical_cores=total * threads,
        quota_cores=None,
        cores=tuple(sorted(made, key=lambda core: core.cpu)),
        caches={},
        simd=(),
        memory_bytes=0,
        gpus=(),
        os="",
    )
