"""Links between accelerators of one node as a graph, and the best ring in it.

A ring allreduce goes as fast as the slowest link of its ring, so the order of the ranks matters:
NCCL looks for such rings when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlguide.errors import require

Links = Mapping[tuple[int, int], float]

_ONE = 50e9  # an NVLink 2.0, both directions together (bytes/s)
_DOUBLE = ((0, 1), (0, 4), (1, 2), (2, 3), (3, 7), (4, 5), (5, 6), (6, 7))
_SINGLE = ((0, 2), (0, 3), (1, 3), (1, 5), (2, 6), (4, 6), (4, 7), (5, 7))

# DGX-1 with V100: 6 links a GPU, both directions together. Numbered as in the guide's section
# 4.1 (0-1 double, 0-3 single); nvidia-smi of a real system may number the same graph otherwise.
# Source: NVIDIA DGX-1 with Tesla V100 system architecture, white paper 2017.
DGX_1 = {**dict.fromkeys(_DOUBLE, 2 * _ONE), **dict.fromkeys(_SINGLE, _ONE)}

_MOST = 16


@dataclass(frozen=True)
class Ring:
    """A way through all devices and back."""

    order: tuple[int, ...]
    bytes_per_s: float


def devices(links: Links) -> tuple[int, ...]:
    """List the devices of a graph of links."""
    return tuple(sorted({device for pair in links for device in pair}))


def bandwidth(links: Links, one: int, other: int) -> float:
    """Give the bandwidth between two devices.

    >>> bandwidth(DGX_1, 3, 0) / 1e9
    50.0
    """
    return links.get((one, other), links.get((other, one), 0.0))


def best_ring(links: Links) -> Ring | None:
    """Find a ring through all devices whose slowest link is as fast as possible.

    Tries the links' speeds from the fastest on: is there a ring of links at least as fast?
    """
    everyone = devices(links)
    few = 3 <= len(everyone) <= _MOST
    require(few, "links", f"link 3 to {_MOST} devices", len(everyone))
    for slowest in sorted(set(links.values()), reverse=True):
        fast = {pair: speed for pair, speed in links.items() if speed >= slowest}
        order = _through((everyone[0],), everyone, fast)
        if order:
            return Ring(order, slowest)
    return None


def rings(links: Links, width: float) -> tuple[Ring, ...]:
    """Take rings of one link's width out of a graph, one after the other, until none is left.

    So several rings can carry their share of the data side by side. Takes the best one first,
    which need not give the most rings.
    """
    require(width > 0, "width", "be positive", width)
    left, found = dict(links), []
    while devices(left) == devices(links) and (ring := best_ring(left)):
        found.append(Ring(ring.order, width))
        for pair in _pairs(ring.order):
            key = pair if pair in left else pair[::-1]
            left[key] -= width
            if left[key] < width:
                del left[key]
    return tuple(found)


def _through(way: tuple[int, ...], everyone: tuple[int, ...], links: Links) -> tuple[int, ...]:
    if len(way) == len(everyone):
        return way if bandwidth(links, way[-1], way[0]) else ()
    for device in everyone:
        if device not in way and bandwidth(links, way[-1], device):
            whole = _through((*way, device), everyone, links)
            if whole:
                return whole
    return ()


def _pairs(order: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(order, (*order[1:], order[0]), strict=True))
