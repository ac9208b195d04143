"""What is worth knowing about a placing of threads: crowding, borders, communication cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from dlguide.machine.describe import Machine
from dlguide.machine.threads import kmp
from dlguide.machine.threads.roles import short


class Placed(Protocol):
    """A process with the CPUs of each thread, those it communicates on, and its share."""

    threads: tuple[tuple[int, ...], ...]
    communicates: tuple[int, ...]
    cpus: tuple[int, ...]


def of_processes(machine: Machine, processes: Sequence[Placed]) -> list[str]:
    """Say how many threads there are for how many cores, and who shares what."""
    threads = sum(len(each.threads) for each in processes)
    servers = sum(len(each.communicates) for each in processes)
    core_of = {core.cpu: (core.socket, core.core) for core in machine.cores}
    cores = machine.usable_cores
    many = "more than" if threads + servers > cores else "of"
    said = [
        f"{len(processes)} x {len(processes[0].threads)} threads"
        + (f" and {servers} cores that communicate" if servers else "")
        + f" are {threads + servers}, {many} the {cores} cores there are."
    ]
    loose = sum(
        len({core_of[cpu] for cpu in cpus}) > 1 for each in processes for cpus in each.threads
    )
    bound = not loose
    if loose:
        which = "The threads" if loose == threads else f"{loose} of {threads} threads"
        said.append(
            f"{which} are not bound to cores: the kernel moves them, and with them what they "
            "have in the caches."
        )
    users = Counter(core_of[cpus[0]] for each in processes for cpus in each.threads if bound)
    crowded = sorted(core for core, number in users.items() if number > 1)
    if crowded:
        text = f"{len(crowded)} cores have more than one computing thread, up to"
        said.append(f"{text} {max(users.values())}, while {cores - len(users)} have none.")
    for rank, each in enumerate(processes):
        sockets = {core_of[cpu][0] for cpus in each.threads for cpu in cpus}
        if len(sockets) > 1 and machine.sockets > 1:
            said.append(
                f"Process {rank} has threads on {len(sockets)} sockets: what one of them wrote "
                "into memory is far away for the others."
            )
    owners: dict[int, set[int]] = {}
    for rank, each in enumerate(processes):
        for cpu in {cpu for cpus in each.threads for cpu in cpus}:
            owners.setdefault(cpu, set()).add(rank)
    shared = [cpu for cpu, ranks in owners.items() if len(ranks) > 1]
    if shared:
        text = f"Processes share CPUs {short(shared)}"
        said.append(f"{text}: their threads take turns there, while others may be free.")
    return said


def of_servers(machine: Machine, servers: Sequence[Sequence[int]]) -> list[str]:
    """Say on which sockets the communication cores lie, under every common numbering."""
    if not any(servers) or machine.sockets < 2:
        return []
    core_of = {core.cpu: core for core in machine.cores}
    here = {cpu: core.socket for cpu, core in core_of.items()}
    total, sockets = machine.physical_cores, machine.sockets
    each = total // sockets
    numberings = {
        f"numbered in blocks (CPUs 0-{each - 1} on socket 0)": {
            cpu: min(cpu % total // each, sockets - 1) for cpu in here
        },
        "numbered in turn (CPU 0 on socket 0, CPU 1 on socket 1)": {
            cpu: cpu % total % sockets for cpu in here
        },
    }
    own = {name: _own_socket(servers, numbering) for name, numbering in numberings.items()}
    if here not in numberings.values():
        numberings = {"numbered as on this machine": here} | numberings
    said = [
        f"With cores {name}{' as here' if numbering == here and 'this' not in name else ''}, "
        f"{_sockets(servers, numbering)}."
        for name, numbering in numberings.items()
    ]
    if len(servers) > 1 and not any(own.values()):
        said.append(
            "So these cores do not lie one group per socket under either common numbering. Look "
            "at the numbering of your machine (`lscpu -e`) before you copy such a list."
        )
    return said


def of_levels(
    machine: Machine, values: Mapping[str, str], processes: Sequence[Placed]
) -> list[str]:
    """Say where computing and communication meet, and where a later runtime differs."""
    said = []
    core_of = {core.cpu: (core.socket, core.core) for core in machine.cores}
    busy: dict[tuple[int, int], set[int]] = {}
    for rank, each in enumerate(processes):
        for cpus in each.threads:
            for cpu in cpus:
                busy.setdefault(core_of[cpu], set()).add(rank)
    met = sorted({cpu for each in processes for cpu in each.communicates if core_of[cpu] in busy})
    if met:
        ranks = sorted(set().union(*(busy[core_of[cpu]] for cpu in met)))
        who = "process " + " and ".join(map(str, ranks))
        said.append(
            f"CPUs {short(met)} should only communicate, but threads of {who} compute on the same "
            "cores, unless something else keeps them away."
        )
    affinity = kmp.parse(values["KMP_AFFINITY"]) if "KMP_AFFINITY" in values else None
    if affinity is not None and affinity.kind == "compact":
        for each in processes[:1]:
            cores = [core for core in machine.cores if core.cpu in each.cpus]
            later = kmp.place(affinity, cores, len(each.threads), all_levels=True)
            if later != each.threads:
                said.append(
                    "Each core has one hardware thread here. The runtime of 2019 then leaves out "
                    "that level and deals the threads to the sockets in turn; later runtimes "
                    f"keep it: process 0 would use CPUs {short(sorted(set().union(*later)))}."
                )
    return said


def _sockets(servers: Sequence[Sequence[int]], socket_of: Mapping[int, int]) -> str:
    parts = []
    for rank, cpus in enumerate(servers):
        where = sorted({socket_of[cpu] for cpu in cpus})
        on = f"socket{'s'[: len(where) != 1]} {' and '.join(map(str, where))}"
        parts.append(f"process {rank} communicates on {on} (CPUs {', '.join(map(str, cpus))})")
    return ", ".join(parts)


def _own_socket(servers: Sequence[Sequence[int]], socket_of: Mapping[int, int]) -> bool:
    where = [{socket_of[cpu] for cpu in cpus} for cpus in servers]
    return all(len(each) == 1 for each in where) and len(set().union(*where)) == len(where)
