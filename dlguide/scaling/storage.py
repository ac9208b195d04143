"""What a training demands of its storage, and the time to read an epoch from it.

Each part of a storage has its own work and speed: metadata servers open files, targets answer
requests and send bytes, links carry them. The time has two bounds. `least_s`, the largest of the
parts' times, holds if all work at once; `most_s`, their sum, if each waits for the one before. A
pipeline with many requests in flight comes near the first. A `Throttle` lets a process experience
these times on any machine.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from time import perf_counter, sleep
from typing import Any

from dlguide.errors import require, require_count, require_known, require_positive

__all__ = [
    "GUIDE",
    "GUIDE_ORIGINAL_IMAGES",
    "ClientShare",
    "Clients",
    "Disk",
    "EpochTime",
    "Gpfs",
    "Lustre",
    "ReadPattern",
    "StorageDemand",
    "Throttle",
    "TrainingReads",
    "demand",
    "epoch",
    "one_file_each",
    "packed",
    "throttle",
]

# A sleep lasts a little longer than requested; what follows may make up for so much (s).
BURST_S = 0.002


def _check(each: object, counts: str, positives: str) -> None:
    for name in counts.split():
        require_count(getattr(each, name), name)
    for name in positives.split():
        require_positive(getattr(each, name), name)


@dataclass(frozen=True)
class TrainingReads:
    """The samples that a training reads.

    Args:
        samples: samples in the data set.
        sample_nbytes: mean size of a sample as stored (bytes).
        epochs: how often each sample is read.
        nodes: nodes that share each epoch's samples.
        seconds: time of the whole run (s).
        samples_per_file: samples in one file; 1 if each image is a file.
    """

    samples: int
    sample_nbytes: float
    epochs: int
    nodes: int
    seconds: float
    samples_per_file: float = 1

    def __post_init__(self) -> None:
        _check(self, "samples epochs nodes", "sample_nbytes seconds samples_per_file")


@dataclass(frozen=True)
class StorageDemand:
    """Mean rates at which samples must arrive so that a training never waits."""

    samples_per_node: float
    samples_per_s_per_node: float
    samples_per_s: float
    bytes_per_s_per_node: float
    bytes_per_s: float
    opens_per_s_per_node: float
    opens_per_s: float


def demand(reads: TrainingReads) -> StorageDemand:
    """Compute what a training demands of its storage, per node and in all.

    All nodes together read `samples * epochs` samples in `seconds`:

        samples_per_s = samples * epochs / seconds
        bytes_per_s = samples_per_s * sample_nbytes
        opens_per_s = samples_per_s / samples_per_file

    and each node its share of these. Leaves out what is kept in memory between epochs, the
    validation, and that reads come in bursts: each is the mean over the run.

    The PRACE guide computes it for ResNet-50 on 448 nodes in one hour (`GUIDE`). It finds that
    bandwidth is no problem for a node and doubts that a shared file system can deliver the sum.
    The sum is about 1 GB/s, which a parallel file system delivers; the 32 000 files opened per
    second in random order, if every image is a file, it may not.

    Returns:
        StorageDemand: rates of samples, bytes and opens.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), section 6.2.4.

    >>> needed = demand(GUIDE)
    >>> round(needed.opens_per_s), round(needed.bytes_per_s / 1e9, 2)
    (32000, 1.05)
    """
    samples_per_s = reads.samples * reads.epochs / reads.seconds
    bytes_per_s = samples_per_s * reads.sample_nbytes
    opens_per_s = samples_per_s / reads.samples_per_file
    return StorageDemand(
        samples_per_node=reads.samples * reads.epochs / reads.nodes,
        samples_per_s_per_node=samples_per_s / reads.nodes,
        samples_per_s=samples_per_s,
        bytes_per_s_per_node=bytes_per_s / reads.nodes,
        bytes_per_s=bytes_per_s,
        opens_per_s_per_node=opens_per_s / reads.nodes,
        opens_per_s=opens_per_s,
    )


# PRACE guide, table 5 and section 6.2.4. The 42 GB are an LMDB of images made smaller.
GUIDE = TrainingReads(
    samples=1_280_000, sample_nbytes=42e9 / 1_280_000, epochs=90, nodes=448, seconds=3600.0
)
# The same run on the images as published: 138 GB, so 108 KB each.
GUIDE_ORIGINAL_IMAGES = replace(GUIDE, sample_nbytes=138e9 / 1_280_000)


@dataclass(frozen=True)
class ReadPattern:
    """Files, opens, requests and bytes of all clients together in an epoch."""

    files: int
    file_nbytes: float
    opens: int
    requests: int
    nbytes: float

    def __post_init__(self) -> None:
        _check(self, "files opens requests", "file_nbytes nbytes")


def one_file_each(
    samples: int, sample_nbytes: float, request_nbytes: float = 1 << 20
) -> ReadPattern:
    """Return the reads of an epoch in which every sample is a file.

    Raises:
        ValueError: if a size or rate is not positive, or a count is below 1.
    """
    require_count(samples, "samples")
    require_positive(sample_nbytes, "sample_nbytes")
    each = math.ceil(sample_nbytes / require_positive(request_nbytes, "request_nbytes"))
    return ReadPattern(samples, sample_nbytes, samples, samples * each, samples * sample_nbytes)


def packed(
    samples: int,
    sample_nbytes: float,
    files: int,
    clients: int,
    access: str = "sequential",
    request_nbytes: float = 1 << 20,
) -> ReadPattern:
    """Return the reads of an epoch whose samples are packed into a few large files.

    With "sequential" access each client reads its own files, or its own part of a file, from
    start to end in requests of full size (TFRecord). With "random" access each client opens every
    file once and reads its samples one by one (LMDB, HDF5).

    Raises:
        ValueError: if the access is unknown, a size is not positive, a count is below 1, or there
            are more files than samples.
    """
    for name, value in (("samples", samples), ("files", files), ("clients", clients)):
        require_count(value, name)
    require(files <= samples, "files", f"be at most the {samples} samples", files)
    require_positive(sample_nbytes, "sample_nbytes")
    require_positive(request_nbytes, "request_nbytes")
    require_known(access, ("random", "sequential"), "access")
    nbytes = samples * sample_nbytes
    if access == "random":
        opens, requests = files * clients, samples * math.ceil(sample_nbytes / request_nbytes)
    else:
        opens = max(files, clients)
        requests = max(opens, math.ceil(nbytes / request_nbytes))
    return ReadPattern(files, nbytes / files, opens, requests, nbytes)


@dataclass(frozen=True)
class Clients:
    """The nodes that read, all alike; `in_flight` requests of each are open at a time."""

    count: int
    bytes_per_s: float
    in_flight: int = 1

    def __post_init__(self) -> None:
        _check(self, "count in_flight", "bytes_per_s")


@dataclass(frozen=True)
class Disk:
    """A disk or memory of each node; an open counts as one random read (the directory entry)."""

    bytes_per_s: float
    requests_per_s: float
    latency_s: float

    def __post_init__(self) -> None:
        _check(self, "", "bytes_per_s requests_per_s latency_s")

    def parts(self, reads: ReadPattern, clients: Clients) -> dict[str, float]:
        """Return the time of each part (s); every node reads its share of the epoch alone."""
        operations = (reads.opens + reads.requests) / clients.count
        return {
            "requests": operations / self.requests_per_s,
            "bandwidth": reads.nbytes / clients.count / self.bytes_per_s,
            "latency": operations * self.latency_s / clients.in_flight,
        }


@dataclass(frozen=True)
class Lustre:
    """Lustre: metadata servers open files, object storage targets (OST) hold their stripes.

    `opens_per_s` is the rate of one metadata server, `client_opens_per_s` the most of one client.
    Leaves out that requests may meet at one OST while another is idle, and samples that cross
    the border of two stripes (see `placement.crossing_fraction`).
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
    client_opens_per_s: float = math.inf

    def __post_init__(self) -> None:
        counts = "metadata_servers targets stripe_count stripe_nbytes"
        _check(self, counts, "opens_per_s bytes_per_s requests_per_s latency_s")
        rate = self.client_opens_per_s
        require(rate > 0, "client_opens_per_s", "be above 0", rate, "Leave it out for no limit.")
        few, must = self.stripe_count <= self.targets, f"be at most the {self.targets} targets"
        require(few, "stripe_count", must, self.stripe_count)
        _check_total(self.total_bytes_per_s)

    def busy(self, reads: ReadPattern, clients: Clients) -> int:
        """Count the targets that work at once: limited by files, stripes and open requests."""
        stripes = min(self.stripe_count, math.ceil(reads.file_nbytes / self.stripe_nbytes))
        under_way = clients.count * clients.in_flight
        return min(self.targets, reads.files * stripes, under_way)

    def parts(self, reads: ReadPattern, clients: Clients) -> dict[str, float]:
        """Return the time of each part (s); leaves out the servers' caches and other users."""
        opens_per_s = self.opens_of(clients.count)
        return {"metadata": reads.opens / opens_per_s, **_shared(self, reads, clients)}

    def opens_of(self, clients: int) -> float:
        """Opens per second that so many clients get together."""
        return min(self.metadata_servers * self.opens_per_s, clients * self.client_opens_per_s)


@dataclass(frozen=True)
class Gpfs:
    """GPFS: every node does metadata work; each file's blocks go over all servers in turn."""

    opens_per_s: float
    metadata_per_s: float
    targets: int
    bytes_per_s: float
    requests_per_s: float
    latency_s: float
    block_nbytes: int = 1 << 22
    total_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        rates = "opens_per_s metadata_per_s bytes_per_s requests_per_s latency_s"
        _check(self, "targets block_nbytes", rates)
        _check_total(self.total_bytes_per_s)

    def busy(self, reads: ReadPattern, clients: Clients) -> int:
        """Count the servers that work at once."""
        blocks = reads.files * math.ceil(reads.file_nbytes / self.block_nbytes)
        return min(self.targets, blocks, clients.count * clients.in_flight)

    def parts(self, reads: ReadPattern, clients: Clients) -> dict[str, float]:
        """Return the time of each part (s); leaves out locks on a directory that many write."""
        opens_per_s = min(clients.count * self.opens_per_s, self.metadata_per_s)
        return {"metadata": reads.opens / opens_per_s, **_shared(self, reads, clients)}


@dataclass(frozen=True)
class EpochTime:
    """The time to read an epoch: (name, seconds) of each part, the slowest first."""

    parts: tuple[tuple[str, float], ...]

    @property
    def least_s(self) -> float:
        """Time if all parts work at once (s)."""
        return self.parts[0][1]

    @property
    def most_s(self) -> float:
        """Time if each part waits for the one before (s)."""
        return sum(seconds for _, seconds in self.parts)

    @property
    def limit(self) -> str:
        """Name of the slowest part."""
        return self.parts[0][0]

    @property
    def times_the_next(self) -> float:
        """Time of the slowest part over that of the next one (ratio)."""
        return self.parts[0][1] / self.parts[1][1]

    def __str__(self) -> str:
        lines = [f"{name:<12} {seconds:12.2f} s" for name, seconds in self.parts]
        head = f"{self.least_s:.2f} to {self.most_s:.2f} s per epoch; {self.limit} limits"
        return "\n".join([f"{head}, {self.times_the_next:.1f} times the next", *lines])


def epoch(storage: Disk | Lustre | Gpfs, reads: ReadPattern, clients: Clients) -> EpochTime:
    """Predict the time in which all clients together read an epoch.

    Returns:
        EpochTime: the time of each part.
    """
    parts = storage.parts(reads, clients)
    return EpochTime(tuple(sorted(parts.items(), key=lambda part: -part[1])))


def _shared(storage: Lustre | Gpfs, reads: ReadPattern, clients: Clients) -> dict[str, float]:
    busy = storage.busy(reads, clients)
    operations = (reads.opens + reads.requests) / clients.count
    return {
        "requests": reads.requests / (busy * storage.requests_per_s),
        "bandwidth": reads.nbytes / (busy * storage.bytes_per_s),
        "client link": reads.nbytes / clients.count / clients.bytes_per_s,
        "network": reads.nbytes / storage.total_bytes_per_s,
        "latency": operations * storage.latency_s / clients.in_flight,
    }


def _check_total(bytes_per_s: float) -> None:
    then = "Leave it out for no limit."
    require(bytes_per_s > 0, "total_bytes_per_s", "be above 0", bytes_per_s, then)


@dataclass(frozen=True)
class ClientShare:
    """Seconds that one client pays per open, request and byte.

    The first four are work of parts of the storage that serve one request after the other; the
    latency is travel time, which concurrent requests spend at once.
    """

    open_s: float = 0.0
    request_s: float = 0.0
    open_as_request_s: float = 0.0
    byte_s: float = 0.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(0 <= value < float("inf"), name, "be at least 0 and finite", value)

    def parts(self, opens: int, requests: int, nbytes: float) -> dict[str, float]:
        """Return how long each part of the storage is busy (s)."""
        return {
            "metadata": opens * self.open_s,
            "requests": requests * self.request_s + opens * self.open_as_request_s,
            "bandwidth": nbytes * self.byte_s,
        }

    def least_s(self, opens: int, requests: int, nbytes: float, readers: int = 1) -> float:
        """Return a lower bound of the time (s): all parts work at once."""
        travelling = (opens + requests) * self.latency_s / require_count(readers, "readers")
        return max(*self.parts(opens, requests, nbytes).values(), travelling)


class Throttle:
    """Delays the readers of a process, in all its threads, as a slow storage would.

    For each part of the storage it keeps the time until which that part is busy. A request joins
    the end of each queue and then takes its latency: concurrent readers share the bandwidth and
    overlap in the latency. Waiting sleeps and uses no core.
    """

    def __init__(self, share: ClientShare) -> None:
        self.share = share
        self._busy_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, opens: int, requests: int, nbytes: float) -> None:
        """Wait for reads that have just been done."""
        now = perf_counter()
        with self._lock:
            done = now
            for part, seconds in self.share.parts(opens, requests, nbytes).items():
                if seconds:
                    begin = max(self._busy_until.get(part, 0.0), now - BURST_S)
                    self._busy_until[part] = begin + seconds
                    done = max(done, begin + seconds)
        wait_s = done + (opens + requests) * self.share.latency_s - perf_counter()
        if wait_s > 0:
            sleep(wait_s)

    def __getstate__(self) -> dict[str, Any]:
        return {"share": self.share}  # another process has another clock

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["share"])


def throttle(
    storage: Disk | Lustre | Gpfs, reads: ReadPattern, clients: Clients, shared_by: int = 1
) -> Throttle:
    """Imitate a storage as one of its clients experiences it while all of them read.

    The parts of `storage.parts(reads, clients)` are divided by what one client does in the
    epoch. So the client's share of the epoch takes what `epoch` predicts, between its `least_s`
    and its `most_s`; for that, `clients.in_flight` must be the number of readers.

    Args:
        storage: what is imitated.
        reads: of all clients in an epoch.
        clients: their number and their links.
        shared_by: ranks of this machine that share one client's part, each with its own throttle.

    Returns:
        For `input_pipeline.Pipeline(..., throttle=...)`.

    Raises:
        ValueError: if `shared_by` is no positive integer.
    """
    shared = require_count(shared_by, "shared_by")
    parts = storage.parts(reads, clients)
    opens, requests = reads.opens / clients.count, reads.requests / clients.count
    nbytes = reads.nbytes / clients.count
    links = [parts.get(name, 0.0) for name in ("bandwidth", "client link", "network")]
    local = "metadata" not in parts
    request_s = parts["requests"] / (requests + (opens if local else 0)) * shared
    return Throttle(
        ClientShare(
            open_s=0.0 if local else parts["metadata"] / opens * shared,
            request_s=request_s,
            open_as_request_s=request_s if local else 0.0,
            byte_s=max(links) / nbytes * shared,
            latency_s=storage.latency_s,
        )
    )
