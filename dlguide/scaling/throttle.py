"""A slow storage to be felt: reading waits as long as one client of a large one would."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from dlguide.errors import require, require_count
from dlguide.scaling.reading import Reading
from dlguide.scaling.storage import Clients, Disk, Gpfs, Lustre

# A sleep lasts a little longer than asked for; so much may be made up by what follows (s).
BURST_S = 0.002


@dataclass(frozen=True)
class Share:
    """What one client pays, in seconds.

    Each of the first four is the work of a part of the storage that does one thing after the
    other, whoever waits; the latency is time on the way, which requests spend side by side.
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
        """Work out how long each part of the storage is busy."""
        return {
            "metadata": opens * self.open_s,
            "requests": requests * self.request_s + opens * self.open_as_request_s,
            "bandwidth": nbytes * self.byte_s,
        }

    def least_s(self, opens: int, requests: int, nbytes: float, readers: int = 1) -> float:
        """Predict the time of some reading from below: all parts work at once."""
        on_the_way = (opens + requests) * self.latency_s / require_count(readers, "readers")
        return max(*self.parts(opens, requests, nbytes).values(), on_the_way)


class Throttle:
    """Makes those who read wait; one object for all threads of a process.

    Each part of the storage has a clock that says until when it is busy. A request goes to the
    end of each queue and then takes its latency: readers side by side share the bandwidth and
    overlap in the latency. The waiting sleeps, it uses no core.
    """

    def __init__(self, share: Share) -> None:
        self.share = share
        self._busy_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, opens: int, requests: int, nbytes: float) -> None:
        """Wait for some reading that has just been done."""
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
        return {"share": self.share}  # the clock of another process is another one

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["share"])


def of(
    storage: Disk | Lustre | Gpfs, reading: Reading, clients: Clients, shared_by: int = 1
) -> Throttle:
    """Imitate a storage as one of its clients feels it while all of them read.

    The parts of `storage.parts(reading, clients)` are divided by what one client does in the
    epoch. So the client's part of the epoch takes what `storage.epoch` predicts, between its
    `least_s` and its `most_s`; `clients.in_flight` must be the number of readers for that.

    Args:
        storage: what is imitated.
        reading: what all clients do in an epoch.
        clients: how many there are, and their links.
        shared_by: ranks of this machine that share one client's part, each with a throttle of
            its own (count).

    Returns:
        Throttle: for `input_pipeline.build(..., throttle=...)`.

    Raises:
        ValueError: when `shared_by` is no count.
    """
    shared = require_count(shared_by, "shared_by")
    parts = storage.parts(reading, clients)
    opens, requests = reading.opens / clients.count, reading.requests / clients.count
    nbytes = reading.nbytes / clients.count
    links = [parts.get(name, 0.0) for name in ("bandwidth", "client link", "network")]
    local = "metadata" not in parts
    request_s = parts["requests"] / (requests + (opens if local else 0)) * shared
    return Throttle(
        Share(
            open_s=0.0 if local else parts["metadata"] / opens * shared,
            request_s=request_s,
            open_as_request_s=request_s if local else 0.0,
            byte_s=max(links) / nbytes * shared,
            latency_s=storage.latency_s,
        )
    )
