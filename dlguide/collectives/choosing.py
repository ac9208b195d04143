"""Which allreduce is fastest for how many bytes: measured, kept in a table, looked up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.algorithms import ALGORITHMS
from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

LIBRARY = "library"
NAMES = (LIBRARY, *ALGORITHMS)
# Another algorithm must be this much faster than the library's own to be worth changing for.
_WORTH = 1.1
# Characters of the dtypes that MPI can add: whole numbers; real and complex ones of 32 bits and up.
_ABLE = frozenset("bBhHiIlLqQfdgFDG")


@dataclass(frozen=True)
class Table:
    """The fastest algorithm from each size on, for one number of ranks.

    Args:
        ranks: for which it was measured (count).
        steps: (nbytes, name) in ascending order: from so many bytes on that one.
    """

    ranks: int
    steps: tuple[tuple[int, str], ...]

    def choose(self, nbytes: int) -> str:
        """Look up the algorithm for a size.

        Args:
            nbytes: size of the array on every rank (bytes).

        Returns:
            str: one of `NAMES`.
        """
        chosen = self.steps[0][1]
        for start, name in self.steps:
            if start > nbytes:
                break
            chosen = name
        return chosen

    @classmethod
    def from_measured(cls, ranks: int, seconds: Mapping[int, Mapping[str, float]]) -> Table:
        """Make the table from measured times; a border lies between two sizes that differ."""
        require(bool(seconds), "seconds", "hold at least one size", {})
        steps: list[tuple[int, str]] = []
        before = 0
        for nbytes in sorted(seconds):
            times = seconds[nbytes]
            best = min(times, key=times.__getitem__)
            if LIBRARY in times and times[LIBRARY] < _WORTH * times[best]:
                best = LIBRARY
            if not steps or steps[-1][1] != best:
                steps.append((round(math.sqrt(before * nbytes)) if steps else 0, best))
            before = nbytes
        return cls(ranks, tuple(steps))

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Table:
        """Build the table again from `dataclasses.asdict`, also after a way through JSON."""
        steps = tuple((int(start), str(name)) for start, name in plain["steps"])
        known = all(name in NAMES for _, name in steps)
        ordered = list(steps) == sorted(steps) and bool(steps) and steps[0][0] == 0
        require(known and ordered, "steps", f"be sizes from 0 up and names of {NAMES}", steps)
        return cls(require_count(plain["ranks"], "ranks"), steps)


def run(name: str, array: np.ndarray, comm: Comm, op: str = "sum") -> np.ndarray:
    """Run one allreduce by its name; every rank must call with the same one.

    Args:
        name: one of `NAMES`; "library" is MPI's own.
        array: any shape, contiguous; holds the result afterwards.
        comm: the ranks.
        op: "sum", "prod", "min" or "max".

    Returns:
        numpy.ndarray: `array`.
    """
    if name != LIBRARY:
        return ALGORITHMS[name](array, comm, op) if array.size else array
    in_place, operation = library_arguments(op)
    comm.Allreduce(in_place, array, operation)
    return array


@cache
def library_arguments(op: str) -> tuple[Any, Any]:
    """Give what MPI's own allreduce in place is called with."""
    from mpi4py import MPI

    return MPI.IN_PLACE, getattr(MPI, op.upper())


def library_can(dtype: np.dtype) -> bool:
    """Tell whether MPI can add numbers of a dtype: it knows no float16 and no bfloat16."""
    return dtype.char in _ABLE


def measure(
    comm: Comm,
    sizes: Iterable[int],
    names: Sequence[str] = NAMES,
    repeats: int = 7,
    least_s: float = 0.002,
) -> dict[int, dict[str, list[float]]]:
    """Time allreduces of float32 arrays, in turn so that all meet the same disturbances.

    Each sample is the slowest rank's time for a loop that lasts at least `least_s`; one loop
    before is dropped. Collective.

    Args:
        comm: the ranks.
        sizes: sizes of the array (bytes).
        names: of the algorithms.
        repeats: samples of each (count).
        least_s: least time of one sample (s).

    Returns:
        dict: for each size and name the samples (seconds for one allreduce).
    """
    from mpi4py import MPI

    found: dict[int, dict[str, list[float]]] = {}
    for nbytes in sizes:
        array = np.zeros(max(1, nbytes // 4), np.float32)
        loops = {}
        for name in names:
            run(name, array, comm)
            once = comm.allreduce(_seconds(name, array, comm, 1), MPI.MAX)
            loops[name] = max(1, min(2000, math.ceil(least_s / max(once, 1e-7))))
        samples: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(repeats):
            # where an array happens to lie in memory can change its time threefold
            array = np.zeros_like(array)
            array.fill(0)
            for name in names:
                took = _seconds(name, array, comm, loops[name])
                samples[name].append(comm.allreduce(took, MPI.MAX) / loops[name])
        found[nbytes] = samples
    return found


def medians(samples: Mapping[int, Mapping[str, Sequence[float]]]) -> dict[int, dict[str, float]]:
    """Take the median of the samples of `measure`."""
    return {
        nbytes: {name: statistics.median(each) for name, each in times.items()}
        for nbytes, times in samples.items()
    }


def _seconds(name: str, array: np.ndarray, comm: Comm, loops: int) -> float:
    comm.Barrier()
    start = perf_counter()
    for _ in range(loops):
        run(name, array, comm)
    return perf_counter() - start
