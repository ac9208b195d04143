"""The rank's side of a cluster that a notebook started: an ipyparallel engine under MPI."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from dlguide.cluster import allocation
from dlguide.cluster import rank as ranks_side
from dlguide.machine import threads


def prepare(folder: str, plan: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Make an engine ready: its cores and threads, its modules, its log, its monitor.

    Called once in every engine, before anything has loaded TensorFlow.
    """
    import IPython
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    ranks_side.collect_rarely()
    sys.path += [each for each in path if each not in sys.path]
    log = os.open(ranks_side.log_path(Path(folder), rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # A rank may be killed at any moment: what it keeps in temporary files (TensorFlow, one for each
    # function it traces) goes with the cluster's folder.
    tempfile.tempdir = folder
    own = threads.ThreadPlan.from_dict(plan)
    threads.apply(own, rank % own.ranks)  # the plan is one node's; nodes are filled in turn
    # The first sum of Python objects makes mpi4py duplicate the communicator while it holds the
    # interpreter: a rank that waited for ever in that one call could not even say so.
    MPI.COMM_WORLD.allreduce(0)
    # The shell is the one place that lives as long as the engine and belongs to it alone.
    IPython.get_ipython().dlguide_monitor = ranks_side.start_monitor(folder, rank)
    return {
        "rank": rank,
        "ranks": MPI.COMM_WORLD.size,
        "pid": os.getpid(),
        "machine": allocation.machine(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "threads": int(os.environ["TF_NUM_INTRAOP_THREADS"]),
    }


def run(run_number: int, payload: bytes) -> bytes:
    """Run a pickled function in this engine and return its pickled outcome.

    Args:
        run_number: which run of the cluster this is.
        payload: a cloudpickle of (function, args, kwargs).

    Returns:
        bytes: a cloudpickle of the outcome, see `dlguide.cluster.rank.guarded`.
    """
    import cloudpickle
    import IPython

    def call() -> bytes:
        function, args, kwargs = cloudpickle.loads(payload)
        return cloudpickle.dumps(function(*args, **kwargs))

    outcome = ranks_side.guarded(IPython.get_ipython().dlguide_monitor, run_number, call)
    sys.stdout.flush()
    sys.stderr.flush()
    return cloudpickle.dumps(outcome)


def run_cell(code: str) -> None:
    """Run a cell's text in this engine's own namespace, as `%%px` does."""
    import IPython

    shell = IPython.get_ipython()
    result = shell.run_cell(code, store_history=True, silent=False)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        raise error
