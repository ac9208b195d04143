"""Thread recipes of 2019: where KMP_AFFINITY, OMP_PLACES and MLSL's variables put threads.

    recipes_2019.explain("granularity=fine,compact,1,0", machine, OMP_NUM_THREADS=22)

Sources: PRACE best practice guide (2019), section 6.2.5; Intel C++ Compiler Classic Developer Guide
and Reference, Thread Affinity Interface; OpenMP 5.0, sections 2.6.2 and 6.5.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.errors import require, require_count, require_known
from dlguide.machine.threads import ThreadPlan, plan
from dlguide.machine.topology import Core, Machine, format_cpus

SERVERS = "MLSL_SERVER_AFFINITY"
SETTINGS = ("OMP_NUM_THREADS", "OMP_PLACES", "OMP_PROC_BIND", "MLSL_NUM_SERVERS", SERVERS)
# type of KMP_AFFINITY -> how many numbers may follow it
KMP_TYPES = {"balanced": 2, "compact": 2, "disabled": 0, "explicit": 0, "logical": 1, "none": 0}
KMP_TYPES |= {"physical": 1, "scatter": 2}
# what a thread may move within: CPUs with an equal key; a tile is two cores of a Xeon Phi
_GRANULARITIES: dict[str, Callable[[Core], Any]] = {
    **dict.fromkeys(("fine", "thread"), lambda core: core.cpu),
    **dict.fromkeys(("core", "tile"), lambda core: (core.socket, core.core)),
    "numa_domain": lambda core: (core.socket, core.numa),
    "socket": lambda core: core.socket,
}
# a name that OMP_PLACES may have -> the CPUs with an equal key are one place
_PLACES = {
    "threads": "thread", "cores": "core", "numa_domains": "numa_domain", "sockets": "socket"
}  # fmt: skip
_POLICIES = ("true", "false", "close", "spread", "master", "primary")
_SWITCHES = [no + name for no in ("", "no") for name in ("verbose", "respect", "warnings", "reset")]

Placement = tuple[tuple[int, ...], ...]  # the logical CPUs of each thread of a process


@dataclass(frozen=True)
class KmpAffinity:
    """A parsed value of KMP_AFFINITY."""

    kind: str
    granularity: str = "core"
    permute: int = 0
    offset: int = 0
    proclist: Placement = ()


def parse_kmp(text: str, there: Collection[int] | None = None) -> KmpAffinity:
    """Parse `[modifier,...]type[,permute][,offset]`; `there` are the CPUs that may be named."""
    name, kind, granularity, proclist, numbers = "KMP_AFFINITY", "", "core", (), []
    for word in re.findall(r"(?:[^,\[{]|\[[^]]*\]?|\{[^}]*\}?)+", text):
        key, equals, rest = word.strip().lower().partition("=")
        if key.isdigit() and kind:
            most = KMP_TYPES[kind]
            count = f"{most or 'no'} number{'s'[: most != 1]}"
            require(len(numbers) < most, name, f"have {count} after {kind}", text)
            numbers.append(int(key))
        elif key == "granularity" and equals:
            granularity = require_known(rest, _GRANULARITIES, f"{name}, granularity")
        elif key == "proclist" and equals:
            boxed = re.fullmatch(r"\[(.+)\]", rest)
            require(boxed, name, "have a list in square brackets, such as [0-3,8]", rest)
            proclist = tuple(parse_cpu_lists(boxed[1], name, there))
        elif key not in _SWITCHES:
            require(not kind, name, f"have one type, and {kind} is one", key, "Leave one out.")
            kind = require_known(key, [*KMP_TYPES, *_SWITCHES], name)
    require(kind, name, "have a type", text)
    both = (kind == "explicit") == bool(proclist)
    require(both, name, "have the type explicit with a proclist=[...], and only then", text)
    if KMP_TYPES[kind] == 1:  # logical and physical have an offset only
        numbers.insert(0, 0)
    permute, offset = [*numbers, 0, 0][:2]
    return KmpAffinity(kind, granularity, permute, offset, proclist)


def parse_cpu_lists(
    text: str, name: str, there: Collection[int] | None = None
) -> list[tuple[int, ...]]:
    """Parse a list of logical CPUs: `3`, spans `0-5`, spans with a stride `0-6:2`, sets `{4,5}`."""
    found: list[tuple[int, ...]] = []
    for piece in re.findall(r"\{[^}]*\}?|[^,{]+", text):
        if piece.startswith("{"):
            inside = parse_cpu_lists(piece.strip("{}"), name, there)
            found.append(tuple(cpu for cpus in inside for cpu in cpus))
            continue
        entry = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4})(?::([1-9]\d{0,3}))?)?\s*", piece)
        require(entry, name, "have CPUs such as 3, 0-5, 0-6:2 or {4,5}", piece)
        low, high = int(entry[1]), int(entry[2] or entry[1])
        require(low <= high, name, "have spans that go upwards", piece)
        cpus = range(low, high + 1, int(entry[3] or 1))
        _require_there(name, {*cpus}, there, piece)
        found += [(cpu,) for cpu in cpus]
    return found


def _require_there(name: str, cpus: set[int], there: Collection[int] | None, piece: str) -> None:
    must = f"name CPUs of the machine, which has {format_cpus(there or ())}"
    then = "Look at the numbering with `lscpu -e`."
    require(there is None or cpus <= {*there}, name, must, piece, then)


def place_kmp(
    affinity: KmpAffinity, cores: Sequence[Core], threads: int, all_levels: bool = False
) -> Placement:
    """Return the logical CPUs of each OpenMP thread of one process under KMP_AFFINITY.

    Every hardware thread has an address: socket, core in the socket, thread in the core. The
    addresses are sorted, and thread i gets place (offset + i) of the sorted list:

        compact, permute p: by the p innermost levels first (innermost first), then the others
        scatter, permute p: as compact with permute (levels - 1 - p)
        balanced: as many neighbouring threads on each core as the others have, or one more

    The runtime of 2019 left out the level of hardware threads if each core has one, so that
    `compact,1,0` then counts sockets fastest; later ones keep it (`all_levels`).
    """
    everywhere = tuple(sorted(core.cpu for core in cores))
    if affinity.kind in ("none", "disabled"):
        return (everywhere,) * threads
    groups = _grouped(cores, _GRANULARITIES[affinity.granularity])
    unit = {cpu: cpus for cpus in groups.values() for cpu in cpus}
    if affinity.kind == "explicit":
        lists = [
            tuple(sorted({c for cpu in cpus for c in unit[cpu]})) for cpus in affinity.proclist
        ]
        return tuple(lists[number % len(lists)] for number in range(threads))
    address = {
        cpu: (socket, core, thread)
        for socket, members in enumerate(_grouped(cores, lambda core: core.socket).values())
        for core, cpus in enumerate(
            _grouped((c for c in cores if c.cpu in members), lambda core: core.core).values()
        )
        for thread, cpu in enumerate(cpus)
    }
    siblings = 1 + max(where[2] for where in address.values())
    if affinity.kind == "balanced":
        return tuple(unit[cpu] for cpu in _balanced(address, threads, siblings))
    depth = 3 if siblings > 1 or all_levels else 2
    permute, offset = min(affinity.permute, depth - 1), affinity.offset
    if affinity.kind == "scatter":
        permute = depth - 1 - permute if affinity.permute < depth else 0
    elif affinity.kind in ("logical", "physical"):
        permute = int(affinity.kind == "physical" and siblings > 1)
        offset *= siblings

    def key(cpu: int) -> tuple[int, ...]:
        levels = address[cpu][:depth]
        return (*levels[::-1][:permute], *levels[: depth - permute])

    ordered = sorted(everywhere, key=key)
    return tuple(unit[ordered[(offset + number) % len(ordered)]] for number in range(threads))


def _grouped(cores: Iterable[Core], key: Callable[[Core], Any]) -> dict[Any, tuple[int, ...]]:
    """Group logical CPUs with an equal key, in the order of sockets, cores and CPUs."""
    groups: dict[Any, list[int]] = {}
    for core in sorted(cores, key=lambda core: (core.socket, core.core, core.cpu)):
        groups.setdefault(key(core), []).append(core.cpu)
    return {each: tuple(sorted(cpus)) for each, cpus in groups.items()}


def _balanced(address: Mapping[int, tuple[int, ...]], threads: int, siblings: int) -> list[int]:
    """Share the threads among cores, or among sockets if no core has a second hardware thread."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(address, key=address.__getitem__):
        groups.setdefault(address[cpu][: 2 if siblings > 1 else 1], []).append(cpu)
    each, more = divmod(threads, len(groups))
    return [
        cpus[thread % len(cpus)]
        for number, cpus in enumerate(groups.values())
        for thread in range(each + (number < more))
    ]


def parse_places(
    text: str, cores: Sequence[Core], there: Collection[int] | None = None
) -> Placement:
    """Parse OMP_PLACES: a name with an optional count, or places such as `{0:4}:3:4`."""
    name, text = "OMP_PLACES", text.strip().lower()
    if "{" not in text:
        kind, bracket, count = text.partition("(")
        key = _GRANULARITIES[_PLACES[require_known(kind.strip(), _PLACES, name)]]
        counted = re.fullmatch(r"\s*([1-9]\d{0,3})\s*\)", count)
        require(not bracket or counted, name, "have a count in brackets, such as (4)", text)
        ordered = tuple(_grouped(cores, key).values())
        return ordered[: int(counted[1])] if counted else ordered
    found: list[tuple[int, ...]] = []
    for piece in re.findall(r"\s*((?:\{[^}]*\}?|[^,{])+)", text):
        parts = re.fullmatch(r"\{([^{}]*)\}(?::(\d{1,4})(?::(-?\d{1,4}))?)?\s*", piece)
        require(parts, name, "have places such as {0,1}, {0:4} or {0:4}:3:4", piece)
        cpus = [cpu for inside in parts[1].split(",") for cpu in _span(inside)]
        count, stride = int(parts[2] or 1), int(parts[3] or len(cpus))
        require(count and stride, name, _COUNTED, piece)
        few = sum(map(len, found)) + count * len(cpus) <= 4096
        require(few, name, "list at most 4096 CPUs", piece)
        moved = [tuple(cpu + number * stride for cpu in cpus) for number in range(count)]
        require(min(map(min, moved)) >= 0, name, "stay at CPUs of at least 0", piece)
        _require_there(name, {cpu for each in moved for cpu in each}, there, piece)
        found += moved
    return tuple(found)


_COUNTED = "have a count of at least 1 and a stride that is not 0"


def _span(text: str) -> range:
    parts = re.fullmatch(r"\s*(\d{1,4})(?::(\d{1,4}))?(?::(\d{1,4}))?\s*", text)
    must = "have CPUs such as 3, 0:4 (four from 0 on) or 0:4:2"
    require(parts, "OMP_PLACES", must, text)
    first, count, stride = int(parts[1]), int(parts[2] or 1), int(parts[3] or 1)
    require(count and stride, "OMP_PLACES", _COUNTED, text)
    return range(first, first + count * stride, stride)


def place_omp(
    places: Placement, policy: str, threads: int, everywhere: tuple[int, ...]
) -> Placement:
    """Return the logical CPUs of each thread, dealt to places as OMP_PROC_BIND says.

    With T threads and P places, T <= P: close takes the first T places; spread cuts the places
    into T neighbouring groups and takes the first of each; master takes the first place for all.
    With T > P, close and spread put floor(T / P) neighbouring threads on each place, one more on
    the first T mod P; on which is left open by the standard, as is what true means: close here.
    """
    words = [word.strip().lower() for word in policy.split(",")]
    kind, *_ = [require_known(word, _POLICIES, "OMP_PROC_BIND") for word in words]
    if kind == "false":
        return (everywhere,) * threads
    if kind in ("master", "primary"):
        return (places[0],) * threads
    each, more = divmod(max(threads, len(places)), min(threads, len(places)))
    if threads <= len(places):
        starts = [number * each + min(number, more) for number in range(threads)]
        return tuple(places[at if kind == "spread" else n] for n, at in enumerate(starts))
    return tuple(cpus for number, cpus in enumerate(places) for _ in range(each + (number < more)))


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
    """What a recipe does on a machine, and the plan for the same job today, None if too small."""

    machine: Machine
    processes: tuple[ProcessPlacement, ...]
    findings: tuple[str, ...]
    plan: ThreadPlan | None


def explain(affinity: str | None, machine: Machine, **settings: Any) -> RecipeExplanation:
    """Explain what a KMP_AFFINITY and other variables of a recipe do on one node of a machine.

    Threads are placed as by Intel's OpenMP of 2019, see `place_kmp`; without a KMP_AFFINITY
    (None) as OMP_PLACES and OMP_PROC_BIND say, see `place_omp`. Each process first gets its
    share of the node, as from a launcher: neighbouring cores, inside a NUMA node if possible. Its
    OpenMP threads stay inside that share, unless the CPUs are listed one by one. The servers of
    MLSL go to the listed CPUs, an equal number for each process in turn; there are as many
    processes as the list has CPUs for.
    """
    for name in settings:
        require_known(name, SETTINGS, "settings")
    there = {core.cpu for core in machine.cores}
    omp = {"OMP_PLACES", "OMP_PROC_BIND"} & {*settings}
    must = "bind threads in one way, by KMP_AFFINITY or by OMP_PLACES and OMP_PROC_BIND"
    require((affinity is None) == bool(omp), "affinity", must, affinity)
    kmp, listed = parse_kmp(affinity or "none", there), ()
    if settings.get(SERVERS):
        entries = parse_cpu_lists(str(settings[SERVERS]), SERVERS, there)
        listed = tuple(cpu for cpus in entries for cpu in cpus)
    servers = require_count(settings.get("MLSL_NUM_SERVERS", 0), "MLSL_NUM_SERVERS", least=0)
    count = max(1, len(listed) // servers) if listed and servers else 1
    each = servers or len(listed)
    must = f"have {count * each} CPUs: {each} for each of {count} processes on the node"
    then = "List as many CPUs as there are servers."
    require(len(listed) in (0, count * each), SERVERS, must, len(listed), then)
    placed = []
    for number, share in enumerate(plan(machine, count, oversubscribe=True).cpus):
        cores = [core for core in machine.cores if core.cpu in share]
        threads = require_count(settings.get("OMP_NUM_THREADS", len(cores)), "OMP_NUM_THREADS")
        require(threads <= 4096, "OMP_NUM_THREADS", "be at most 4096 for a node", threads)
        within = machine.cores if kmp.kind == "explicit" else cores  # also outside of the share
        own = listed[number * each : (number + 1) * each]
        if omp:
            places = parse_places(str(settings.get("OMP_PLACES", "cores")), cores, there)
            policy = str(settings.get("OMP_PROC_BIND", "true"))
            placement = place_omp(places, policy, threads, tuple(share))
        else:
            placement = place_kmp(kmp, within, threads)
        placed.append(ProcessPlacement(tuple(share), placement, own))
    findings = [
        *_thread_findings(machine, placed),
        *_server_findings(machine, [process.communicates for process in placed]),
        *_collisions(machine, placed),
        *_runtime_findings(machine, kmp, placed[0]),
    ]
    today = None
    try:
        today = plan(machine, count, each)
    except ValueError as error:
        findings.append(f"There is no plan that does this on {machine.name}: {error}")
    return RecipeExplanation(machine, tuple(placed), tuple(findings), today)


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
    loose = any(
        len({core_of[cpu] for cpu in cpus}) > 1 for each in processes for cpus in each.threads
    )
    users = Counter(core_of[cpus[0]] for each in processes for cpus in each.threads)
    crowded = sum(number > 1 for number in users.values())
    if loose:
        found.append(
            "The threads are not bound to cores: the kernel moves them, and with them what they "
            "have in the caches."
        )
    elif crowded:
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
            f"Processes share CPUs {format_cpus(shared)}: their threads take turns there, while "
            "others may be free."
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
    ranks = sorted(set().union(*(busy[core_of[cpu]] for cpu in met)))
    return [
        f"CPUs {format_cpus(met)} should only communicate, but threads of process "
        f"{' and '.join(map(str, ranks))} compute on the same cores, unless something else keeps "
        "them away."
    ] * bool(met)


def _runtime_findings(
    machine: Machine, affinity: KmpAffinity, process: ProcessPlacement
) -> list[str]:
    """Report if a later runtime places the threads of `compact` elsewhere."""
    cores = [core for core in machine.cores if core.cpu in process.cpus]
    later = place_kmp(affinity, cores, len(process.threads), all_levels=True)
    if affinity.kind != "compact" or later == process.threads:
        return []
    return [
        "Each core has one hardware thread here. The runtime of 2019 then leaves out that level "
        "and deals the threads to the sockets in turn; later runtimes keep it: process 0 would use "
        f"CPUs {format_cpus(sorted(set().union(*later)))}."
    ]
