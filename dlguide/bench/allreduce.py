"""Allreduces compared over sizes: ours, the MPI library's own, Horovod's."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlguide import commands
from dlguide.cluster import processes
from dlguide.cluster.environment import find_mpiexec
from dlguide.collectives import LIBRARY, NAMES, AllreduceTable
from dlguide.errors import require, require_count, require_known
from dlguide.machine import describe, threads

SIZES = (*(8 * 8**power for power in range(7)), 4 << 20, 8 << 20, 16 << 20, 64 << 20)
# The switch by which each MPI library is told its algorithm, and the names it knows.
_SWITCHES = {
    "MPICH": (
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM",
        (
            *("recursive_doubling", "recursive_multiplying", "reduce_scatter_allgather"),
            *("k_reduce_scatter_allgather", "tree", "recexch", "ring"),
        ),
        # otherwise its layer for shared memory may choose before the switch is asked
        {
            "MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "mpir",
            "MPIR_CVAR_ALLREDUCE_COMPOSITION": "2",
        },
    ),
    "Intel": ("I_MPI_ADJUST_ALLREDUCE", tuple(map(str, range(1, 13))), {}),
    "Open MPI": (
        "OMPI_MCA_coll_tuned_allreduce_algorithm",
        tuple(map(str, range(1, 7))),
        {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"},
    ),
}


@dataclass(frozen=True)
class Point:
    """One algorithm at one size."""

    name: str
    nbytes: int
    seconds: tuple[float, ...]
    sent: int | None = None

    @property
    def median_s(self) -> float:
        """The middle one of the samples (s)."""
        return statistics.median(self.seconds)

    def bus_bytes_per_s(self, ranks: int) -> float:
        """Speed at which each link would carry the least traffic that an allreduce needs.

        2 (p - 1)/p n / t: it can be held against the speed of a link whatever p is.

        Source:
            NVIDIA, nccl-tests, PERFORMANCE.md: "bus bandwidth".
        """
        return 2 * (ranks - 1) / ranks * self.nbytes / self.median_s


@dataclass(frozen=True)
class Comparison:
    """Allreduces measured on one machine in one run.

    Args:
        ranks: number of ranks (count).
        library: the MPI library and its version.
        points: all measurements.
    """

    ranks: int
    library: str
    points: tuple[Point, ...]

    def seconds(self) -> dict[int, dict[str, float]]:
        """Give the medians by size (bytes) and algorithm (s)."""
        found: dict[int, dict[str, float]] = {}
        for point in self.points:
            found.setdefault(point.nbytes, {})[point.name] = point.median_s
        return found

    def table(self) -> AllreduceTable:
        """Make the table by which `collectives.allreduce` chooses: ours and the library's."""
        usable = {
            nbytes: {name: each for name, each in times.items() if name in NAMES}
            for nbytes, times in self.seconds().items()
        }
        return AllreduceTable.from_measured(self.ranks, usable)

    def as_dict(self) -> dict[str, Any]:
        """Give plain numbers and texts, ready for JSON."""
        return asdict(self)


def allreduce(
    ranks: int = 2,
    sizes: Sequence[int] = SIZES,
    names: Sequence[str] = NAMES,
    repeats: int = 7,
    horovod: bool = True,
    oversubscribe: bool = False,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 300,
) -> Comparison:
    """Measure allreduces of float32 arrays on fresh ranks of this machine.

    All algorithms take turns at each size, so that a disturbance hits all alike; the slowest
    rank's time counts.

    Args:
        ranks: number of ranks (count).
        sizes: sizes of the array on every rank (bytes).
        names: algorithms, of `collectives.NAMES`.
        repeats: samples of each (count).
        horovod: measure Horovod's too, as a TensorFlow operation.
        oversubscribe: allow more ranks than cores.
        env: variables to set for the ranks.
        timeout_s: when to give up (s).

    Returns:
        Comparison: every sample.

    Raises:
        ValueError: when an argument does not hold, before any rank starts.
        RuntimeError: when the ranks fail; the text ends with what they said.
    """
    for name in names:
        require_known(name, NAMES, "names")
    require(len(sizes) > 0, "sizes", "name at least one size", sizes)
    order = {
        "plan": asdict(threads.plan(describe(), ranks, oversubscribe=oversubscribe)),
        "sizes": sorted({require_count(nbytes, "sizes", least=4) for nbytes in sizes}),
        "names": list(names),
        "repeats": require_count(repeats, "repeats"),
        "horovod": bool(horovod),
    }
    plan = threads.ThreadPlan.from_dict(order["plan"])
    surroundings = {
        **os.environ,
        **plan.environment(0),
        "UCX_TLS": os.environ.get("UCX_TLS", "sm,self"),
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME", "0.1"),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **(env or {}),
    }
    with tempfile.TemporaryDirectory(prefix="dlguide-bench-") as folder:
        target = Path(folder) / "measured.json"
        rank = [sys.executable, "-P", "-m", "mpi4py", "-m", "dlguide.bench.allreduce_rank"]
        command = [find_mpiexec(), "-n", ranks, *rank, json.dumps(order), target]
        processes.remove_orphaned_shared_memory()
        done = commands.run(command, timeout_s, surroundings)
        if not (done.ok and target.exists()):
            raise RuntimeError(f"The ranks of the benchmark failed.\n{done.tail()}")
        found = json.loads(target.read_text())
    points = []
    for nbytes, times in found["samples"].items():
        for name, seconds in times.items():
            sent = found["sent"].get(name, {}).get(nbytes)
            points.append(Point(name, int(nbytes), tuple(seconds), max(sent) if sent else None))
    return Comparison(ranks, found["library"], tuple(points))


def library_algorithms(
    ranks: int = 2,
    sizes: Sequence[int] = SIZES,
    repeats: int = 7,
    oversubscribe: bool = False,
) -> Comparison:
    """Measure the MPI library's own algorithms one by one, each in ranks of its own.

    A library reads the switch when it starts, so each algorithm needs fresh ranks; the
    automatic choice is measured first and last, which shows how far the runs can be compared.

    Source:
        MPICH's README.envvar (MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM); Intel MPI reference,
        I_MPI_ADJUST; Open MPI, coll_tuned.
    """

    def measured(name: str, env: Mapping[str, str]) -> Comparison:
        one = allreduce(ranks, sizes, [LIBRARY], repeats, False, oversubscribe, env)
        points = tuple(Point(name, each.nbytes, each.seconds) for each in one.points)
        return Comparison(ranks, one.library, points)

    first = measured("automatic", {})
    kind = next((name for name in _SWITCHES if name in first.library), None)
    if kind is None:
        raise RuntimeError(
            f"{first.library!r} is not one of {', '.join(_SWITCHES)}, whose switch for the "
            "algorithm of an allreduce is known."
        )
    switch, names, besides = _SWITCHES[kind]
    points = first.points
    for name in names:
        points += measured(f"{kind} {name}", {**besides, switch: name}).points
    points += measured("automatic again", {}).points
    return Comparison(ranks, first.library, points)
