"""What ranks are started with: the launcher and the environment variables."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from dlguide.checks import MissingComponentError
from dlguide.cluster import processes
from dlguide.cluster.rank import STALL_WARNING_S
from dlguide.machine import threads


def rank_environment(plan: threads.ThreadPlan, name: str, folder: Path) -> dict[str, str]:
    """Return the environment in which the processes of a cluster run.

    Args:
        plan: the thread plan, whose threads all ranks get.
        name: the cluster's id, by which its processes are known.
        folder: the cluster's folder.

    Returns:
        dict: this process's variables and those of the cluster.
    """
    return {
        **os.environ,
        **plan.environment(0),
        processes.MARK: name,
        processes.OWNER: processes.identity(os.getpid()),
        processes.FOLDER: str(folder),
        "UCX_TLS": os.environ.get("UCX_TLS", "sm,self"),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(STALL_WARNING_S),
        # Horovod looks for new gradients once a cycle. Its own 1 ms is a large part of a step of
        # a small net: with 0.1 ms two ranks train the MNIST CNN 7 % faster.
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME", "0.1"),
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }


def find_mpiexec() -> Path:
    """Find the launcher for one machine that belongs to this Python's MPI.

    The notebook's kernel may lack the environment's folder in its PATH, so it is not asked.
    `mpiexec.gforker` forks the ranks and, unlike Hydra, opens no port to the outside. Where
    mpi4py and Horovod were built against a site's own MPI, the environment variable
    DLGUIDE_MPIEXEC names that one's launcher.

    Returns:
        Path: the launcher.

    Raises:
        MissingComponentError: when there is none.
    """
    folder = Path(sysconfig.get_path("scripts"))
    named = os.environ.get("DLGUIDE_MPIEXEC")
    known = [Path(named)] if named else [folder / "mpiexec.gforker", folder / "mpiexec"]
    for path in known:
        if os.access(path, os.X_OK):
            return path
    mend = "Correct DLGUIDE_MPIEXEC." if named else "Run `pip install mpich`."
    raise MissingComponentError(f"There is no mpiexec at {known[-1]}. {mend}")
