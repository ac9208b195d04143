"""OpenMP's own variables: OMP_PLACES with OMP_PROC_BIND, and GNU's GOMP_CPU_AFFINITY."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from dlguide.errors import require, require_count
from dlguide.machine.describe import Core
from dlguide.machine.threads.reading import (
    MAX_LIST,
    Word,
    cpu_words,
    require_there,
    require_word,
    whole,
)

COUNTED = "have a count of at least 1 and a stride that is not 0"
ABSTRACT = ("cores", "numa_domains", "sockets", "threads")
POLICIES = ("close", "false", "master", "primary", "spread", "true")


def gomp_place(
    text: str, threads: int, there: Collection[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Say where GOMP_CPU_AFFINITY puts each thread: the listed CPUs in turn.

    Source:
        GNU libgomp manual, GOMP_CPU_AFFINITY.

    >>> gomp_place("0 3 1-2 4-15:2", 6)
    ((0,), (3,), (1,), (2,), (4,), (6,))
    """
    require_count(threads, "threads")
    name = "GOMP_CPU_AFFINITY"
    cpus = cpu_words(whole(text, name), name, " ,", there)
    return tuple(cpus[number % len(cpus)] for number in range(threads))


def places(
    text: str, cores: Sequence[Core], there: Collection[int] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Read OMP_PLACES: a name with an optional count, or places in braces.

    `{0,1}` is a place of two CPUs, `{0:4}` one of four from 0 on, `{0:4:2}` of every second one,
    `{0:4}:3:4` three such places, each 4 CPUs after the other. Leaves out `!`.

    Source:
        OpenMP 5.0 specification, section 6.5.
    """
    value = whole(text, "OMP_PLACES")
    if "{" not in value.said:
        return _abstract(value, cores)
    found: list[tuple[int, ...]] = []
    listed = 0
    for piece in value.split(","):
        parts = re.fullmatch(r"(\{[^{}]*\})(?::(\d{1,4})(?::(-?\d{1,6}))?)?", piece.said)
        must = "have a place here, such as {0,1}, {0:4} or {0:4}:3:4"
        piece.require(parts, "OMP_PLACES", must)
        cpus = _braces(piece.part(1, len(parts[1]) - 1))
        count, stride = int(parts[2] or 1), int(parts[3] or len(cpus))
        piece.require(count and stride, "OMP_PLACES", COUNTED)
        listed += count * len(cpus)
        piece.require(listed <= MAX_LIST, "OMP_PLACES", f"list at most {MAX_LIST} CPUs")
        for number in range(count):
            moved = tuple(cpu + number * stride for cpu in cpus)
            piece.require(min(moved) >= 0, "OMP_PLACES", "stay at CPUs of at least 0")
            require_there(piece, "OMP_PLACES", moved, there)
            found.append(moved)
    return tuple(found)


def _abstract(value: Word, cores: Sequence[Core]) -> tuple[tuple[int, ...], ...]:
    name = value.said.partition("(")[0]
    kind = require_word("OMP_PLACES", value.part(0, len(name)), ABSTRACT, "a kind of place")
    rest = value.part(len(name), len(value.said))
    closed = not rest.said or re.fullmatch(r"\(\s*\d+\s*\)", rest.said)
    rest.require(closed, "OMP_PLACES", "have a count in brackets here, such as (4)")
    members: dict[tuple[int, ...], list[int]] = {}
    for core in sorted(cores, key=lambda core: (core.socket, core.numa, core.core, core.cpu)):
        keys = {
            "threads": (core.socket, core.core, core.cpu),
            "cores": (core.socket, core.core),
            "sockets": (core.socket,),
            "numa_domains": (core.socket, core.numa),
        }
        members.setdefault(keys[kind], []).append(core.cpu)
    found = tuple(tuple(sorted(cpus)) for cpus in members.values())
    return found[: int(rest.said[1:-1])] if rest.said else found


def _braces(inside: Word) -> tuple[int, ...]:
    cpus: list[int] = []
    for piece in inside.split(","):
        parts = re.fullmatch(r"(\d{1,6})(?::(\d{1,4}))?(?::(\d{1,4}))?", piece.said)
        must = "have a CPU here, such as 3, 0:4 (four from 0 on) or 0:4:2"
        piece.require(parts, "OMP_PLACES", must)
        first, number, stride = int(parts[1]), int(parts[2] or 1), int(parts[3] or 1)
        piece.require(number and stride, "OMP_PLACES", COUNTED)
        cpus += [first + step * stride for step in range(number)]
    inside.require(cpus, "OMP_PLACES", "have at least one CPU in a place")
    return tuple(cpus)


def place(
    found: Sequence[tuple[int, ...]], policy: str, threads: int, everywhere: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Deal threads to places as OMP_PROC_BIND says.

    With T threads and P places, T <= P: close takes the first T places; spread cuts the places
    into T neighbouring groups and takes the first of each; master takes the first place for all.
    With T > P, close and spread put floor(T / P) neighbouring threads on each place, one more on
    the first T mod P: the standard leaves open on which, as it leaves open what true means; here
    it is close.

    Args:
        found: the places.
        policy: value of OMP_PROC_BIND; of a list for nested regions the first counts.
        threads: number of OpenMP threads T (count).
        everywhere: all logical CPUs of the process, for "false".

    Returns:
        tuple: the CPUs of each thread.

    Raises:
        ValueError: when the policy is unknown or there is no place.

    Source:
        OpenMP 5.0 specification, section 2.6.2.
    """
    require_count(threads, "threads")
    require(bool(found), "OMP_PLACES", "give at least one place", list(found))
    words = whole(policy, "OMP_PROC_BIND").split(",")
    kind, *_ = [require_word("OMP_PROC_BIND", word, POLICIES, "a policy") for word in words]
    if kind == "false":
        return (tuple(everywhere),) * threads
    if kind in ("master", "primary"):
        return (found[0],) * threads
    if threads <= len(found):
        each, more = divmod(len(found), threads)
        starts = [number * each + min(number, more) for number in range(threads)]
        return tuple(found[at if kind == "spread" else n] for n, at in enumerate(starts))
    each, more = divmod(threads, len(found))
    return tuple(cpus for number, cpus in enumerate(found) for _ in range(each + (number < more)))
