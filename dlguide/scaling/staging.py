"""How long it takes to bring a data set to the nodes, and after how many epochs that pays."""

from __future__ import annotations

import math

from dlguide.errors import require, require_count, require_positive


def copy_seconds(
    nbytes: float,
    nodes: int,
    shared_bytes_per_s: float,
    link_bytes_per_s: float,
    write_bytes_per_s: float,
) -> dict[str, float]:
    """Predict the time to bring a packed data set from the shared file system to all nodes.

    On a node, what arrives on its link is written to its disk at the same time. So each way takes
    as long as the slowest of three: the shared file system, a node's link, a node's disk.

        each node copies all         max(n b / shared, b / link, b / write)
        one reads and sends to all   max(b / shared, b / link, b / write)
        each node keeps a part       max(b / shared, b / n / link, b / n / write)

    The second passes the data on from node to node in small pieces, all links at work at once.
    Leaves out opens and latency: the data must be packed.

    >>> {way: round(s) for way, s in copy_seconds(42e9, 448, 50e9, 1.25e9, 1e9).items()}
    {'each node copies all': 376, 'one reads and sends to all': 42, 'each node keeps a part': 1}
    """
    nbytes, nodes = require_positive(nbytes, "nbytes"), require_count(nodes, "nodes")
    shared = require_positive(shared_bytes_per_s, "shared_bytes_per_s")
    slower = min(
        require_positive(link_bytes_per_s, "link_bytes_per_s"),
        require_positive(write_bytes_per_s, "write_bytes_per_s"),
    )
    return {
        "each node copies all": max(nodes * nbytes / shared, nbytes / slower),
        "one reads and sends to all": max(nbytes / shared, nbytes / slower),
        "each node keeps a part": max(nbytes / shared, nbytes / nodes / slower),
    }


def epochs_to_pay(copy_s: float, shared_epoch_s: float, local_epoch_s: float) -> float:
    """Count the epochs from which on a copy on the nodes is quicker in all.

    After k epochs the copy has been worth its time when

        copy_s + k * local_epoch_s < k * shared_epoch_s

    Times of reading only; where the net needs longer than the reading, nothing is won by a copy.

    >>> epochs_to_pay(42.0, 64.0, 1.0), epochs_to_pay(42.0, 1.0, 1.0)
    (1, inf)
    """
    require(copy_s >= 0, "copy_s", "be at least 0", copy_s)
    shared_epoch_s = require_positive(shared_epoch_s, "shared_epoch_s")
    saved_s = shared_epoch_s - require_positive(local_epoch_s, "local_epoch_s")
    return math.floor(copy_s / saved_s) + 1 if saved_s > 0 else math.inf
