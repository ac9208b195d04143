"""Who really computes: the CPUs of a rank and those of its threads that used time."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlcourse.usecases.kmeans import daal


@dataclass(frozen=True)
class Crew:
    """What one rank was allowed and what it did.

    Args:
        rank: this rank (index).
        ranks: all of them (count).
        cpus: the logical CPUs it may use.
        threads: how many threads daal4py was set to (count).
        working: how many threads of the process computed (count).
        busy_s: what each of these was on a CPU, longest first (s).
    """

    rank: int
    ranks: int
    cpus: tuple[int, ...]
    threads: int
    working: int
    busy_s: tuple[float, ...]


def crew(
    function: Callable[..., Any], *args: Any, share: float = 0.25, **kwargs: Any
) -> tuple[Any, Crew]:
    """Call a function and count the threads of this process that worked for it.

    The system's own account of every thread is read before and after. A thread counts when it was
    on a CPU for at least `share` of the busiest one's time, which leaves out those that wait for
    messages. Give it work of a tenth of a second or more.

    Args:
        function: what to call on this rank.
        args: its positional arguments.
        share: of the busiest thread's time, from 0 to 1.
        kwargs: its keyword arguments.

    Returns:
        tuple: what the function returned, and the Crew.

    Raises:
        MissingComponentError: when there is no daal4py.
    """
    from mpi4py import MPI

    daal4py = daal.load()
    before = _cpu_s()
    result = function(*args, **kwargs)
    after = _cpu_s()
    spent = sorted((after[one] - before.get(one, 0.0) for one in after), reverse=True)
    busy = tuple(each for each in spent if each > 0 and each >= share * spent[0])
    world = MPI.COMM_WORLD
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    used = getattr(result, "threads", daal4py.num_threads())
    return result, Crew(world.rank, world.size, cpus, used, len(busy), busy)


def _cpu_s() -> dict[int, float]:
    """Give the seconds that each thread of this process has been on a CPU."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread may end meanwhile
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            ticks = int(fields[11]) + int(fields[12])  # user and system, proc(5)
            found[int(task.name)] = ticks / os.sysconf("SC_CLK_TCK")
            with suppress(OSError, ValueError, IndexError):  # nanoseconds, where the kernel counts
                found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found
