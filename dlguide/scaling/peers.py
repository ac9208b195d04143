"""Each node keeps a part of the data and the others fetch it from there (the idea of FanStore).

The shared file system is then read once, from begin to end. What it is spared goes over the
network between the nodes, which is made for many messages at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlguide.errors import require, require_count, require_positive


@dataclass(frozen=True)
class Exchange:
    """What an epoch costs when each node keeps a part."""

    kept_nbytes: float
    fetched_nbytes: float
    total_nbytes: float
    messages: float
    seconds: float


def exchange(
    samples: int,
    sample_nbytes: float,
    nodes: int,
    bytes_per_s: float,
    latency_s: float = 0.0,
    copies: int = 1,
) -> Exchange:
    """Work out the network's part of an epoch.

    With `copies` c of each sample on n nodes, a sample drawn at random lies on the node itself
    with probability c / n. Each node reads samples / n of them:

        fetched = samples / n * sample_nbytes * (1 - c / n)

    so the network carries nearly the whole data set each epoch, however many nodes there are,
    and each node's part falls with n. Leaves out that some nodes are asked more often than
    others in a step.

    Args:
        samples: samples in the data set (count).
        sample_nbytes: mean size of a sample (bytes).
        nodes: nodes that keep and read (count).
        bytes_per_s: speed of a node's link in one direction (bytes/s).
        latency_s: time of an empty message (s); one for each fetched sample.
        copies: nodes that keep the same sample (count).

    Returns:
        Exchange: bytes, messages and time.

    Source:
        Zhang et al., FanStore, arXiv:1809.10799 (2018), for the idea; the formula is ours.
    """
    samples, nodes = require_count(samples, "samples"), require_count(nodes, "nodes")
    copies = require_count(copies, "copies")
    require(copies <= nodes, "copies", f"be at most the {nodes} nodes", copies)
    require(latency_s >= 0, "latency_s", "be at least 0", latency_s)
    nbytes = samples * require_positive(sample_nbytes, "sample_nbytes")
    messages = samples / nodes * (1 - copies / nodes)
    fetched = messages * sample_nbytes
    seconds = messages * latency_s + fetched / require_positive(bytes_per_s, "bytes_per_s")
    return Exchange(nbytes * copies / nodes, fetched, nodes * fetched, messages, seconds)


def copies_that_fit(nbytes: float, nodes: int, room_nbytes: float) -> int:
    """Count how many copies of a data set the nodes together have room for."""
    room = require_count(nodes, "nodes") * require_positive(room_nbytes, "room_nbytes")
    return min(nodes, int(room // require_positive(nbytes, "nbytes")))


def shared_bytes(nbytes: float, nodes: int, epochs: int) -> dict[str, float]:
    """Work out what is read from the shared file system in a run, by the way it is used.

    A copy of the whole to each node is not always less to read than reading each epoch: it is
    more when there are more nodes than epochs. It is then still few opens and in order, and one
    node that reads and sends to the others makes it one reading again.
    """
    nbytes = require_positive(nbytes, "nbytes")
    return {
        "read each epoch": require_count(epochs, "epochs") * nbytes,
        "each node copies all": require_count(nodes, "nodes") * nbytes,
        "one reads and sends to all": nbytes,
        "each node keeps a part": nbytes,
    }
