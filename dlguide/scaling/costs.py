"""What communication costs: links, collectives, parameter servers, and the laws of speed-up.

p workers, n bytes on each, latency a, b seconds per byte on the link, c seconds per byte added:

    tree                 2 ceil(log2 p) (a + n b) + ceil(log2 p) n c
    recursive doubling   log2 p (a + n (b + c))
    ring                 2 (p - 1) a + (p - 1)/p n (2 b + c)
    halving doubling     2 log2 p a + (p - 1)/p n (2 b + c)
    parameter server     2 m (a + n/k b) + p n/k c, with k servers and m = max(p, k)

If p is no power of two, q is the largest one below it; the remaining workers send their array to a
neighbour first and receive the result last: a + n (b + c) and a + n b more, and q instead of p.
These are the algorithms of `dlguide.collectives`, message for message.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dlguide import published
from dlguide.errors import require, require_count, require_known, require_positive

__all__ = [
    "ALLREDUCES",
    "Link",
    "allgather",
    "allreduce",
    "alltoall",
    "amdahl",
    "broadcast",
    "fit_link",
    "gustafson",
    "hierarchical",
    "link",
    "link_names",
    "parameter_server",
    "reduce_scatter",
    "slowest",
]


@dataclass(frozen=True)
class Link:
    """Hockney's model of a link: a message of n bytes takes `latency_s` + n / `bytes_per_s`.

    Both directions work at once; a worker sends one message and receives one at a time. Leaves
    out the switch from the eager to the rendezvous protocol.

    Args:
        latency_s: time of an empty message (s).
        bytes_per_s: bandwidth in one direction (bytes/s).
        added_bytes_per_s: rate at which the receiver adds an array to its own (bytes/s); infinite
            leaves that out.

    Raises:
        ValueError: if the latency is negative or a rate is not positive.

    Source:
        Hockney, Parallel Computing 20 (1994), 389-398.
    """

    latency_s: float
    bytes_per_s: float
    added_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        require(0 <= self.latency_s < math.inf, "latency_s", "be at least 0", self.latency_s)
        require_positive(self.bytes_per_s, "bytes_per_s")
        rate = self.added_bytes_per_s
        require(rate > 0, "added_bytes_per_s", "be positive", rate)

    def seconds(self, nbytes: float) -> float:
        """Return the time of one message (s)."""
        return self.latency_s + nbytes / self.bytes_per_s

    def adding(self, nbytes: float) -> float:
        """Return the time in which the receiver adds an array of `nbytes` (s)."""
        return nbytes / self.added_bytes_per_s

    def shared(self, flows: int) -> Link:
        """Return the link as each of several equal flows sees it (contention).

        Four workers of a node that send through its one network card at once have a quarter of
        the bandwidth each; the latency stays.
        """
        return replace(self, bytes_per_s=self.bytes_per_s / require_count(flows, "flows"))


def link_names(folder: str | os.PathLike | None = None) -> tuple[str, ...]:
    """List the links of `data/published/links.csv`, the oldest first.

    Args:
        folder: the data folder that holds `published/`; None searches for it.

    Returns:
        tuple: names.
    """
    rows = sorted(published.load("links", folder), key=lambda row: row["year"])
    return tuple(row["name"] for row in rows)


def link(
    name: str,
    efficiency: float = 1.0,
    latency_s: float | None = None,
    folder: str | os.PathLike | None = None,
) -> Link:
    """Return a published link by its name.

    The column `latency_is` of the table says what its latency is: measured between two
    programs, an upper bound that a vendor states for the adapter alone, or the value with which
    a library calculates. A program sees more than an adapter: the bounds are best cases. Leaves
    out the switches, and the cost of adding.

    Args:
        name: one of `link_names()`, such as "InfiniBand EDR".
        efficiency: share of the data rate that an application gets (fraction).
        latency_s: of an empty message (s); None takes the table's, which some links lack.
        folder: the data folder that holds `published/`; None searches for it.

    Raises:
        ValueError: if there is no such link (the nearest name is offered), its latency was not
            found published, or a value is out of range.
    """
    rows = {row["name"]: row for row in published.load("links", folder)}
    row = rows[require_known(name, rows, "name")]
    require(0 < efficiency <= 1, "efficiency", "be above 0 and at most 1", efficiency)
    if latency_s is None:
        must, then = "be a link whose latency we found published", "Give `latency_s` yourself."
        require(row["latency_us"] is not None, "name", must, name, then)
        latency_s = row["latency_us"] / 1e6
    return Link(latency_s, efficiency * row["gbit_per_s"] * 1e9 / 8)


def fit_link(points: Iterable[tuple[float, float]]) -> Link:
    """Fit a link to measured messages: t = latency_s + nbytes / bytes_per_s.

    A straight line with the least squared *relative* error, so that microseconds of small
    messages count as much as milliseconds of large ones.

    Args:
        points: pairs of a message's size (bytes) and its time (s), at least two sizes.

    Returns:
        Link: latency and bandwidth.

    Raises:
        ValueError: if there are fewer than two sizes, a time is not positive, or larger
            messages take no longer than small ones.
    """
    pairs = [(float(nbytes), float(seconds)) for nbytes, seconds in points]
    two = len({nbytes for nbytes, _ in pairs}) > 1
    require(two, "points", "hold two sizes at least", pairs)
    require(min(seconds for _, seconds in pairs) > 0, "points", "have positive times", pairs)
    nbytes, seconds = np.array(pairs).T
    scaled = np.stack([1 / seconds, nbytes / seconds], 1)
    latency_s, per_byte = np.linalg.lstsq(scaled, np.ones(len(pairs)), rcond=None)[0]
    if latency_s < 0:  # no message takes less than no time
        latency_s, per_byte = 0.0, float(scaled[:, 1].sum() / (scaled[:, 1] ** 2).sum())
    require(per_byte > 0, "points", "have larger times for larger messages", pairs)
    return Link(float(latency_s), float(1 / per_byte))


def allreduce(algorithm: str, nbytes: float, workers: int, link: Link) -> float:
    """Predict the time of an allreduce (s); 0.0 for one worker.

    Args:
        algorithm: one of `ALLREDUCES`.
        nbytes: size of the array on every worker (bytes).
        workers: number of workers.
        link: between any two of them.

    Returns:
        float: time (s).

    Raises:
        ValueError: if there is no such algorithm or a value is out of range.

    Source:
        Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), 49-66.
    """
    formula = ALLREDUCES[require_known(algorithm, ALLREDUCES, "algorithm")]
    return formula(_size(nbytes), require_count(workers, "workers"), link)


def hierarchical(
    nbytes: float, nodes: int, workers_per_node: int, inside: Link, between: Link
) -> float:
    """Predict a tree inside each node, a ring among the nodes, a broadcast tree inside (s).

    Args:
        nbytes: size of the array on every worker (bytes).
        nodes: number of nodes.
        workers_per_node: workers of each node.
        inside: the link between workers of a node.
        between: the link between nodes.

    Returns:
        float: time (s).

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.
    """
    depth = _depth(require_count(workers_per_node, "workers_per_node"))
    n = _size(nbytes)
    inner = depth * (2 * inside.seconds(n) + inside.adding(n))
    return inner + _ring(n, require_count(nodes, "nodes"), between)


def parameter_server(nbytes: float, workers: int, servers: int, link: Link) -> float:
    """Predict that all workers send their gradients to servers and receive the weights (s).

    Each server holds 1/k of the weights and serves one worker after the other, so the time grows
    with p / k; with more servers than workers the workers' own messages are the limit.

    Args:
        nbytes: size of all gradients (bytes).
        workers: number of workers.
        servers: number of servers.
        link: between a worker and a server.

    Returns:
        float: time (s).

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.

    Source:
        The law t ~ p/k: Li et al., Scaling distributed machine learning with the parameter
        server, OSDI (2014); Nyholm's thesis, 3.2.1.
    """
    part = _size(nbytes) / require_count(servers, "servers")
    messages = max(require_count(workers, "workers"), servers)
    return 2 * messages * link.seconds(part) + workers * link.adding(part)


def broadcast(nbytes: float, workers: int, link: Link) -> float:
    """Predict a broadcast along a binomial tree: ceil(log2 p) (a + n b) (s).

    Returns:
        float: time (s).

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.
    """
    return _depth(require_count(workers, "workers")) * link.seconds(_size(nbytes))


def reduce_scatter(nbytes: float, workers: int, link: Link) -> float:
    """Predict a reduce-scatter of arrays of `nbytes` in a ring: (p - 1) (a + n/p (b + c)) (s).

    Returns:
        float: time (s).

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.
    """
    part = _size(nbytes) / require_count(workers, "workers")
    return (workers - 1) * (link.seconds(part) + link.adding(part))


def allgather(nbytes: float, workers: int, link: Link) -> float:
    """Predict an allgather in a ring: (p - 1) (a + n/p b) (s); `nbytes` is the whole result.

    Returns:
        float: time (s).

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.
    """
    part = _size(nbytes) / require_count(workers, "workers")
    return (workers - 1) * link.seconds(part)


def alltoall(nbytes: float, workers: int, link: Link) -> float:
    """Predict an exchange between all pairs, `nbytes` on each worker: (p - 1) (a + n/p b) (s).

    Returns:
        float: time (s).
    """
    return allgather(nbytes, workers, link)


def amdahl(serial_fraction: float, workers: int) -> float:
    """Return the speed-up of a fixed amount of work: 1 / (s + (1 - s) / p), at most 1 / s.

    Args:
        serial_fraction: s, the share that only one worker can do, measured on one worker.
        workers: p.

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.

    Source:
        Amdahl, AFIPS Conference Proceedings 30 (1967), 483-485.
    """
    s = _fraction(serial_fraction)
    return 1 / (s + (1 - s) / require_count(workers, "workers"))


def gustafson(serial_fraction: float, workers: int) -> float:
    """Return the speed-up of work that grows with the workers: s + (1 - s) p.

    Args:
        serial_fraction: s, the share of time in which one worker works, measured on p workers.
        workers: p.

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.

    Source:
        Gustafson, Communications of the ACM 31 (1988), 532-533.
    """
    s = _fraction(serial_fraction)
    return s + (1 - s) * require_count(workers, "workers")


@cache
def slowest(workers: int) -> float:
    """Expected time of the slowest of p workers, in standard deviations above the mean.

    For independent, normally distributed step times: 0 for one worker, 0.56 for 2, 1.03 for 4,
    2.5 for 100, 3.2 for 1000; it grows like sqrt(2 ln p).

    Returns:
        float: standard deviations; 0.0 for one worker.

    Raises:
        ValueError: if a number of workers or nodes is not a whole number of at least 1.
    """
    p = require_count(workers, "workers")
    if p == 1:
        return 0.0
    from scipy.integrate import quad
    from scipy.special import ndtr

    # E[max] is the integral of 1 - F(x)^p - F(-x)^p over x > 0, F the normal distribution.
    return quad(lambda x: 1 - ndtr(x) ** p - ndtr(-x) ** p, 0, 9, limit=200)[0]


def _tree(nbytes: float, workers: int, link: Link) -> float:
    return _depth(workers) * (2 * link.seconds(nbytes) + link.adding(nbytes))


def _ring(nbytes: float, workers: int, link: Link) -> float:
    return reduce_scatter(nbytes, workers, link) + allgather(nbytes, workers, link)


def _recursive_doubling(nbytes: float, workers: int, link: Link) -> float:
    steps = workers.bit_length() - 1
    folded = _folding(nbytes, workers, link)
    return folded + steps * (link.seconds(nbytes) + link.adding(nbytes))


def _halving_doubling(nbytes: float, workers: int, link: Link) -> float:
    steps = workers.bit_length() - 1
    moved = nbytes * (1 - 2.0**-steps)
    halved = steps * link.latency_s + moved / link.bytes_per_s
    return _folding(nbytes, workers, link) + 2 * halved + link.adding(moved)


def _folding(nbytes: float, workers: int, link: Link) -> float:
    """Seconds that workers beyond a power of two cost; 0.0 if there are none."""
    if workers & (workers - 1) == 0:
        return 0.0
    return 2 * link.seconds(nbytes) + link.adding(nbytes)


def _depth(workers: int) -> int:
    """Levels of a binomial tree: the base-2 logarithm, rounded up."""
    return (workers - 1).bit_length()


def _size(nbytes: float) -> float:
    require(0 <= nbytes < math.inf, "nbytes", "be at least 0", nbytes)
    return float(nbytes)


def _fraction(value: float) -> float:
    require(0 <= value <= 1, "serial_fraction", "lie between 0 and 1", value)
    return value


ALLREDUCES: dict[str, Callable[[float, int, Link], float]] = {
    "tree": _tree,
    "recursive_doubling": _recursive_doubling,
    "ring": _ring,
    "halving_doubling": _halving_doubling,
}
