"""How much memory an answer may take, and whether it has taken more."""

from __future__ import annotations

import resource
from pathlib import Path
from types import TracebackType

MOST_BYTES = 1_000_000_000  # that an answer adds to the process
REFUSED_BYTES = 2_000_000_000  # and so much at once is refused by the system


class Limit:
    """A limit of the memory that this process may add, from `__enter__` to `__exit__`.

    Half of what is free at most. A single allocation that is far too large is refused by the
    system, before it fills the machine; what grows step by step is seen by `exceeded`.

    Processes that are started meanwhile inherit what the system refuses.
    """

    def __init__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_DATA)
        self.most_bytes, self.begin_bytes, self.ceiling = MOST_BYTES, 0, 0

    def __enter__(self) -> Limit:
        free = _free_bytes()
        self.most_bytes = min(MOST_BYTES, free // 2)
        self.begin_bytes = _status("VmRSS")
        room = max(min(REFUSED_BYTES, free), self.most_bytes)
        self.ceiling = _status("VmData") + room
        self.limit()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.lift()

    def limit(self) -> None:
        """Let the system refuse what is too large."""
        soft, hard = self.before
        if self.ceiling and (soft < 0 or soft > self.ceiling):
            resource.setrlimit(resource.RLIMIT_DATA, (self.ceiling, hard))

    def lift(self) -> None:
        """Let the system grant what it granted before."""
        resource.setrlimit(resource.RLIMIT_DATA, self.before)

    def exceeded(self) -> bool:
        """Look whether the process has grown by more than is allowed.

        Returns:
            bool: True when it has.
        """
        return _status("VmRSS") - self.begin_bytes > self.most_bytes

    def told(self) -> str:
        """Say what was too much.

        Returns:
            str: the words.
        """
        return f"needs more than {self.most_bytes / 1e6:.0f} MB of memory"


def _status(name: str) -> int:
    """Read a size of this process from the system's own count (bytes)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _free_bytes() -> int:
    import psutil

    from dlguide.machine.limits import memory_bytes

    group = memory_bytes(Path("/sys"), Path("/proc"))
    free = psutil.virtual_memory().available
    return min(free, max(group - _status("VmRSS"), 0)) if group else free
