"""Links by name: latency and data rate as published, or as two measured messages tell."""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np

from dlguide import published
from dlguide.errors import require, require_known
from dlguide.scaling.costs.link import Link


def link_names(folder: str | os.PathLike | None = None) -> tuple[str, ...]:
    """List the links of `data/published/links.csv`, the oldest first.

    Args:
        folder: the data folder that holds `published/`; None looks for it.

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
    """Give a link by its name.

    The column `latency_is` of the table says what its latency is: measured between two
    programs, an upper bound that a vendor states for the adapter alone, or the number with which
    a library reckons. A program sees more than an adapter: the bounds are best cases. Leaves out
    the switches, and what adding costs.

    Args:
        name: one of `link_names()`, such as "InfiniBand EDR".
        efficiency: what of the rate an application gets (fraction).
        latency_s: of an empty message, in place of the table's, which has not one for every
            link (s).
        folder: the data folder that holds `published/`; None looks for it.

    Returns:
        Link: one direction of it.

    Raises:
        ValueError: when there is no such link (the nearest name is offered), none has published
            its latency, or a number is out of range.
    """
    rows = {row["name"]: row for row in published.load("links", folder)}
    row = rows[require_known(name, rows, "name")]
    require(0 < efficiency <= 1, "efficiency", "be above 0 and at most 1", efficiency)
    if latency_s is None:
        then = "Give `latency_s` yourself."
        must = "be a link whose latency we found published"
        require(row["latency_us"] is not None, "name", must, name, then)
        latency_s = row["latency_us"] / 1e6
    return Link(latency_s, efficiency * row["gbit_per_s"] * 1e9 / 8)


def fitted(points: Iterable[tuple[float, float]]) -> Link:
    """Find the link that measured messages went over.

        t = latency_s + nbytes / bytes_per_s

    A straight line with the least squared *relative* error, so that microseconds of small
    messages count as much as milliseconds of large ones.

    Args:
        points: pairs of a message's size (bytes) and the time of its way (s), two sizes at least.

    Returns:
        Link: without the cost of adding.

    Raises:
        ValueError: when there are fewer than two sizes, a time is not positive, or larger
            messages take no longer than small ones.
    """
    pairs = [(float(nbytes), float(seconds)) for nbytes, seconds in points]
    two = len({nbytes for nbytes, _ in pairs}) > 1
    require(two, "points", "hold two sizes at least", pairs)
    require(min(seconds for _, seconds in pairs) > 0, "points", "have positive times", pairs)
    nbytes, seconds = np.array(pairs).T
    scaled = np.stack([1 / seconds, nbytes / seconds], 1)
    latency_s, per_byte = np.linalg.lstsq(scaled, np.ones(len(pairs)), rcond=None)[0]
    if latency_s < 0:  # nothing can be sent in less than no time
        latency_s, per_byte = 0.0, float(scaled[:, 1].sum() / (scaled[:, 1] ** 2).sum())
    require(per_byte > 0, "points", "have larger times for larger messages", pairs)
    return Link(float(latency_s), float(1 / per_byte))
