"""What ranks are started with: the launcher and the environment variables."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlguide.cluster import processes
from dlguide.cluster.rank import STALL_WARNING_S
from dlguide.errors import MissingComponentError, require
from dlguide.machine import threads

# What only the cluster may set: by these its processes know each other.
OWN = (processes.MARK, processes.OWNER, processes.FOLDER, "IPYTHONDIR", "IPP_ENABLE_CURVE")


def rank_environment(
    plan: threads.ThreadPlan, name: str, folder: Path, more: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment in which the processes of a cluster run."""
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
        **(more or {}),
    }


def checked_environment(environment: Any, plan: threads.ThreadPlan) -> dict[str, str]:
    """Return the variables that a user wants for the ranks, or say what is wrong with them."""
    given = {} if environment is None else environment
    then = 'Write `environment={"HOROVOD_CYCLE_TIME": "5"}`.'
    require(isinstance(given, Mapping), "environment", "be a dict of texts", environment, then)
    for name, value in given.items():
        usable = isinstance(name, str) and bool(name) and not {"=", "\0"} & set(name)
        require(usable, "environment", "have names that are not empty and hold no =", name, then)
        fits = isinstance(value, str) and "\0" not in value
        require(fits, "environment", f"have a text as the value of {name}", value, then)
        must = f"not set {name}, which the cluster sets"
        require(name not in OWN, "environment", must, dict(given), "Leave it out.")
        must = f"not set {name}, which the thread plan sets"
        then_plan = "Give the cluster another plan: `dlguide.machine.threads.plan`."
        require(name not in plan.environment(0), "environment", must, dict(given), then_plan)
    return dict(given)


def find_mpiexec() -> Path:
    """Find the launcher for one machine that belongs to this Python's MPI.

    The notebook's kernel may lack the environment's folder in its PATH, so it is not asked.
    `mpiexec.gforker` forks the ranks and, unlike Hydra, opens no port to the outside. Where
    mpi4py and Horovod were built against a site's own MPI, the environment variable
    DLGUIDE_MPIEXEC names that one's launcher.
    """
    folder = Path(sysconfig.get_path("scripts"))
    named = os.environ.get("DLGUIDE_MPIEXEC")
    known = [Path(named)] if named else [folder / "mpiexec.gforker", folder / "mpiexec"]
    for path in known:
        if os.access(path, os.X_OK):
            return path
    mend = "Correct DLGUIDE_MPIEXEC." if named else "Run `pip install mpich`."
    raise MissingComponentError(f"There is no mpiexec at {known[-1]}. {mend}")
