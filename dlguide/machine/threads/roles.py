"""Who uses which logical CPU, and for what: the map of a node as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dlguide.errors import require
from dlguide.machine.affinity import spans
from dlguide.machine.describe import Machine
from dlguide.machine.threads.planning import ThreadPlan

ROW = 24  # cores in a row of the map


@dataclass(frozen=True)
class Role:
    """What one logical CPU is used for."""

    computes: tuple[int, ...] = ()
    communicates: tuple[int, ...] = ()

    @property
    def sign(self) -> str:
        """Two characters for the map, such as "0 ", "0*" (communicates), "! " (several), ". "."""
        ranks = sorted({*self.computes, *self.communicates})
        if not ranks:
            return ". "
        several = len(ranks) > 1 or bool(self.computes and self.communicates)
        who = "!" if several else _letter(ranks[0])
        return who + ("*" if self.communicates else " ")


def of_plan(plan: ThreadPlan, machine: Machine) -> dict[int, Role]:
    """Say what a thread plan uses each logical CPU for."""
    require_on(machine, [cpu for cpus in plan.cpus for cpu in cpus], "plan")
    kept = plan.comm_cpus or ((),) * plan.ranks
    compute = [sorted(set(cpus) - set(own)) for cpus, own in zip(plan.cpus, kept, strict=True)]
    return of_ranks(machine, compute, kept)


def of_ranks(
    machine: Machine,
    compute: Sequence[Sequence[int]],
    communicate: Sequence[Sequence[int]],
) -> dict[int, Role]:
    """Turn lists by rank into roles by logical CPU."""

    def users(lists: Sequence[Sequence[int]], cpu: int) -> tuple[int, ...]:
        return tuple(rank for rank, cpus in enumerate(lists) if cpu in cpus)

    lists = [[set(cpus) for cpus in each] for each in (compute, communicate)]
    return {
        core.cpu: Role(users(lists[0], core.cpu), users(lists[1], core.cpu))
        for core in machine.cores
    }


def require_on(machine: Machine, cpus: Sequence[int], name: str) -> None:
    """Raise unless the machine has all these CPUs."""
    there = {core.cpu for core in machine.cores}
    missing = sorted(set(cpus) - there)
    must = f"name CPUs of the machine, which has {spans(there)}"
    require(not missing, name, must, spans(missing), "Check the numbering with `lscpu -e`.")


def rows(machine: Machine) -> dict[tuple[int, int], list[list[int]]]:
    """Arrange the logical CPUs as one sees them: node, core, hardware thread.

    Args:
        machine: the machine.

    Returns:
        dict: by (socket, NUMA node) the cores in order, each as the list of its CPUs.
    """
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for core in sorted(machine.cores, key=lambda core: (core.socket, core.numa, core.core)):
        node = found.setdefault((core.socket, core.numa), {})
        node.setdefault(core.core, []).append(core.cpu)
    return {where: [sorted(cpus) for cpus in node.values()] for where, node in found.items()}


def text_map(machine: Machine, roles: Mapping[int, Role]) -> str:
    """Draw who uses which core, as text."""
    lines = ["each sign is a CPU: 0 rank 0 computes, 0* it communicates, ! shared, . free"]
    for (socket, numa), cores in rows(machine).items():
        cpus = [cpu for core in cores for cpu in core]
        lines.append(f"socket {socket}, NUMA node {numa}: {len(cores)} cores, CPUs {short(cpus)}")
        for begin in range(0, len(cores), ROW):
            part = cores[begin : begin + ROW]
            for thread in range(max(map(len, part))):
                signs = [roles[core[thread]].sign for core in part if thread < len(core)]
                head = f"  from CPU {part[0][thread]:3} " if thread < len(part[0]) else ""
                lines.append((head + " ".join(signs)).rstrip())
    return "\n".join(lines)


def short(cpus: Sequence[int]) -> str:
    """Write CPUs as spans, with a stride where that is shorter.

    >>> short([0, 2, 4, 6])
    '0-6:2'
    """
    ordered = sorted(set(cpus))
    if len(ordered) > 3:
        strides = {after - before for before, after in pairwise(ordered)}
        if len(strides) == 1 and strides != {1}:
            return f"{ordered[0]}-{ordered[-1]}:{strides.pop()}"
    return spans(ordered)


def _letter(rank: int) -> str:
    signs = "0123456789abcdefghijklmnopqrstuvwxyz"
    return signs[rank] if rank < len(signs) else "#"
