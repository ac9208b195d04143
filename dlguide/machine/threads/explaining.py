"""Read a thread recipe of 2019: who runs where, what is wrong with it, what does it now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require, require_count, require_known
from dlguide.machine.describe import Core, Machine, describe
from dlguide.machine.threads import findings, kmp, places, recipes, roles
from dlguide.machine.threads.planning import ThreadPlan, plan
from dlguide.machine.threads.reading import MAX_LIST, cpu_words, whole
from dlguide.machine.threads.recipes import Line
from dlguide.machine.threads.roles import Role

_BINDINGS = ("KMP_AFFINITY", "GOMP_CPU_AFFINITY", "OMP_PLACES")


@dataclass(frozen=True)
class Process:
    """Where one process of the recipe runs."""

    cpus: tuple[int, ...]
    threads: tuple[tuple[int, ...], ...]
    communicates: tuple[int, ...]

    @property
    def computes(self) -> tuple[int, ...]:
        """The CPUs of all its threads, ascending."""
        return tuple(sorted({cpu for cpus in self.threads for cpu in cpus}))


@dataclass(frozen=True)
class Explanation:
    """What a recipe means on a machine; `print` shows it, the course draws it.

    Args:
        machine: the machine it was read for.
        processes: where each process of one node runs.
        lines: every word with what it did and what does its job now.
        findings: what is worth knowing or wrong, in sentences.
        plan: the thread plan that does the same job now; None when the machine is too small.
    """

    machine: Machine
    processes: tuple[Process, ...]
    lines: tuple[Line, ...]
    findings: tuple[str, ...]
    plan: ThreadPlan | None

    @property
    def roles(self) -> dict[int, Role]:
        """What each logical CPU is used for."""
        compute = [process.computes for process in self.processes]
        return roles.of_ranks(self.machine, compute, [each.communicates for each in self.processes])

    def __str__(self) -> str:
        parts = [str(line) for line in self.lines]
        parts += ["", roles.text_map(self.machine, self.roles), ""]
        for number, process in enumerate(self.processes):
            threads = len(process.threads)
            text = f"process {number}: {threads} thread{'s'[: threads != 1]} on CPUs "
            text += roles.short(process.computes)
            if process.communicates:
                text += f", communicates on {roles.short(process.communicates)}"
            parts.append(f"{text} (may use {roles.short(process.cpus)})")
        parts += ["", *(f"- {finding}" for finding in self.findings)]
        if self.plan is not None:
            parts += ["", "the same job today, for `Cluster(plan)`:", str(self.plan)]
        return "\n".join(parts).replace("\n\n\n", "\n\n")


def explain(
    affinity: str | None = None,
    machine: Machine | None = None,
    processes: int | None = None,
    pinned: bool = True,
    **variables: Any,
) -> Explanation:
    """Read the variables of a recipe and say what they do on one node of a machine.

    The placing is that of Intel's OpenMP of 2019, see `kmp.place`. Each process gets its share of
    the node first, as launchers do: neighbouring cores, inside a NUMA node where possible. Its
    OpenMP threads stay inside that share, unless the CPUs are listed one by one. The servers of
    MLSL go to the listed CPUs, so many for each process in turn.

    Args:
        affinity: value of KMP_AFFINITY; None for none.
        machine: one node; None describes this machine. It may be one you are not on.
        processes: processes on the node (count); None for as many as MLSL_SERVER_AFFINITY has
            CPUs for, or else one.
        pinned: whether the launcher binds each process to its share; False as after
            `mpirun -bind-to none`.
        variables: the other words, such as OMP_NUM_THREADS=22; `recipes.RECIPES` has them all.

    Returns:
        Explanation: words, places, findings, and today's plan.

    Raises:
        ValueError: when a word or a number is not understood; the text says what was expected,
            what came, and at which column.

    Source:
        Best Practice Guide Deep Learning (PRACE, 2019), sections 5.3 and 6.2.5; Intel C++
        Compiler Classic Developer Guide, Thread Affinity Interface.
    """
    machine = describe() if machine is None else machine
    given = {} if affinity is None else {"KMP_AFFINITY": affinity}
    twice = sorted(given.keys() & variables)
    require(not twice, "affinity", "be given once", affinity, "It is KMP_AFFINITY itself.")
    given |= variables
    require(bool(given), "variables", "hold at least one word of a recipe", given)
    for name in given:
        require_known(name, recipes.RECIPES, "variables")
    lines = tuple(recipes.line(name, value) for name, value in given.items())
    values = {each.name: each.value for each in lines}
    binding = [name for name in _BINDINGS if name in values]
    must = f"bind threads in one way, one of {', '.join(_BINDINGS)}"
    require(len(binding) <= 1, "variables", must, binding, "Read them one after the other.")

    there = {core.cpu for core in machine.cores}
    asked = int(values.get("OMP_NUM_THREADS", 1))
    require(asked <= MAX_LIST, "OMP_NUM_THREADS", f"be at most {MAX_LIST} for a node", asked)
    listed = _server_cpus(values, there)
    servers = int(values.get("MLSL_NUM_SERVERS", 0))
    processes = _process_count(processes, listed, servers)
    if pinned:
        shares = plan(machine, processes, oversubscribe=True).cpus
    else:
        shares = (tuple(sorted(there)),) * processes
    each = len(listed) // processes
    found = []
    for number, share in enumerate(shares):
        cores = [core for core in machine.cores if core.cpu in share]
        threads = int(values.get("OMP_NUM_THREADS", len(cores)))
        require_count(threads, "OMP_NUM_THREADS")
        placed = _place(values, binding, cores, threads, there)
        own = listed[number * each : (number + 1) * each]
        found.append(Process(tuple(sorted(share)), placed, own))
    now, refused = _plan_today(machine, processes, each or servers)
    said = [
        *findings.of_processes(machine, found),
        *findings.of_servers(machine, [process.communicates for process in found]),
        *findings.of_levels(machine, values, found),
        *refused,
    ]
    return Explanation(machine, tuple(found), lines, tuple(said), now)


def _server_cpus(values: Mapping[str, str], there: set[int]) -> tuple[int, ...]:
    name = "MLSL_SERVER_AFFINITY"
    if not values.get(name):
        return ()
    entries = cpu_words(whole(values[name], name), name, ",", there)
    return tuple(cpu for cpus in entries for cpu in cpus)


def _process_count(processes: int | None, listed: Sequence[int], servers: int) -> int:
    if processes is None:
        processes = len(listed) // servers if listed and servers else 1
    require_count(processes, "processes")
    wanted = processes * (servers or len(listed) // processes)
    must = f"have {wanted} CPUs: {servers} for each of {processes} processes on the node"
    then = "State `processes`, or list as many CPUs as there are servers."
    require(not listed or len(listed) == wanted, "MLSL_SERVER_AFFINITY", must, len(listed), then)
    return processes


def _place(
    values: Mapping[str, str],
    binding: Sequence[str],
    cores: Sequence[Core],
    threads: int,
    there: set[int],
) -> tuple[tuple[int, ...], ...]:
    everywhere = tuple(sorted(core.cpu for core in cores))
    policy = values.get("OMP_PROC_BIND", "true")
    if "KMP_AFFINITY" in binding:
        return kmp.place(kmp.parse(values["KMP_AFFINITY"], there), cores, threads)
    if "GOMP_CPU_AFFINITY" in binding:
        return places.gomp_place(values["GOMP_CPU_AFFINITY"], threads, there)
    if "OMP_PLACES" in binding:
        found = places.places(values["OMP_PLACES"], cores, there)
        return places.place(found, policy, threads, everywhere)
    if "OMP_PROC_BIND" in values:
        return places.place(places.places("cores", cores), policy, threads, everywhere)
    return (everywhere,) * threads


def _plan_today(
    machine: Machine, ranks: int, comm_cores: int
) -> tuple[ThreadPlan | None, list[str]]:
    try:
        return plan(machine, ranks, comm_cores), []
    except ValueError as error:
        return None, [f"There is no plan that does this on {machine.name}: {error}"]
