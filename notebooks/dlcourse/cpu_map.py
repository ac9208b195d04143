"""Map of a node: the ranks that compute and communicate on each logical CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dlguide.errors import require
from dlguide.machine.describe import Machine
from dlguide.machine.threads import ThreadPlan
from dlguide.machine.topology import format_cpus

_ROW = 24  # cores in a row of the map


@dataclass(frozen=True)
class CpuUse:
    """The ranks that compute on one logical CPU and those that communicate on it."""

    computes: tuple[int, ...] = ()
    communicates: tuple[int, ...] = ()

    @property
    def ranks(self) -> list[int]:
        """All of them, ascending."""
        return sorted({*self.computes, *self.communicates})

    @property
    def shared(self) -> bool:
        """Whether several ranks use it, or one rank computes and communicates on it."""
        return len(self.ranks) > 1 or bool(self.computes and self.communicates)

    @property
    def sign(self) -> str:
        """Two characters for the text map: "0 ", "0*" (communicates), "! " (shared), ". "."""
        if not self.ranks:
            return ". "
        rank = "0123456789abcdefghijklmnopqrstuvwxyz#"[min(self.ranks[0], 36)]
        return ("!" if self.shared else rank) + ("*" if self.communicates else " ")


def of_plan(plan: ThreadPlan, machine: Machine) -> dict[int, CpuUse]:
    """Return the use of each logical CPU of a machine under a thread plan."""
    there = {core.cpu for core in machine.cores}
    missing = sorted({cpu for cpus in plan.cpus for cpu in cpus} - there)
    must = f"name CPUs of the machine, which has {format_cpus(there)}"
    then = "Check the numbering with `lscpu -e`."
    require(not missing, "plan", must, format_cpus(missing), then)
    kept = plan.comm_cpus or ((),) * plan.ranks
    compute = [sorted(set(cpus) - set(own)) for cpus, own in zip(plan.cpus, kept, strict=True)]
    return of_ranks(machine, compute, kept)


def of_ranks(
    machine: Machine, compute: Sequence[Sequence[int]], communicate: Sequence[Sequence[int]]
) -> dict[int, CpuUse]:
    """Return the use of each logical CPU, given the CPUs that each rank computes and sends on."""
    uses = {}
    for core in machine.cores:
        of = [
            [r for r, cpus in enumerate(each) if core.cpu in cpus]
            for each in (compute, communicate)
        ]
        uses[core.cpu] = CpuUse(*map(tuple, of))
    return uses


def by_node(machine: Machine) -> dict[tuple[int, int], list[list[int]]]:
    """Return the cores in order, each as the list of its CPUs, by (socket, NUMA node)."""
    found: dict[tuple[int, int], dict[int, list[int]]] = {}
    for core in sorted(machine.cores, key=lambda core: (core.socket, core.numa, core.core)):
        node = found.setdefault((core.socket, core.numa), {})
        node.setdefault(core.core, []).append(core.cpu)
    return {where: [sorted(cpus) for cpus in node.values()] for where, node in found.items()}


def text(machine: Machine, uses: Mapping[int, CpuUse]) -> str:
    """Draw the map as text."""
    lines = ["each sign is a CPU: 0 rank 0 computes, 0* it communicates, ! shared, . free"]
    for (socket, numa), cores in by_node(machine).items():
        cpus = short([cpu for core in cores for cpu in core])
        lines.append(f"socket {socket}, NUMA node {numa}: {len(cores)} cores, CPUs {cpus}")
        for begin in range(0, len(cores), _ROW):
            part = cores[begin : begin + _ROW]
            for thread in range(max(map(len, part))):
                signs = [uses[core[thread]].sign for core in part if thread < len(core)]
                head = f"  from CPU {part[0][thread]:3} " if thread < len(part[0]) else ""
                lines.append((head + " ".join(signs)).rstrip())
    return "\n".join(lines)


def short(cpus: Sequence[int]) -> str:
    """Format logical CPUs as ranges, with a stride if that is shorter: 0-6:2."""
    ordered = sorted(set(cpus))
    strides = {after - before for before, after in pairwise(ordered)}
    if len(ordered) > 3 and len(strides) == 1 and strides != {1}:
        return f"{ordered[0]}-{ordered[-1]}:{strides.pop()}"
    return format_cpus(ordered)
