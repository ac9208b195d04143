"""Live progress of a rank: a small file that whoever started the ranks may read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from time import monotonic, time
from typing import Any

# A watcher redraws at most that often; more would cost training time and show nothing.
_LEAST_PAUSE_S = 0.1
_LAUNCHERS = (
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("PMIX_RANK", "PMIX_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),  # MVAPICH2
    # Not SLURM_NTASKS: that is set in the batch script too, which is no rank.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),  # Horovod over Gloo
)
_last_s = float("-inf")


def launched(environment: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Tell as which of how many ranks this process was started, without starting MPI.

    Launchers say so in the environment (MPICH: PMI_RANK and PMI_SIZE). A process started
    by hand is rank 0 of 1.

    Args:
        environment: the variables to look at; this process's own when left out.

    Returns:
        tuple: rank (index) and ranks (count).

    >>> launched({"PMI_RANK": "1", "PMI_SIZE": "4"})
    (1, 4)
    >>> launched({})
    (0, 1)
    """
    environment = os.environ if environment is None else environment
    for rank, ranks in _LAUNCHERS:
        if environment.get(rank, "").isdigit() and environment.get(ranks, "").isdigit():
            return int(environment[rank]), int(environment[ranks])
    return 0, 1


def report_progress(**numbers: Any) -> None:
    """Tell whoever started this rank how far it is.

    Writes `progress-rank<rank>.json` into the folder that the environment variable
    DLGUIDE_RUN_FOLDER names, by a temporary file and a rename, at most ten times a second
    but always where `step` has reached `steps`; does nothing where the variable is not set.

    Args:
        numbers: what there is to tell, JSON-able: epoch, epochs, step, steps, loss, ...
    """
    global _last_s
    folder = os.environ.get("DLGUIDE_RUN_FOLDER")
    now = monotonic()
    ended = "step" in numbers and numbers["step"] == numbers.get("steps")
    if not folder or (now - _last_s < _LEAST_PAUSE_S and not ended):
        return
    _last_s = now
    rank, ranks = launched()
    path = os.path.join(folder, f"progress-rank{rank}.json")
    with open(f"{path}.partial", "w", encoding="utf-8") as file:
        json.dump({"rank": rank, "ranks": ranks, "unix_s": time(), **numbers}, file)
    os.replace(f"{path}.partial", path)
