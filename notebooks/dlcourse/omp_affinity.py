"""Placement of OpenMP threads by KMP_AFFINITY and by OMP_PLACES with OMP_PROC_BIND.

    affinity = omp_affinity.parse_kmp("granularity=fine,compact,1,0")
    omp_affinity.place_kmp(affinity, machine.cores, threads=4)

An error points at the word that is not understood. Sources: Intel C++ Compiler Classic Developer
Guide and Reference, Thread Affinity Interface; OpenMP 5.0, sections 2.6.2 and 6.5.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dlguide.errors import require, require_count
from dlguide.machine.topology import Core, format_cpus

MAX_CPUS = 4096  # of one list: more is a typing error, such as a missing comma
# type of KMP_AFFINITY -> how many numbers may follow it
KMP_TYPES = dict(balanced=2, compact=2, disabled=0, explicit=0, logical=1, none=0, physical=1)
KMP_TYPES["scatter"] = 2
# what a thread may move within: CPUs with an equal key; a tile is two cores of a Xeon Phi
_GRANULARITIES: dict[str, Callable[[Core], Any]] = {
    **dict.fromkeys(("fine", "thread"), lambda core: core.cpu),
    **dict.fromkeys(("core", "tile"), lambda core: (core.socket, core.core)),
    "numa_domain": lambda core: (core.socket, core.numa),
    "socket": lambda core: core.socket,
}
_PLACES = {
    "threads": _GRANULARITIES["thread"],
    "cores": _GRANULARITIES["core"],
    "numa_domains": _GRANULARITIES["numa_domain"],
    "sockets": _GRANULARITIES["socket"],
}
_SWITCHES = [no + name for no in ("", "no") for name in ("verbose", "respect", "warnings", "reset")]
_POLICIES = ("close", "false", "master", "primary", "spread", "true")
_COUNTED = "have a count of at least 1 and a stride that is not 0"

Placement = tuple[tuple[int, ...], ...]  # the logical CPUs of each thread of a process


class Word(str):
    """A piece of a text that knows its place there, so that an error can point at it."""

    def __new__(cls, whole: str, start: int = 0, end: int | None = None) -> Word:
        word = super().__new__(cls, whole[start:end])
        word.whole, word.start = str(whole), start
        return word

    @classmethod
    def of(cls, value: Any, name: str) -> Word:
        """Return the value of a variable without the white space around it."""
        plain = isinstance(value, str | int) and not isinstance(value, bool)
        require(plain, name, "be a text or a whole number", value)
        text = str(value)
        require(bool(text.strip()), name, "hold at least one word", text)
        return cls(text, len(text) - len(text.lstrip()), len(text.rstrip()))

    def require(self, condition: Any, name: str, must: str, then: str = "") -> None:
        """Raise a ValueError that points at this word unless `condition` holds."""
        if condition:
            return
        came = repr(str(self)) if self else "nothing"
        shown = self.whole.replace("\n", " ").replace("\t", " ")
        first = f"`{name}` must {must}, got {came} at column {self.start + 1}. {then}".rstrip()
        marks = " " * self.start + "^" * max(len(self), 1)
        raise ValueError(f"{first}\n    {shown}\n    {marks}")

    def known(self, name: str, words: Iterable[str], what: str) -> str:
        """Return the word in small letters if it is one of `words`."""
        words, text = sorted(words), self.lower()
        near = get_close_matches(text, words, n=1)
        then = f"Did you mean {near[0]}?" if near else ""
        self.require(text in words, name, f"have {what} here, one of {', '.join(words)}", then)
        return text

    def count(self, name: str, what: str) -> int:
        """Return the word as a whole number of at least 0."""
        plain = self.isascii() and self.isdigit()
        self.require(plain, name, f"have {what} here, a whole number of at least 0")
        self.require(len(self) < 19, name, f"have {what} here, of at most 18 digits")
        return int(self)

    def part(self, start: int, end: int | None = None) -> Word:
        """Return a piece of this word."""
        return Word(self.whole, self.start + start, self.start + len(self[:end]))

    def pieces(self, separators: str = ",") -> Iterator[Word]:
        """Cut the word at separators outside of brackets, without white space around."""
        depth = begin = 0
        for place, letter in enumerate(self + separators[0]):
            depth += (letter in "[{(") - (letter in "]})")
            if place == len(self) or (letter in separators and depth <= 0):
                piece = self[begin:place]
                blank = len(piece) - len(piece.lstrip())
                yield self.part(begin + blank, begin + max(len(piece.rstrip()), blank))
                begin = place + 1


@dataclass(frozen=True)
class KmpAffinity:
    """A parsed value of KMP_AFFINITY."""

    kind: str = "none"
    granularity: str = "core"
    permute: int = 0
    offset: int = 0
    proclist: Placement = ()
    switches: tuple[str, ...] = ()


def parse_kmp(text: str, there: Collection[int] | None = None) -> KmpAffinity:
    """Parse `[modifier,...]type[,permute][,offset]`; `there` are the CPUs that may be named."""
    name = "KMP_AFFINITY"
    value = Word.of(text, name)
    kind, granularity, proclist = None, "core", ()
    switches, numbers = [], []
    for word in value.pieces():
        key, equals, _ = word.partition("=")
        key, rest = key.lower(), word.part(len(key) + 1)
        if word.isdigit() and kind is not None:
            most = KMP_TYPES[kind]
            count = f"{most or 'no'} number{'s'[: most != 1]}"
            word.require(len(numbers) < most, name, f"have {count} after {kind}")
            numbers.append(word.count(name, "permute or offset"))
        elif key == "granularity" and equals:
            granularity = rest.known(name, _GRANULARITIES, "a granularity")
        elif key == "proclist" and equals:
            boxed = re.fullmatch(r"\[.+\]", rest)
            rest.require(boxed, name, "have a list in square brackets here, such as [0-3,8]")
            proclist = tuple(parse_cpu_lists(rest.part(1, -1), name, there))
        elif key in _SWITCHES and not equals:
            switches.append(key)
        else:
            names = [*KMP_TYPES, *_SWITCHES, "granularity=...", "proclist=[...]"]
            found = word.known(name, names, "a type or a modifier")
            must = f"have one type, and {kind} is one"
            word.require(kind is None, name, must, "Leave one out.")
            kind = found
    needs = "have the type explicit when there is a proclist" if proclist else "have a type"
    right = kind == "explicit" if proclist else kind is not None
    value.require(right, name, needs, "Add `explicit`." if proclist else "")
    value.require(kind != "explicit" or proclist, name, "have a proclist=[...] with explicit")
    if KMP_TYPES[kind] == 1:  # logical and physical have an offset only
        numbers.insert(0, 0)
    permute, offset = [*numbers, 0, 0][:2]
    return KmpAffinity(kind, granularity, permute, offset, proclist, tuple(switches))


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
    require_count(threads, "threads")
    everywhere = tuple(sorted(core.cpu for core in cores))
    if affinity.kind in ("none", "disabled"):
        return (everywhere,) * threads
    groups = _grouped(cores, _GRANULARITIES[affinity.granularity])
    unit = {cpu: cpus for cpus in groups for cpu in cpus}
    if affinity.kind == "explicit":
        lists = [
            tuple(sorted({c for cpu in cpus for c in unit[cpu]})) for cpus in affinity.proclist
        ]
        return tuple(lists[number % len(lists)] for number in range(threads))
    address = _addresses(cores)
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


def _grouped(cores: Iterable[Core], key: Callable[[Core], Any]) -> list[tuple[int, ...]]:
    """Group logical CPUs with an equal key, in the order of the cores."""
    groups: dict[Any, list[int]] = {}
    for core in cores:
        groups.setdefault(key(core), []).append(core.cpu)
    return [tuple(sorted(cpus)) for cpus in groups.values()]


def _addresses(cores: Sequence[Core]) -> dict[int, tuple[int, int, int]]:
    """Return (socket, core in the socket, thread in the core) of each CPU, counted from 0."""
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
    name, value = "OMP_PLACES", Word.of(text, "OMP_PLACES")
    if "{" not in value:
        kind = value.part(0, len(value.partition("(")[0]))
        rest = value.part(len(kind))
        key = _PLACES[kind.known(name, _PLACES, "a kind of place")]
        closed = not rest or re.fullmatch(r"\(\s*\d+\s*\)", rest)
        rest.require(closed, name, "have a count in brackets here, such as (4)")
        ordered = sorted(cores, key=lambda core: (core.socket, core.numa, core.core, core.cpu))
        return tuple(_grouped(ordered, key)[: int(rest[1:-1]) if rest else None])
    found: list[tuple[int, ...]] = []
    listed = 0
    for piece in value.pieces():
        parts = re.fullmatch(r"(\{[^{}]*\})(?::(\d{1,4})(?::(-?\d{1,6}))?)?", piece)
        piece.require(parts, name, "have a place here, such as {0,1}, {0:4} or {0:4}:3:4")
        cpus = _place_in_braces(piece.part(1, len(parts[1]) - 1))
        count, stride = int(parts[2] or 1), int(parts[3] or len(cpus))
        piece.require(count and stride, name, _COUNTED)
        listed += count * len(cpus)
        piece.require(listed <= MAX_CPUS, name, f"list at most {MAX_CPUS} CPUs")
        for number in range(count):
            moved = tuple(cpu + number * stride for cpu in cpus)
            piece.require(min(moved) >= 0, name, "stay at CPUs of at least 0")
            _require_there(piece, name, moved, there)
            found.append(moved)
    return tuple(found)


def _place_in_braces(inside: Word) -> tuple[int, ...]:
    cpus: list[int] = []
    for piece in inside.pieces():
        parts = re.fullmatch(r"(\d{1,6})(?::(\d{1,4}))?(?::(\d{1,4}))?", piece)
        must = "have a CPU here, such as 3, 0:4 (four from 0 on) or 0:4:2"
        piece.require(parts, "OMP_PLACES", must)
        first, number, stride = (int(part or 1) for part in parts.groups())
        piece.require(number and stride, "OMP_PLACES", _COUNTED)
        cpus += range(first, first + number * stride, stride)
    return tuple(cpus)


def place_omp(
    places: Sequence[tuple[int, ...]], policy: str, threads: int, everywhere: Sequence[int]
) -> Placement:
    """Return the logical CPUs of each thread, dealt to places as OMP_PROC_BIND says.

    With T threads and P places, T <= P: close takes the first T places; spread cuts the places
    into T neighbouring groups and takes the first of each; master takes the first place for all.
    With T > P, close and spread put floor(T / P) neighbouring threads on each place, one more on
    the first T mod P: the standard leaves open on which, as it leaves open what true means; here
    it is close.
    """
    require_count(threads, "threads")
    require(bool(places), "OMP_PLACES", "give at least one place", list(places))
    words = Word.of(policy, "OMP_PROC_BIND").pieces()
    kind, *_ = [word.known("OMP_PROC_BIND", _POLICIES, "a policy") for word in words]
    if kind == "false":
        return (tuple(everywhere),) * threads
    if kind in ("master", "primary"):
        return (places[0],) * threads
    if threads <= len(places):
        each, more = divmod(len(places), threads)
        starts = [number * each + min(number, more) for number in range(threads)]
        return tuple(places[at if kind == "spread" else n] for n, at in enumerate(starts))
    each, more = divmod(threads, len(places))
    return tuple(cpus for number, cpus in enumerate(places) for _ in range(each + (number < more)))


def parse_cpu_lists(
    word: Word, name: str, there: Collection[int] | None = None
) -> list[tuple[int, ...]]:
    """Parse a list of logical CPUs: `3`, spans `0-5`, spans with a stride `0-6:2`, sets `{4,5}`."""
    found: list[tuple[int, ...]] = []
    for piece in word.pieces():
        if re.fullmatch(r"\{.*\}", piece):
            inside = parse_cpu_lists(piece.part(1, -1), name, there)
            found.append(tuple(cpu for cpus in inside for cpu in cpus))
            continue
        entry = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", piece)
        piece.require(entry, name, "have a CPU here, such as 3, 0-5, 0-6:2 or {4,5}")
        low, high, stride = int(entry[1]), int(entry[2] or entry[1]), int(entry[3] or 1)
        piece.require(low <= high, name, "have spans that go upwards")
        piece.require(stride > 0, name, "have a stride of at least 1")
        cpus = range(low, high + 1, stride)
        _require_there(piece, name, cpus, there)
        few = len(found) + len(cpus) <= MAX_CPUS
        piece.require(few, name, f"list at most {MAX_CPUS} CPUs")
        found += [(cpu,) for cpu in cpus]
    return found


def _require_there(
    word: Word, name: str, cpus: Iterable[int], there: Collection[int] | None
) -> None:
    missing = there is not None and [cpu for cpu in cpus if cpu not in there]
    must = f"name CPUs of the machine here, which has {format_cpus(there or ())}"
    word.require(not missing, name, must, "Look at the numbering with `lscpu -e`.")
