"""The variable KMP_AFFINITY: what it says, and on which logical CPUs it puts each thread."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dlguide.errors import require_count
from dlguide.machine.describe import Core
from dlguide.machine.threads.reading import cpu_words, require_word, whole

NAME = "KMP_AFFINITY"
TYPES = ("balanced", "compact", "disabled", "explicit", "logical", "none", "physical", "scatter")
GRANULARITIES = {
    "fine": "thread",
    "thread": "thread",
    "core": "core",
    "tile": "core",  # two cores of a Xeon Phi; one core elsewhere
    "numa_domain": "numa",
    "socket": "socket",
}
_SWITCHES = {"verbose": 1, "respect": 1, "warnings": 1, "reset": 1}
_SWITCHES |= {"noverbose": 0, "norespect": 0, "nowarnings": 0, "noreset": 0}


@dataclass(frozen=True)
class Affinity:
    """What a value of KMP_AFFINITY says."""

    kind: str = "none"
    granularity: str = "core"
    permute: int = 0
    offset: int = 0
    proclist: tuple[tuple[int, ...], ...] = ()
    switches: tuple[str, ...] = ()


def parse(text: str, there: Collection[int] | None = None) -> Affinity:
    """Read a value of KMP_AFFINITY: `[modifier,...]type[,permute][,offset]`.

    For the types logical and physical the only number is the offset.

    Source:
        Intel C++ Compiler Classic Developer Guide and Reference, Thread Affinity Interface.

    >>> parse("granularity=fine,compact,1,0").permute
    1
    """
    value = whole(text, NAME)
    kind, granularity, proclist = None, "core", ()
    switches: list[str] = []
    numbers = []
    for word in value.split(","):
        key = word.said.partition("=")[0].lower()
        rest = word.part(len(key) + 1, len(word.said)) if "=" in word.said else None
        if word.said.isdigit() and kind is not None:
            most = {"explicit": 0, "none": 0, "disabled": 0, "logical": 1, "physical": 1}
            allowed = most.get(kind, 2)
            said = f"{allowed or 'no'} number{'s'[: allowed != 1]}"
            word.require(len(numbers) < allowed, NAME, f"have {said} after {kind}")
            numbers.append(word.count(NAME, "permute or offset"))
        elif key == "granularity" and rest is not None:
            names = [*GRANULARITIES]
            granularity = GRANULARITIES[require_word(NAME, rest, names, "a granularity")]
        elif key == "proclist" and rest is not None:
            boxed = rest.said.startswith("[") and rest.said.endswith("]") and len(rest.said) > 2
            rest.require(boxed, NAME, "have a list in square brackets here, such as [0-3,8]")
            inside = rest.part(1, len(rest.said) - 1)
            proclist = tuple(cpu_words(inside, NAME, ",", there))
        elif key in _SWITCHES and rest is None:
            switches.append(key)
        else:
            names = [*TYPES, *_SWITCHES, "granularity=...", "proclist=[...]"]
            found = require_word(NAME, word, names, "a type or a modifier")
            once = kind is None
            word.require(once, NAME, f"have one type, and {kind} is one", "Leave one out.")
            kind = found
    needs = "have the type explicit when there is a proclist" if proclist else "have a type"
    right = kind == "explicit" if proclist else kind is not None
    value.require(right, NAME, needs, "Add `explicit`." if proclist else "")
    value.require(kind != "explicit" or proclist, NAME, "have a proclist=[...] with explicit")
    if kind in ("logical", "physical"):
        numbers.insert(0, 0)
    permute, offset = [*numbers, 0, 0][:2]
    return Affinity(kind, granularity, permute, offset, proclist, tuple(switches))


def place(
    affinity: Affinity, cores: Sequence[Core], threads: int, all_levels: bool = False
) -> tuple[tuple[int, ...], ...]:
    """Say on which logical CPUs each OpenMP thread of one process may run.

    Every hardware thread has an address: socket, core in the socket, thread in the core. The
    addresses are sorted, and thread i gets place (offset + i) of the sorted list:

        compact, permute p: by the p innermost levels first (innermost first), then the others
        scatter, permute p: as compact with permute (levels - 1 - p)
        balanced: as many neighbouring threads on each core as the others have, or one more

    The runtime of 2019 left out the level of hardware threads where each core has one, so that
    `compact,1,0` then counts sockets fastest; later ones keep it. Leaves out tiles and dies.

    Args:
        affinity: what `parse` read.
        cores: the logical CPUs the process may use.
        threads: number of OpenMP threads (count).
        all_levels: keep the level of hardware threads always, as later runtimes do.

    Returns:
        tuple: the CPUs of each thread; all of them when threads are not bound.

    Source:
        The same guide; checked against Intel's runtime libraries of 2019 and of 2026.
    """
    require_count(threads, "threads")
    everywhere = tuple(sorted(core.cpu for core in cores))
    if affinity.kind in ("none", "disabled"):
        return (everywhere,) * threads
    unit = _units(cores, affinity.granularity)
    if affinity.kind == "explicit":
        lists = [
            tuple(sorted({c for cpu in cpus for c in unit[cpu]})) for cpus in affinity.proclist
        ]
        return tuple(lists[number % len(lists)] for number in range(threads))
    address = _addresses(cores)
    siblings = 1 + max(where[2] for where in address.values())
    if affinity.kind == "balanced":
        ordered = _balanced(address, threads, siblings)
        return tuple(unit[cpu] for cpu in ordered)
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


def _units(cores: Sequence[Core], granularity: str) -> dict[int, tuple[int, ...]]:
    """Give for each CPU all those a thread bound to it may move to."""
    members: dict[tuple[int, ...], list[int]] = {}
    names = {
        core.cpu: {
            "thread": (core.cpu,),
            "core": (core.socket, core.core),
            "numa": (core.socket, core.numa),
            "socket": (core.socket,),
        }[granularity]
        for core in cores
    }
    for cpu, name in sorted(names.items()):
        members.setdefault(name, []).append(cpu)
    return {cpu: tuple(members[name]) for cpu, name in names.items()}


def _addresses(cores: Sequence[Core]) -> dict[int, tuple[int, int, int]]:
    """Give (socket, core in the socket, thread in the core) of each CPU, counted from 0."""
    sockets: dict[int, dict[int, list[int]]] = {}
    for core in sorted(cores, key=lambda core: (core.socket, core.core, core.cpu)):
        sockets.setdefault(core.socket, {}).setdefault(core.core, []).append(core.cpu)
    return {
        cpu: (socket, core, thread)
        for socket, members in enumerate(sockets.values())
        for core, cpus in enumerate(members.values())
        for thread, cpu in enumerate(cpus)
    }


def _balanced(address: dict[int, tuple[int, int, int]], threads: int, siblings: int) -> list[int]:
    """Share the threads among cores; among sockets where no core has a second hardware thread."""
    outer = 2 if siblings > 1 else 1
    groups: dict[tuple[int, ...], list[int]] = {}
    for cpu in sorted(address, key=address.__getitem__):
        groups.setdefault(address[cpu][:outer], []).append(cpu)
    each, more = divmod(threads, len(groups))
    return [
        cpus[thread % len(cpus)]
        for number, cpus in enumerate(groups.values())
        for thread in range(each + (number < more))
    ]
