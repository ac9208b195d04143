"""Placement of OpenMP threads by KMP_AFFINITY, OMP_PLACES and GOMP_CPU_AFFINITY.

    affinity = omp_affinity.parse_kmp("granularity=fine,compact,1,0")
    omp_affinity.place_kmp(affinity, machine.cores, threads=4)

An error points at the word that is not understood.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from dlguide.errors import require, require_count
from dlguide.machine.topology import Core, format_cpus

MAX_CPUS = 4096  # of one list: more is a typing error, such as a missing comma
KMP_TYPES = (
    *("balanced", "compact", "disabled", "explicit"),
    *("logical", "none", "physical", "scatter"),
)
_GRANULARITIES = {
    "fine": "thread",
    "thread": "thread",
    "core": "core",
    "tile": "core",  # two cores of a Xeon Phi; one core elsewhere
    "numa_domain": "numa",
    "socket": "socket",
}
_SWITCHES = (
    *("verbose", "respect", "warnings", "reset"),
    *("noverbose", "norespect", "nowarnings", "noreset"),
)
_PLACE_NAMES = ("cores", "numa_domains", "sockets", "threads")
_COUNTED = "have a count of at least 1 and a stride that is not 0"
_POLICIES = ("close", "false", "master", "primary", "spread", "true")

# One entry for the threads of a process: the logical CPUs of each.
Placement = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class KmpAffinity:
    """A parsed value of KMP_AFFINITY."""

    kind: str = "none"
    granularity: str = "core"
    permute: int = 0
    offset: int = 0
    proclist: tuple[tuple[int, ...], ...] = ()
    switches: tuple[str, ...] = ()


def parse_kmp(text: str, there: Collection[int] | None = None) -> KmpAffinity:
    """Parse a value of KMP_AFFINITY: `[modifier,...]type[,permute][,offset]`.

    For the types logical and physical the only number is the offset.

    Args:
        there: logical CPUs that a proclist may name; None for any.

    Raises:
        ValueError: at the first word that is not understood, with its column.

    Source:
        Intel C++ Compiler Classic Developer Guide and Reference, Thread Affinity Interface.

    >>> parse_kmp("granularity=fine,compact,1,0").permute
    1
    """
    name = "KMP_AFFINITY"
    value = Word.of(text, name)
    kind, granularity, proclist = None, "core", ()
    switches: list[str] = []
    numbers = []
    for word in value.split(","):
        key = word.text.partition("=")[0].lower()
        rest = word.part(len(key) + 1, len(word.text)) if "=" in word.text else None
        if word.text.isdigit() and kind is not None:
            most = {"explicit": 0, "none": 0, "disabled": 0, "logical": 1, "physical": 1}
            allowed = most.get(kind, 2)
            count = f"{allowed or 'no'} number{'s'[: allowed != 1]}"
            word.require(len(numbers) < allowed, name, f"have {count} after {kind}")
            numbers.append(word.count(name, "permute or offset"))
        elif key == "granularity" and rest is not None:
            granularity = _GRANULARITIES[rest.known(name, _GRANULARITIES, "a granularity")]
        elif key == "proclist" and rest is not None:
            boxed = rest.text.startswith("[") and rest.text.endswith("]") and len(rest.text) > 2
            rest.require(boxed, name, "have a list in square brackets here, such as [0-3,8]")
            inside = rest.part(1, len(rest.text) - 1)
            proclist = tuple(parse_cpu_lists(inside, name, ",", there))
        elif key in _SWITCHES and rest is None:
            switches.append(key)
        else:
            names = [*KMP_TYPES, *_SWITCHES, "granularity=...", "proclist=[...]"]
            found = word.known(name, names, "a type or a modifier")
            once = kind is None
            word.require(once, name, f"have one type, and {kind} is one", "Leave one out.")
            kind = found
    needs = "have the type explicit when there is a proclist" if proclist else "have a type"
    right = kind == "explicit" if proclist else kind is not None
    value.require(right, name, needs, "Add `explicit`." if proclist else "")
    value.require(kind != "explicit" or proclist, name, "have a proclist=[...] with explicit")
    if kind in ("logical", "physical"):
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
    `compact,1,0` then counts sockets fastest; later ones keep it. Leaves out tiles and dies.

    Args:
        cores: the logical CPUs the process may use.
        threads: OpenMP threads (count).
        all_levels: always keep the level of hardware threads, as later runtimes do.

    Source:
        As `parse_kmp`; checked against Intel's runtime libraries of 2019 and 2026.
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
    """Return for each CPU all those that a thread bound to it may move to."""
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


def place_gomp(text: str, threads: int, there: Collection[int] | None = None) -> Placement:
    """Return the CPU of each thread under GOMP_CPU_AFFINITY: the listed ones in turn.

    Source:
        GNU libgomp manual, GOMP_CPU_AFFINITY.

    >>> place_gomp("0 3 1-2 4-15:2", 6)
    ((0,), (3,), (1,), (2,), (4,), (6,))
    """
    require_count(threads, "threads")
    name = "GOMP_CPU_AFFINITY"
    cpus = parse_cpu_lists(Word.of(text, name), name, " ,", there)
    return tuple(cpus[number % len(cpus)] for number in range(threads))


def parse_places(
    text: str, cores: Sequence[Core], there: Collection[int] | None = None
) -> Placement:
    """Parse OMP_PLACES: a name with an optional count, or places in braces.

    `{0,1}` is a place of two CPUs, `{0:4}` one of four from 0 on, `{0:4:2}` of every second one,
    `{0:4}:3:4` three such places, each 4 CPUs after the other. Leaves out `!`.

    Source:
        OpenMP 5.0 specification, section 6.5.
    """
    value = Word.of(text, "OMP_PLACES")
    if "{" not in value.text:
        return _named_places(value, cores)
    found: list[tuple[int, ...]] = []
    listed = 0
    for piece in value.split(","):
        parts = re.fullmatch(r"(\{[^{}]*\})(?::(\d{1,4})(?::(-?\d{1,6}))?)?", piece.text)
        must = "have a place here, such as {0,1}, {0:4} or {0:4}:3:4"
        piece.require(parts, "OMP_PLACES", must)
        cpus = _place_in_braces(piece.part(1, len(parts[1]) - 1))
        count, stride = int(parts[2] or 1), int(parts[3] or len(cpus))
        piece.require(count and stride, "OMP_PLACES", _COUNTED)
        listed += count * len(cpus)
        piece.require(listed <= MAX_CPUS, "OMP_PLACES", f"list at most {MAX_CPUS} CPUs")
        for number in range(count):
            moved = tuple(cpu + number * stride for cpu in cpus)
            piece.require(min(moved) >= 0, "OMP_PLACES", "stay at CPUs of at least 0")
            _require_there(piece, "OMP_PLACES", moved, there)
            found.append(moved)
    return tuple(found)


def _named_places(value: Word, cores: Sequence[Core]) -> Placement:
    name = value.text.partition("(")[0]
    kind = value.part(0, len(name)).known("OMP_PLACES", _PLACE_NAMES, "a kind of place")
    rest = value.part(len(name), len(value.text))
    closed = not rest.text or re.fullmatch(r"\(\s*\d+\s*\)", rest.text)
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
    return found[: int(rest.text[1:-1])] if rest.text else found


def _place_in_braces(inside: Word) -> tuple[int, ...]:
    cpus: list[int] = []
    for piece in inside.split(","):
        parts = re.fullmatch(r"(\d{1,6})(?::(\d{1,4}))?(?::(\d{1,4}))?", piece.text)
        must = "have a CPU here, such as 3, 0:4 (four from 0 on) or 0:4:2"
        piece.require(parts, "OMP_PLACES", must)
        first, number, stride = int(parts[1]), int(parts[2] or 1), int(parts[3] or 1)
        piece.require(number and stride, "OMP_PLACES", _COUNTED)
        cpus += [first + step * stride for step in range(number)]
    inside.require(cpus, "OMP_PLACES", "have at least one CPU in a place")
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

    Args:
        policy: value of OMP_PROC_BIND; the first one of a list for nested regions.
        threads: OpenMP threads T (count).
        everywhere: all logical CPUs of the process, for "false".

    Raises:
        ValueError: if the policy is unknown or there is no place.

    Source:
        OpenMP 5.0 specification, section 2.6.2.
    """
    require_count(threads, "threads")
    require(bool(places), "OMP_PLACES", "give at least one place", list(places))
    words = Word.of(policy, "OMP_PROC_BIND").split(",")
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


@dataclass(frozen=True)
class Word:
    """A piece of a text with its position, so that an error can point at it."""

    whole: str
    start: int
    end: int

    @classmethod
    def of(cls, value: Any, name: str) -> Word:
        """Return a whole value as a word."""
        plain = isinstance(value, str | int) and not isinstance(value, bool)
        require(plain, name, "be a text or a whole number", value)
        text = str(value)
        require(bool(text.strip()), name, "hold at least one word", text)
        return cls(text, len(text) - len(text.lstrip()), len(text.rstrip()))

    @property
    def text(self) -> str:
        """The piece itself."""
        return self.whole[self.start : self.end]

    def require(self, condition: Any, name: str, must: str, then: str = "") -> None:
        """Raise a ValueError that points at this word unless `condition` holds."""
        if condition:
            return
        came = repr(self.text) if self.text else "nothing"
        shown = self.whole.replace("\n", " ").replace("\t", " ")
        first = f"`{name}` must {must}, got {came} at column {self.start + 1}. {then}".rstrip()
        marks = " " * self.start + "^" * max(self.end - self.start, 1)
        raise ValueError(f"{first}\n    {shown}\n    {marks}")

    def known(self, name: str, words: Iterable[str], what: str) -> str:
        """Return the word in small letters if it is one of `words`."""
        words, text = sorted(words), self.text.lower()
        near = get_close_matches(text, words, n=1)
        then = f"Did you mean {near[0]}?" if near else ""
        self.require(text in words, name, f"have {what} here, one of {', '.join(words)}", then)
        return text

    def count(self, name: str, what: str) -> int:
        """Return the word as a whole number of at least 0."""
        plain = self.text.isascii() and self.text.isdigit()
        self.require(plain, name, f"have {what} here, a whole number of at least 0")
        self.require(len(self.text) < 19, name, f"have {what} here, of at most 18 digits")
        return int(self.text)

    def part(self, start: int, end: int) -> Word:
        """Return a piece of this word."""
        return Word(self.whole, self.start + start, self.start + end)

    def split(self, separators: str) -> Iterator[Word]:
        """Cut the word at separators outside of brackets, without white space around."""
        depth = begin = 0
        for place, letter in enumerate(self.text + separators[0]):
            depth += (letter in "[{(") - (letter in "]})")
            if (letter in separators and depth <= 0) or place == self.end - self.start:
                piece = self.text[begin:place]
                blank = len(piece) - len(piece.lstrip())
                yield self.part(begin + blank, begin + max(len(piece.rstrip()), blank))
                begin = place + 1


def parse_cpu_lists(
    word: Word, name: str, separators: str = ",", there: Collection[int] | None = None
) -> list[tuple[int, ...]]:
    """Parse a list of logical CPUs: `3`, spans `0-5`, spans with a stride `0-6:2`, sets `{4,5}`."""
    found: list[tuple[int, ...]] = []
    pieces = list(word.split(separators))
    if " " in separators:  # blanks in a row, or after a comma
        pieces = [piece for piece in pieces if piece.text]
    for piece in pieces:
        inner = piece.part(1, len(piece.text) - 1)
        if re.fullmatch(r"\{.*\}", piece.text):
            found.append(
                tuple(cpu for cpus in parse_cpu_lists(inner, name, ",", there) for cpu in cpus)
            )
            continue
        entry = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?", piece.text)
        must = "have a CPU here, such as 3, 0-5, 0-6:2 or {4,5}"
        piece.require(entry, name, must)
        low, high, stride = int(entry[1]), int(entry[2] or entry[1]), int(entry[3] or 1)
        piece.require(low <= high, name, "have spans that go upwards")
        piece.require(stride > 0, name, "have a stride of at least 1")
        cpus = range(low, high + 1, stride)
        _require_there(piece, name, cpus, there)
        few = len(found) + len(cpus) <= MAX_CPUS
        piece.require(few, name, f"list at most {MAX_CPUS} CPUs")
        found += [(cpu,) for cpu in cpus]
    word.require(found, name, "list at least one CPU")
    return found


def _require_there(
    word: Word, name: str, cpus: Iterable[int], there: Collection[int] | None
) -> None:
    """Raise a ValueError at a word unless the machine has its CPUs."""
    if there is None:
        return
    missing = [cpu for cpu in cpus if cpu not in there]
    must = f"name CPUs of the machine here, which has {format_cpus(there)}"
    word.require(not missing, name, must, "Look at the numbering with `lscpu -e`.")
