"""Outlive the owner of a cluster, in order to end its processes when the owner is gone.

A notebook's kernel may be killed with SIGKILL and cannot clean up then. This process waits for
the owner's end (the kernel of the system tells it at once) and ends what is left.
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
    # A Ctrl-C in a terminal goes to all its processes; this one has to stay.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
