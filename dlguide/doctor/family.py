"""The memory of a process and all that it has started, looked at while it runs."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from types import TracebackType

import psutil

from dlguide.checks import require_positive

_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.M)


def memory_bytes(pids: list[int]) -> int:
    """Add up what processes keep in memory.

    A page that several share counts once in all: the proportional set size, where the system
    shows it, and the resident size, which counts such a page again for each, where it does not.

    Args:
        pids: the processes; those that are gone count nothing.

    Returns:
        int: bytes.
    """
    return sum(map(_one, pids))


def _one(pid: int) -> int:
    with contextlib.suppress(OSError):
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
        if found:
            return int(found[1]) * 1024
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).memory_info().rss
    return 0


class Watch:
    """Watch the memory of all that this process starts, in a thread beside it.

    Args:
        period_s: time between two looks (s).
    """

    def __init__(self, period_s: float = 1.0) -> None:
        self.period_s = require_positive(period_s, "period_s")
        self.worst_bytes = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        me = psutil.Process()
        while not self._over.wait(self.period_s):
            with contextlib.suppress(psutil.Error):
                family = [child.pid for child in me.children(recursive=True)]
                self.worst_bytes = max(self.worst_bytes, memory_bytes(family))
