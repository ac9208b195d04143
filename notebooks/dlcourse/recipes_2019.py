"""Thread recipes of 2019: what their variables meant, and where they place threads on a node.

    print(recipes_2019.explain("granularity=fine,compact,1,0", OMP_NUM_THREADS=22))

`variables()` is the table `data/published/recipes_2019.csv`: the variables of the PRACE best
practice guide (2019, sections 5.3 and 6.2.5) and the 2019 workshop, with what does their job today.
Placement is computed for KMP_AFFINITY and OMP_PLACES, which name sockets and cores in ways that
are easily misread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dlcourse import cpu_map
from dlcourse.cpu_map import CpuUse, short
from dlcourse.omp_affinity import (
    MAX_CPUS,
    KmpAffinity,
    Placement,
    Word,
    parse_cpu_lists,
    parse_kmp,
    parse_places,
    place_kmp,
    place_omp,
)
from dlguide import published
from dlguide.errors import require, require_count, require_known
from dlguide.machine.describe import Machine, describe
from dlguide.machine.threads import ThreadPlan, plan
from dlguide.machine.topology import Core

SERVERS = "MLSL_SERVER_AFFINITY"


@dataclass(frozen=True)
class LegacyVariable:
    """A variable of the recipes, one row of the table; `form` is that of its value."""

    variable: str
    meaning: str
    state: str  # alive, not here (it works, but TensorFlow does not use it), or dead
    note: str
    replacement: str
    form: str  # count, time, switch or text
    value: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.variable}={self.value}" if self.value else self.variable,
            f"    asked for:  {self.meaning}",
            f"    today:      {self.state}" + (f" ({self.note})" if self.note else ""),
        ]
        return "\n".join(lines + [f"    instead:    {self.replacement}"] * bool(self.replacement))


@cache
def variables() -> dict[str, LegacyVariable]:
    """Return the variables of the recipes by name."""
    rows = published.load("recipes_2019")
    return {
        row["variable"]: LegacyVariable(**{key: value or "" for key, value in row.items()})
        for row in rows
    }


def setting(name: str, value: Any) -> LegacyVariable:
    """Look up a variable, check the form of its value and keep it."""
    about = variables()[require_known(name, variables(), "name")]
    if value is None or value == "":
        return about
    word = Word.of(value, name)
    if about.form == "count":
        word.count(name, "its value")
    elif about.form == "time":
        plain = word.removesuffix("ms").removesuffix("s")
        right = plain.isdigit() or word.lower() in ("infinite", "infinity")
        word.require(right, name, "have milliseconds or `infinite` here")
    elif about.form == "switch":
        known = word.lower() in ("0", "1", "true", "false", "yes", "no", "on", "off")
        word.require(known, name, "be 0 or 1, true or false")
    return replace(about, value=str(word))


@dataclass(frozen=True)
class ProcessPlacement:
    """The logical CPUs of one process: its share of the node, its threads', its servers'."""

    cpus: tuple[int, ...]
    threads: Placement
    communicates: tuple[int, ...]

    @property
    def computes(self) -> tuple[int, ...]:
        """The logical CPUs of all its threads, ascending."""
        return tuple(sorted({cpu for cpus in self.threads for cpu in cpus}))


@dataclass(frozen=True)
class RecipeExplanation:
    """What a recipe does on a machine; `print` shows it as text."""

    machine: Machine
    processes: tuple[ProcessPlacement, ...]
    settings: tuple[LegacyVariable, ...]
    findings: tuple[str, ...]
    plan: ThreadPlan | None  # for the same job today; None if the machine is too small

    @property
    def uses(self) -> dict[int, CpuUse]:
        """The processes that use each logical CPU."""
        servers = [each.communicates for each in self.processes]
        return cpu_map.of_ranks(self.machine, [each.computes for each in self.processes], servers)

    def __str__(self) -> str:
        parts = [*map(str, self.settings), "", cpu_map.text(self.machine, self.uses), ""]
        for number, process in enumerate(self.processes):
            threads = len(process.threads)
            line = f"process {number}: {threads} thread{'s'[: threads != 1]} on CPUs "
            line += short(process.computes)
            if process.communicates:
                line += f", communicates on {short(process.communicates)}"
            parts.append(f"{line} (may use {short(process.cpus)})")
        parts += ["", *(f"- {finding}" for finding in self.findings)]
        if self.plan is not None:
            parts += ["", "the same job today, for `Cluster(plan)`:", str(self.plan)]
        return "\n".join(parts).replace("\n\n\n", "\n\n")


def explain(
    affinity: str | None = None, machine: Machine | None = None, **settings: Any
) -> RecipeExplanation:
    """Explain what the variables of a recipe do on one node of a machine.

    Threads are placed as by Intel's OpenMP of 2019, see `place_kmp`. Each process first gets its
    share of the node, as from a launcher: neighbouring cores, inside a NUMA node if possible. Its
    OpenMP threads stay inside that share, unless the CPUs are listed one by one. The servers of
    MLSL go to the listed CPUs, an equal number for each process in turn; there are as many
    processes as the list has CPUs for.
    """
    machine = describe() if machine is None else machine
    given = {} if affinity is None else {"KMP_AFFINITY": affinity}
    twice = sorted(given.keys() & settings)
    require(not twice, "affinity", "be given once", affinity, "It is KMP_AFFINITY itself.")
    given |= settings
    require(bool(given), "settings", "hold at least one variable of a recipe", given)
    for name in given:
        require_known(name, variables(), "settings")
    known = tuple(setting(name, value) for name, value in given.items())
    values = {each.variable: each.value for each in known}
    binding = [name for name in ("KMP_AFFINITY", "OMP_PLACES") if name in values]
    must, then = "bind threads in one way", "Read them one after the other."
    require(len(binding) <= 1, "settings", must, binding, then)

    there = {core.cpu for core in machine.cores}
    asked = int(values.get("OMP_NUM_THREADS", 1))
    require(asked <= MAX_CPUS, "OMP_NUM_THREADS", f"be at most {MAX_CPUS} for a node", asked)
    listed = _server_cpus(values, there)
    servers = int(values.get("MLSL_NUM_SERVERS", 0))
    count = max(1, len(listed) // servers) if listed and servers else 1
    each = servers or len(listed)
    must = f"have {count * each} CPUs: {each} for each of {count} processes on the node"
    then = "List as many CPUs as there are servers."
    require(len(listed) in (0, count * each), SERVERS, must, len(listed), then)
    placed = []
    for number, share in enumerate(plan(machine, count, oversubscribe=True).cpus):
        cores = [core for core in machine.cores if core.cpu in share]
        threads = require_count(int(values.get("OMP_NUM_THREADS", len(cores))), "OMP_NUM_THREADS")
        own = listed[number * each : (number + 1) * each]
        placement = _place(values, cores, threads, machine)
        placed.append(ProcessPlacement(tuple(sorted(share)), placement, own))
    findings = [
        *_thread_findings(machine, placed),
        *_server_findings(machine, [process.communicates for process in placed]),
        *_collisions(machine, placed),
        *_runtime_findings(machine, values, placed[0]),
    ]
    today = None
    try:
        today = plan(machine, count, each)
    except ValueError as error:
        findings.append(f"There is no plan that does this on {machine.name}: {error}")
    return RecipeExplanation(machine, tuple(placed), known, tuple(findings), today)


def _server_cpus(values: Mapping[str, str], there: set[int]) -> tuple[int, ...]:
    if not values.get(SERVERS):
        return ()
    entries = parse_cpu_lists(Word.of(values[SERVERS], SERVERS), SERVERS, there)
    return tuple(cpu for cpus in entries for cpu in cpus)


def _place(
    values: Mapping[str, str], cores: Sequence[Core], threads: int, machine: Machine
) -> Placement:
    there = {core.cpu for core in machine.cores}
    everywhere = tuple(sorted(core.cpu for core in cores))
    if "KMP_AFFINITY" in values:
        affinity = parse_kmp(values["KMP_AFFINITY"], there)
        listed = affinity.kind == "explicit"  # CPUs outside of the share, too
        return place_kmp(affinity, machine.cores if listed else cores, threads)
    if "OMP_PLACES" in values or "OMP_PROC_BIND" in values:
        places = parse_places(values.get("OMP_PLACES", "cores"), cores, there)
        return place_omp(places, values.get("OMP_PROC_BIND", "true"), threads, everywhere)
    return (everywhere,) * threads


def _thread_findings(machine: Machine, processes: Sequence[ProcessPlacement]) -> list[str]:
    """Report how many threads there are for how many cores, and which cores they share."""
    threads = sum(len(each.threads) for each in processes)
    servers = sum(len(each.communicates) for each in processes)
    core_of = {core.cpu: (core.socket, core.core) for core in machine.cores}
    cores = machine.usable_cores
    many = "more than" if threads + servers > cores else "of"
    found = [
        f"{len(processes)} x {len(processes[0].threads)} threads"
        + (f" and {servers} cores that communicate" if servers else "")
        + f" are {threads + servers}, {many} the {cores} cores there are."
    ]
    loose = sum(
        len({core_of[cpu] for cpu in cpus}) > 1 for each in processes for cpus in each.threads
    )
    if loose:
        which = "The threads" if loose == threads else f"{loose} of {threads} threads"
        found.append(
            f"{which} are not bound to cores: the kernel moves them, and with them what they "
            "have in the caches."
        )
    else:
        users = Counter(core_of[cpus[0]] for each in processes for cpus in each.threads)
        crowded = sum(number > 1 for number in users.values())
        if crowded:
            found.append(
                f"{crowded} cores have more than one computing thread, up to "
                f"{max(users.values())}, while {cores - len(users)} have none."
            )
    for rank, each in enumerate(processes):
        sockets = {core_of[cpu][0] for cpu in each.computes}
        if len(sockets) > 1:
            found.append(
                f"Process {rank} has threads on {len(sockets)} sockets: what one of them wrote "
                "into memory is far away for the others."
            )
    owners = Counter(cpu for each in processes for cpu in each.computes)
    shared = [cpu for cpu, ranks in owners.items() if ranks > 1]
    if shared:
        found.append(
            f"Processes share CPUs {short(shared)}: their threads take turns there, while others "
            "may be free."
        )
    return found


def _server_findings(machine: Machine, servers: Sequence[Sequence[int]]) -> list[str]:
    """Report on which sockets the communication cores are, under every common numbering."""
    if not any(servers) or machine.sockets < 2:
        return []
    here = {core.cpu: core.socket for core in machine.cores}
    total, sockets = machine.physical_cores, machine.sockets
    each = total // sockets
    blocks = {cpu: min(cpu % total // each, sockets - 1) for cpu in here}
    turns = {cpu: cpu % total % sockets for cpu in here}
    numberings = {
        f"numbered in blocks (CPUs 0-{each - 1} on socket 0)": blocks,
        "numbered in turn (CPU 0 on socket 0, CPU 1 on socket 1)": turns,
    }
    if here not in (blocks, turns):
        numberings = {"numbered as on this machine": here} | numberings
    found = [
        f"With cores {name}{' as here' if sockets_of == here and 'this' not in name else ''}, "
        f"{_sockets(servers, sockets_of)}."
        for name, sockets_of in numberings.items()
    ]
    if len(servers) > 1 and not any(_own_socket(servers, each) for each in (blocks, turns)):
        found.append(
            "So these cores do not lie one group per socket under either common numbering. Look "
            "at the numbering of your machine (`lscpu -e`) before you copy such a list."
        )
    return found


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


def _collisions(machine: Machine, processes: Sequence[ProcessPlacement]) -> list[str]:
    """Report communication cores on which a process computes as well."""
    core_of = {core.cpu: (core.socket, core.core) for core in machine.cores}
    busy: dict[tuple[int, int], set[int]] = {}
    for rank, each in enumerate(processes):
        for cpu in each.computes:
            busy.setdefault(core_of[cpu], set()).add(rank)
    met = sorted({cpu for each in processes for cpu in each.communicates if core_of[cpu] in busy})
    if not met:
        return []
    ranks = sorted(set().union(*(busy[core_of[cpu]] for cpu in met)))
    return [
        f"CPUs {short(met)} should only communicate, but threads of process "
        f"{' and '.join(map(str, ranks))} compute on the same cores, unless something else keeps "
        "them away."
    ]


def _runtime_findings(
    machine: Machine, values: Mapping[str, str], process: ProcessPlacement
) -> list[str]:
    """Report if a later runtime places the threads of `compact` elsewhere."""
    affinity = parse_kmp(values["KMP_AFFINITY"]) if "KMP_AFFINITY" in values else KmpAffinity()
    cores = [core for core in machine.cores if core.cpu in process.cpus]
    later = place_kmp(affinity, cores, len(process.threads), all_levels=True)
    if affinity.kind != "compact" or later == process.threads:
        return []
    return [
        "Each core has one hardware thread here. The runtime of 2019 then leaves out that level "
        "and deals the threads to the sockets in turn; later runtimes keep it: process 0 would use "
        f"CPUs {short(sorted(set().union(*later)))}."
    ]
