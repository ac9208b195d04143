"""Run a piece of a test on several MPI ranks, with a time limit, and get one result per rank."""

from __future__ import annotations

import inspect
import json
import os
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kept_ranks

from dlguide import commands
from dlguide.cluster import processes

SCRIPTS = Path(sysconfig.get_path("scripts"))
_KEPT: dict[int, kept_ranks.Ranks] = {}

_MAIN = """
import json, os, sys
rank = int(os.environ["PMI_RANK"])
{source}
result = {name}(**json.loads({arguments!r}))
with open(os.path.join({folder!r}, f"rank{{rank}}.json"), "w") as file:
    json.dump(result, file)
"""


def on_ranks(
    ranks: int,
    function: Callable[..., Any],
    folder: Path,
    timeout_s: float = 120,
    env: dict[str, str] | None = None,
    fresh: bool = False,
    **arguments: Any,
) -> list[Any]:
    """Run `function(**arguments)` on every rank and return its results in rank order.

    The function's source is sent, so it must import what it needs inside itself; arguments and
    results must be JSON. A rank that fails, or a run that does not end in time, fails the test
    with the ranks' output.

    Args:
        ranks: number of ranks (count).
        function: a function at the top level of a test module.
        folder: an empty folder for the results, usually `tmp_path`.
        timeout_s: when to give up (s).
        env: further environment variables, which take fresh processes.
        fresh: start processes for this call only, where it asks what a process is like at its
            start or leaves it unfit for others; otherwise the same ranks serve all tests.
        arguments: what the function is called with, the same on all ranks.

    Returns:
        list: one result per rank.
    """
    source = textwrap.dedent(inspect.getsource(function))
    script = folder / f"{function.__name__}_{ranks}.py"
    script.write_text(
        _MAIN.format(
            source=source,
            name=function.__name__,
            arguments=json.dumps(arguments),
            folder=str(folder),
        )
    )
    if fresh or env is not None:
        done = mpiexec(ranks, [sys.executable, "-m", "mpi4py", script], timeout_s, env)
        assert done.ok, f"exit status {done.status} on {ranks} ranks:\n{done.output}"
    else:
        failure = kept(ranks).run(script, timeout_s)
        if failure:
            _KEPT.pop(ranks).close()  # nobody knows what they do now
        assert not failure, f"{ranks} ranks: {failure}"
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]


def mpiexec(
    ranks: int, command: list, timeout_s: float = 120, env: dict[str, str] | None = None
) -> commands.Done:
    """Start a command on ranks of this machine; no rank outlives the time limit."""
    processes.remove_orphaned_shared_memory()
    return commands.run([*_launcher(ranks), *command], timeout_s, _environment() | (env or {}))


def kept(ranks: int) -> kept_ranks.Ranks:
    """The ranks that serve all tests of this process, started at their first use."""
    if ranks not in _KEPT:
        processes.remove_orphaned_shared_memory()
        command = [*_launcher(ranks), sys.executable, "-m", "mpi4py"]
        _KEPT[ranks] = kept_ranks.Ranks(command, ranks, _environment())
    return _KEPT[ranks]


def end_kept() -> None:
    """End the ranks that are kept."""
    while _KEPT:
        _KEPT.popitem()[1].close()


def _launcher(ranks: int) -> list[object]:
    return [SCRIPTS / "mpiexec.gforker", "-n", ranks]


def _environment() -> dict[str, str]:
    return os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "UCX_TLS": "sm,self",
        "PYTHONPATH": os.pathsep.join(["tests", os.environ.get("PYTHONPATH", "")]),
    }
