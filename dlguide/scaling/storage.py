"""Time to read an epoch from a disk, from Lustre or from GPFS, and what it is that limits.

Each part of a storage has its own work and its own speed: metadata servers open files, targets
answer requests and send bytes, links carry them. The time lies between two bounds. `least_s`, the
largest of the parts' times, holds when all work at once; `most_s`, their sum, when each waits for
the one before. A pipeline with many requests under way comes near to the first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_positive
from dlguide.scaling.reading import Reading


@dataclass(frozen=True)
class Clients:
    """The nodes that read, all alike."""

    count: int
    bytes_per_s: float
    in_flight: int = 1

    def __post_init__(self) -> None:
        require_count(self.count, "count")
        require_count(self.in_flight, "in_flight")
        require_positive(self.bytes_per_s, "bytes_per_s")


@dataclass(frozen=True)
class Disk:
    """A disk, or memory, that each node has for itself.

    An open counts as one random read: it fetches the entry that says where the file lies.
    """

    bytes_per_s: float
    requests_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        _all_positive(self, "bytes_per_s", "requests_per_s", "latency_s")

    def parts(self, reading: Reading, clients: Clients) -> dict[str, float]:
        """Work out the time of each part; every node reads its part of the epoch by itself."""
        asked = (reading.opens + reading.requests) / clients.count
        return {
            "requests": asked / self.requests_per_s,
            "bandwidth": reading.nbytes / clients.count / self.bytes_per_s,
            "latency": asked * self.latency_s / clients.in_flight,
        }


@dataclass(frozen=True)
class Lustre:
    """Lustre: metadata servers open files, object storage targets (OST) hold their stripes.

    Leaves out requests that meet at one OST by chance while another has none, and samples that
    lie across the border of two stripes (see `placement.crossing_fraction`).
    """

    metadata_servers: int
    opens_per_s: float
    targets: int
    bytes_per_s: float
    requests_per_s: float
    latency_s: float
    stripe_count: int = 1
    stripe_nbytes: int = 1 << 20
    total_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        for name in ("metadata_servers", "targets", "stripe_count", "stripe_nbytes"):
            require_count(getattr(self, name), name)
        _all_positive(self, "opens_per_s", "bytes_per_s", "requests_per_s", "latency_s")
        require(
            self.stripe_count <= self.targets,
            "stripe_count",
            f"be at most the {self.targets} targets",
            self.stripe_count,
        )
        total = self.total_bytes_per_s
        require(total > 0, "total_bytes_per_s", "be above 0", total, "Leave it out for no limit.")

    def busy(self, reading: Reading, clients: Clients) -> int:
        """Count the targets that work at once: how far files, stripes and requests reach."""
        stripes = min(self.stripe_count, math.ceil(reading.file_nbytes / self.stripe_nbytes))
        under_way = clients.count * clients.in_flight
        return min(self.targets, reading.files * stripes, under_way)

    def parts(self, reading: Reading, clients: Clients) -> dict[str, float]:
        """Work out the time of each part; leaves out the servers' caches and other users."""
        opened_s = reading.opens / (self.metadata_servers * self.opens_per_s)
        return {"metadata": opened_s, **_shared(self, reading, clients)}


@dataclass(frozen=True)
class Gpfs:
    """GPFS: every node does metadata work, and the file system stripes every file by itself.

    Nothing is set by its user: the blocks of each file go over all servers in turn.
    """

    opens_per_s: float
    metadata_per_s: float
    targets: int
    bytes_per_s: float
    requests_per_s: float
    latency_s: float
    block_nbytes: int = 1 << 22
    total_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        require_count(self.targets, "targets")
        require_count(self.block_nbytes, "block_nbytes")
        _all_positive(self, "opens_per_s", "metadata_per_s", "bytes_per_s", "requests_per_s")
        _all_positive(self, "latency_s")
        total = self.total_bytes_per_s
        require(total > 0, "total_bytes_per_s", "be above 0", total, "Leave it out for no limit.")

    def busy(self, reading: Reading, clients: Clients) -> int:
        """Count the servers that work at once."""
        blocks = reading.files * math.ceil(reading.file_nbytes / self.block_nbytes)
        return min(self.targets, blocks, clients.count * clients.in_flight)

    def parts(self, reading: Reading, clients: Clients) -> dict[str, float]:
        """Work out the time of each part; leaves out locks on a directory that many write to."""
        opens_per_s = min(clients.count * self.opens_per_s, self.metadata_per_s)
        return {"metadata": reading.opens / opens_per_s, **_shared(self, reading, clients)}


@dataclass(frozen=True)
class Epoch:
    """The time to read an epoch, part by part.

    Args:
        parts: (name, seconds) of each part of the storage, the slowest first.
    """

    parts: tuple[tuple[str, float], ...]

    @property
    def least_s(self) -> float:
        """Time when all parts work at once (s)."""
        return self.parts[0][1]

    @property
    def most_s(self) -> float:
        """Time when each part waits for the one before (s)."""
        return sum(seconds for _, seconds in self.parts)

    @property
    def limit(self) -> str:
        """Name of the part that limits."""
        return self.parts[0][0]

    @property
    def times_the_next(self) -> float:
        """How many times the next slowest part's time the limiting one takes (ratio)."""
        return self.parts[0][1] / self.parts[1][1]

    def __str__(self) -> str:
        lines = [f"{name:<12} {seconds:12.2f} s" for name, seconds in self.parts]
        head = f"{self.least_s:.2f} to {self.most_s:.2f} s an epoch; {self.limit} limits"
        return "\n".join([f"{head}, {self.times_the_next:.1f} times the next", *lines])


def epoch(storage: Disk | Lustre | Gpfs, reading: Reading, clients: Clients) -> Epoch:
    """Predict the time in which all clients together read an epoch."""
    parts = storage.parts(reading, clients)
    return Epoch(tuple(sorted(parts.items(), key=lambda part: -part[1])))


def _shared(storage: Lustre | Gpfs, reading: Reading, clients: Clients) -> dict[str, float]:
    busy = storage.busy(reading, clients)
    asked = (reading.opens + reading.requests) / clients.count
    return {
        "requests": reading.requests / (busy * storage.requests_per_s),
        "bandwidth": reading.nbytes / (busy * storage.bytes_per_s),
        "client link": reading.nbytes / clients.count / clients.bytes_per_s,
        "network": reading.nbytes / storage.total_bytes_per_s,
        "latency": asked * storage.latency_s / clients.in_flight,
    }


def _all_positive(storage: object, *names: str) -> None:
    for name in names:
        require_positive(getattr(storage, name), name)
