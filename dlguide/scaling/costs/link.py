"""A link between two workers: a latency, a bandwidth, and what adding up costs at its end."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

from dlguide import published
from dlguide.errors import require, require_count, require_known, require_positive


@dataclass(frozen=True)
class Link:
    """Hockney's model of a link: a message of n bytes takes `latency_s` + n / `bytes_per_s`.

    Both directions at once, as links are today; a worker sends one message and receives one at a
    time. Leaves out that small and large messages go different ways (eager and rendezvous).

    Args:
        latency_s: time of an empty message (s).
        bytes_per_s: bandwidth in one direction (bytes/s).
        added_bytes_per_s: how fast the receiver adds an array to its own (bytes/s); infinite
            leaves that out.

    Raises:
        ValueError: when the latency is negative or a rate is no positive number.

    Source:
        Hockney, Parallel Computing 20 (1994), 389-398.
    """

    latency_s: float
    bytes_per_s: float
    added_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        require(0 <= self.latency_s < math.inf, "latency_s", "be at least 0", self.latency_s)
        require_positive(self.bytes_per_s, "bytes_per_s")
        require(
            self.added_bytes_per_s > 0, "added_bytes_per_s", "be positive", self.added_bytes_per_s
        )

    @classmethod
    def published(
        cls,
        name: str,
        latency_s: float,
        efficiency: float = 1.0,
        folder: str | os.PathLike | None = None,
    ) -> Link:
        """Take the bandwidth of a network from the tutorial's table; it states no latencies.

        Args:
            name: as in `data/published/interconnects.csv`, such as "InfiniBand 4X FDR".
            latency_s: time of an empty message (s).
            efficiency: what of the rate an application gets (fraction).
            folder: the data folder that holds `published/`; None looks for it.

        Returns:
            Link: without the cost of adding.

        Raises:
            ValueError: when the table has no such network, or a number is out of range.
        """
        rates = {row["name"]: row["gbit_per_s"] for row in published.load("interconnects", folder)}
        rate = rates[require_known(name, rates, "name")]
        require(0 < efficiency <= 1, "efficiency", "be above 0 and at most 1", efficiency)
        return cls(latency_s, efficiency * rate * 1e9 / 8)

    def seconds(self, nbytes: float) -> float:
        """Predict one message.

        Args:
            nbytes: its size (bytes).

        Returns:
            float: time (s).
        """
        return self.latency_s + nbytes / self.bytes_per_s

    def adding(self, nbytes: float) -> float:
        """Predict how long the receiver adds what has come.

        Args:
            nbytes: its size (bytes).

        Returns:
            float: time (s).
        """
        return nbytes / self.added_bytes_per_s

    def shared(self, flows: int) -> Link:
        """Give the link as each of several equal flows sees it: contention.

        Four workers of a node that send through its one network card at once have a quarter of
        the bandwidth each; what a message costs when it is empty stays.

        Args:
            flows: how many send at the same time (count).

        Returns:
            Link: of a `flows`-th of the bandwidth.
        """
        return replace(self, bytes_per_s=self.bytes_per_s / require_count(flows, "flows"))
