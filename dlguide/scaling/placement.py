"""Where to put a data set: memory, a disk of the node, a burst buffer, the shared file system."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_known, require_positive
from dlguide.published import load

_MIB = 1 << 20
# Lustre Operations Manual: the size that most advice begins with (the default is 1 or 4 MiB), the
# size that all stay below, and the most targets of one file.
_STRIPE_NBYTES = _MIB
_STRIPE_LIMIT_NBYTES = 1 << 32
_STRIPE_COUNT_LIMIT = 2000
# No more than one sample in so many may lie on two targets.
_CROSSING = 8


@dataclass(frozen=True)
class Tier:
    """A kind of storage that a data set may be put on."""

    name: str
    room_nbytes: float
    per_node: bool
    latency_s: float

    def __post_init__(self) -> None:
        require_positive(self.latency_s, "latency_s")
        require(self.room_nbytes >= 0, "room_nbytes", "be at least 0", self.room_nbytes)


@dataclass(frozen=True)
class Published:
    """A row of the published table of storages, with what is known to be wrong in it."""

    name: str
    latency_s: float
    latency_range_s: tuple[float, float]
    reads_per_s: float | None
    room_nbytes: float
    doubt: str = ""

    @property
    def in_flight(self) -> float | None:
        """Requests under way at full rate, by Little's law: rate times latency (count)."""
        return None if self.reads_per_s is None else self.reads_per_s * self.latency_s


_DOUBTS = {
    "NVRAM": (
        (1e-8, 1e-6),
        "10 ns is what a memory chip takes inside; a core waits about 100 ns for memory. The "
        "1.4 million reads/s of the same row leave 700 ns for each, when one waits for the other.",
    ),
    "3D XPoint": (
        (1e-7, 1e-5),
        "10 ns is below the latency of DRAM. 3D XPoint takes some 100s of ns as memory modules "
        "and about 10 us as disks.",
    ),
}


def published(folder: str | os.PathLike | None = None) -> tuple[Published, ...]:
    """Read the published table of storages and mark the rows that must not be used as printed.

    Source:
        Awan, Subramoni, Panda, tutorial High Performance Distributed Deep Learning (2017), table
        of storage technologies. The doubts about NVRAM and 3D XPoint are ours.
    """
    found = []
    for row in load("storage", folder):
        printed = row["latency_s"]
        span, doubt = _DOUBTS.get(row["name"], ((printed, printed), ""))
        room_nbytes = row["max_capacity_gb"] * 1e9
        found.append(Published(row["name"], printed, span, row["read_iops"], room_nbytes, doubt))
    return tuple(found)


@dataclass(frozen=True)
class Placement:
    """Where a data set goes."""

    tier: str
    whole: bool
    share_nbytes: float
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"Put it on: {self.tier}.", *self.reasons))


def place(nbytes: float, tiers: Sequence[Tier], nodes: int, parts: bool = False) -> Placement:
    """Choose the storage with the smallest latency that has room for a data set.

    A storage of the nodes has room when each node can hold a copy of the whole, as the guide
    advises: all later epochs are then local. With `parts` it also has room when all nodes can
    hold the data together. Leaves out the way to the other nodes: with `parts`, memory comes
    before a disk of the node although most samples are then fetched over the network.

    Args:
        nbytes: size of the data set (bytes).
        tiers: the storages there are, in any order.
        nodes: nodes of the job (count).
        parts: whether nodes may keep a part each and fetch from each other (see `peers`).

    Returns:
        Placement: the storage with reasons.

    Raises:
        ValueError: when none has room.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 4.6.
    """
    nbytes = require_positive(nbytes, "nbytes")
    nodes = require_count(nodes, "nodes")
    require(len(tiers) > 0, "tiers", "name at least one storage", tiers)
    reasons = []
    for tier in sorted(tiers, key=lambda tier: tier.latency_s):
        where = f"on each of {nodes} nodes" if tier.per_node else "shared by all nodes"
        room = f"{tier.name}: {_text(tier.room_nbytes)} {where}"
        if nbytes <= tier.room_nbytes:
            reasons.append(f"{room}, room for all {_text(nbytes)}.")
            return Placement(tier.name, True, nbytes, tuple(reasons))
        if parts and tier.per_node and nbytes <= nodes * tier.room_nbytes:
            share = nbytes / nodes
            reasons.append(f"{room}, room for a part of {_text(share)}; the rest from peers.")
            return Placement(tier.name, False, share, tuple(reasons))
        reasons.append(f"{room}, too small for {_text(nbytes)}.")

    def usable(tier: Tier) -> float:
        return tier.room_nbytes * (nodes if parts and tier.per_node else 1)

    largest = max(tiers, key=usable)
    more = "." if parts else ", or `parts=True`."
    raise ValueError(
        f"`nbytes` must be at most the {_text(usable(largest))} of {largest.name}, got "
        f"{_text(nbytes)}. Use fewer or smaller samples{more}"
    )


@dataclass(frozen=True)
class Striping:
    """How the files of a data set are to be spread over a file system's targets."""

    count: int
    stripe_nbytes: int
    line: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((self.line or "Nothing to set.", *self.reasons))


def striping(
    file_nbytes: float,
    files: int,
    targets: int,
    sample_nbytes: float,
    path: str | os.PathLike,
    file_system: str = "lustre",
) -> Striping:
    """Choose how the files are spread, and write the `lfs setstripe` line for their folder.

    Args:
        file_nbytes: size of one file (bytes).
        files: files of that size (count).
        targets: object storage targets of the file system (count).
        sample_nbytes: mean size of one sample (bytes).
        path: the folder, still empty, that the files go to.
        file_system: "lustre" or "gpfs".

    Returns:
        Striping: the command with its reasons; for GPFS no command.

    Source:
        Lustre Operations Manual, chapter Managing File Layout (Striping) and Free Space; PRACE
        Best Practice Guide Deep Learning (2019), section 4.6.
    """
    require_known(file_system, ("gpfs", "lustre"), "file_system")
    file_nbytes = require_positive(file_nbytes, "file_nbytes")
    sample_nbytes = require_positive(sample_nbytes, "sample_nbytes")
    files, targets = require_count(files, "files"), require_count(targets, "targets")
    if file_system == "gpfs":
        reason = (
            "GPFS stripes every file by itself, in blocks over all its disks. Its users cannot "
            "change that. Pack small files all the same: each open still costs metadata work."
        )
        return Striping(0, 0, "", (reason,))
    stripe = _STRIPE_NBYTES
    while stripe < _CROSSING * sample_nbytes and 2 * stripe < _STRIPE_LIMIT_NBYTES:
        stripe *= 2
    most = min(targets, _STRIPE_COUNT_LIMIT)
    count, reason = _stripe_count(file_nbytes, files, most, stripe)
    if file_nbytes < 2 * sample_nbytes and files > targets:
        reason += " Pack the samples first: with a file for each, the opens are what limits."
    crossing = crossing_fraction(sample_nbytes, stripe)
    reasons = (
        reason,
        f"Stripes of {stripe // _MIB} MiB: {100 * crossing:.1f} % of the samples lie across the "
        "border of two stripes and cost a request more.",
        "Give the command before the files are written: files that exist keep their layout.",
    )
    line = f"lfs setstripe -c {count} -S {stripe // _MIB}M {shlex.quote(str(path))}"
    return Striping(count, stripe, line, reasons)


def crossing_fraction(sample_nbytes: float, stripe_nbytes: float) -> float:
    """Work out how many samples lie across the border of two stripes.

    A sample of b bytes at any byte of a stripe of s bytes reaches over its end from b - 1 of
    the s places: (b - 1) / s.
    """
    sample_nbytes = require_positive(sample_nbytes, "sample_nbytes")
    return min(1.0, (sample_nbytes - 1) / require_positive(stripe_nbytes, "stripe_nbytes"))


def _stripe_count(file_nbytes: float, files: int, targets: int, stripe: int) -> tuple[int, str]:
    if file_nbytes <= stripe:
        return 1, (
            f"A file of {_text(file_nbytes)} fits into one stripe. More targets per file would "
            "only add objects to create and locks to take."
        )
    if files >= targets:
        return 1, (
            f"{files} files keep all {targets} targets busy with one target each. More would add "
            "work to every open."
        )
    wanted = math.ceil(targets / files)
    count = min(targets, wanted, math.ceil(file_nbytes / stripe))
    return count, (
        f"{files} {'file' if files == 1 else 'files'} over {targets} targets: {count} targets "
        f"per file let {min(targets, files * count)} targets be read at once."
    )


def _text(nbytes: float) -> str:
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
