"""How long collectives take, from a latency and a bandwidth.

p workers, n bytes on each, a the latency, b seconds a byte on the link, c seconds a byte to add:

    tree                 2 ceil(log2 p) (a + n b) + ceil(log2 p) n c
    recursive doubling   log2 p (a + n (b + c))
    ring                 2 (p - 1) a + (p - 1)/p n (2 b + c)
    halving doubling     2 log2 p a + (p - 1)/p n (2 b + c)
    parameter server     2 m (a + n/k b) + p n/k c, with k servers and m = max(p, k)

Where p is no power of two, q is the largest one below it; the others hand their array to a
neighbour first and get the result last: a + n (b + c) and a + n b more, and q instead of p.
These are the algorithms of `dlguide.collectives`, message for message.
"""

from __future__ import annotations

from collections.abc import Callable

from dlguide.errors import require, require_count, require_known
from dlguide.scaling.costs.link import Link


def allreduce(algorithm: str, nbytes: float, workers: int, link: Link) -> float:
    """Predict an allreduce.

    Args:
        algorithm: one of `ALLREDUCES`.
        nbytes: size of the array on every worker (bytes).
        workers: number of workers (count).
        link: between any two of them.

    Returns:
        float: time (s); 0.0 for one worker.

    Raises:
        ValueError: when there is no such algorithm or a number is out of range.

    Source:
        Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19 (2005), 49-66.
    """
    formula = ALLREDUCES[require_known(algorithm, ALLREDUCES, "algorithm")]
    return formula(_size(nbytes), require_count(workers, "workers"), link)


def best_allreduce(nbytes: float, workers: int, link: Link) -> tuple[str, float]:
    """Find the fastest allreduce, as a library with good tables would.

    Args:
        nbytes: size of the array on every worker (bytes).
        workers: number of workers (count).
        link: between any two of them.

    Returns:
        tuple: its name and time (s).
    """
    seconds = {name: allreduce(name, nbytes, workers, link) for name in ALLREDUCES}
    name = min(seconds, key=seconds.__getitem__)
    return name, seconds[name]


def hierarchical(
    nbytes: float, nodes: int, workers_per_node: int, inside: Link, between: Link
) -> float:
    """Predict a reduction inside each node, a ring among the nodes, a broadcast inside.

    Args:
        nbytes: size of the array on every worker (bytes).
        nodes: number of nodes (count).
        workers_per_node: workers of each (count).
        inside: the link between workers of a node.
        between: the link between nodes.

    Returns:
        float: time (s).
    """
    depth = _depth(require_count(workers_per_node, "workers_per_node"))
    n = _size(nbytes)
    inner = depth * (2 * inside.seconds(n) + inside.adding(n))
    return inner + _ring(n, require_count(nodes, "nodes"), between)


def parameter_server(nbytes: float, workers: int, servers: int, link: Link) -> float:
    """Predict that all workers send their gradients to servers and get the weights back.

    Each server holds 1/k of the weights and serves one worker after the other, so that time grows
    with p / k; with more servers than workers the workers' own messages are what takes time.

    Args:
        nbytes: size of all gradients (bytes).
        workers: number of workers (count).
        servers: number of servers (count).
        link: between a worker and a server.

    Returns:
        float: time (s).

    Source:
        The law t ~ p/k: Li et al., Scaling distributed machine learning with the parameter
        server, OSDI (2014); thesis 3.2.1.
    """
    part = _size(nbytes) / require_count(servers, "servers")
    messages = max(require_count(workers, "workers"), servers)
    return 2 * messages * link.seconds(part) + workers * link.adding(part)


def broadcast(nbytes: float, workers: int, link: Link) -> float:
    """Predict a broadcast along a binomial tree: ceil(log2 p) (a + n b).

    Args:
        nbytes: size of the array (bytes).
        workers: number of workers, the root included (count).
        link: between any two of them.

    Returns:
        float: time (s).
    """
    return _depth(require_count(workers, "workers")) * link.seconds(_size(nbytes))


def reduce_scatter(nbytes: float, workers: int, link: Link) -> float:
    """Predict a reduce-scatter around a ring: (p - 1) (a + n/p (b + c)).

    Args:
        nbytes: size of the whole array on every worker (bytes).
        workers: number of workers (count).
        link: between neighbours.

    Returns:
        float: time (s).
    """
    part = _size(nbytes) / require_count(workers, "workers")
    return (workers - 1) * (link.seconds(part) + link.adding(part))


def allgather(nbytes: float, workers: int, link: Link) -> float:
    """Predict an allgather around a ring: (p - 1) (a + n/p b).

    Args:
        nbytes: size of the whole array that every worker gets (bytes).
        workers: number of workers (count).
        link: between neighbours.

    Returns:
        float: time (s).
    """
    part = _size(nbytes) / require_count(workers, "workers")
    return (workers - 1) * link.seconds(part)


def alltoall(nbytes: float, workers: int, link: Link) -> float:
    """Predict an exchange of rows between all pairs: (p - 1) (a + n/p b).

    Args:
        nbytes: size of the whole array on every worker (bytes).
        workers: number of workers (count).
        link: between any two of them.

    Returns:
        float: time (s).
    """
    return allgather(nbytes, workers, link)


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
    """Seconds that workers beyond a power of two cost; 0.0 where there are none."""
    if workers & (workers - 1) == 0:
        return 0.0
    return 2 * link.seconds(nbytes) + link.adding(nbytes)


def _depth(workers: int) -> int:
    """Levels of a binomial tree: the base-2 logarithm, rounded up."""
    return (workers - 1).bit_length()


def _size(nbytes: float) -> float:
    require(0 <= nbytes < float("inf"), "nbytes", "be at least 0", nbytes)
    return float(nbytes)


ALLREDUCES: dict[str, Callable[[float, int, Link], float]] = {
    "tree": _tree,
    "recursive_doubling": _recursive_doubling,
    "ring": _ring,
    "halving_doubling": _halving_doubling,
}
