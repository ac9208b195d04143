"""The program that ends a cluster's processes when the owner of the cluster is gone.

A notebook's kernel that is killed with SIGKILL cannot clean up. This process waits for the
owner's end, of which the operating system notifies it at once, and ends the rest.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path

from dlguide.cluster import processes


def watch(owner_pid: int, cluster: str, folder: Path) -> None:
    """Wait until the owner has ended, then end the cluster's processes."""
    try:
        owner = os.pidfd_open(owner_pid)
    except ProcessLookupError:
        pass  # it ended before this process had started
    else:
        select.select([owner], [], [])
    processes.end(cluster)
    processes.remove_folder(folder)


if __name__ == "__main__":
    # Ctrl-C in a terminal reaches all its processes; this one has to stay.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
