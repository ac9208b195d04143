"""K-means on ranks with daal4py: every rank holds a part of the points.

    def train(pixels):
        return kmeans.fit(kmeans.share(pixels), clusters=16)

    fits = cluster.run(train, pixels)                             # one equal KMeansFit per rank

daal4py uses all ranks that MPI has started, so all of them must call.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.data.datasets import shard
from dlguide.errors import MissingComponentError, require

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


def load_daal4py() -> ModuleType:
    """Import daal4py, which counts the CPUs it may use now: bind the process before."""
    try:
        import daal4py
    except ImportError as error:
        raise MissingComponentError(
            f"daal4py cannot be loaded ({error}). It comes with scikit-learn-intelex, for x86_64 "
            "only: run `pip install scikit-learn-intelex` on such a machine."
        ) from error
    return daal4py


@contextmanager
def daal_threads(count: int | None) -> Iterator[int]:
    """Set daal4py's threads inside a `with` block, which gets their number; None keeps them."""
    daal4py = load_daal4py()
    before = daal4py.num_threads()
    if count is not None:
        daal4py.daalinit(count)
    try:
        yield daal4py.num_threads()
    finally:
        daal4py.daalinit(before)


class Seeds(NamedTuple):
    """Points chosen as initial centres by k-means++.

    `chosen` has the index of each, `centres` the points in the same order, and `distances`, of
    shape (clusters - 1, points), the squared distance of every point from its nearest centre so
    far: the weights with which the next one was drawn.
    """

    chosen: tuple[int, ...]
    centres: np.ndarray
    distances: np.ndarray


def plus_plus(points: ArrayLike, clusters: int, seed: int = 0) -> Seeds:
    """Draw initial centres with scikit-learn's k-means++, one candidate per step, and its weights.

    The first centre is any point; then a point's probability is proportional to its squared
    distance from the nearest centre so far. `fit` lets daal4py do the same on ranks.

    Source:
        Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, SODA (2007).
    """
    from sklearn.cluster import kmeans_plusplus

    points = np.asarray(points, np.float64)
    centres, chosen = kmeans_plusplus(points, clusters, random_state=seed, n_local_trials=1)
    apart = [np.sum((points - centre) ** 2, axis=1) for centre in centres[:-1]]
    return Seeds(tuple(chosen.tolist()), centres, np.minimum.accumulate(apart))


@dataclass(frozen=True, eq=False)
class KMeansFit:
    """Centres that the ranks have found together; equal on all except for `rank` and `own`.

    Args:
        centres: shape (clusters, columns).
        initial: the initial centres, of the same shape.
        inertia: sum of the squared distances of all points from their centres.
        objective: daal4py's own value: the inertia before its last step.
        iterations: steps made.
        counts: points of each cluster, over all ranks.
        points: of all ranks.
        own: points of this rank.
        threads: threads that daal4py was set to on this rank.
        seconds: time of the iterations, of the slowest rank (s).
    """

    centres: np.ndarray
    initial: np.ndarray
    inertia: float
    objective: float
    iterations: int
    counts: tuple[int, ...]
    points: int
    own: int
    rank: int
    ranks: int
    threads: int
    seconds: float


def share(points: np.ndarray) -> np.ndarray:
    """Return this rank's part of points that every rank has.

    The parts are consecutive in the order of the ranks; their sizes differ by at most one.
    """
    from mpi4py import MPI  # noqa: F401 - starts MPI before daal4py does

    daal4py = load_daal4py()
    ranks, rank = daal4py.num_procs(), daal4py.my_procid()
    return points[shard(len(points), rank, ranks)]


def fit(
    points: ArrayLike,
    clusters: int,
    iterations: int = 20,
    initial: ArrayLike | None = None,
    seed: int = 1,
    threads: int | None = None,
) -> KMeansFit:
    """Find the centres of clusters of points that are spread over all ranks; collective.

    Each step every rank finds the nearest centre of its own points and adds up, for each centre,
    the points and their number; rank 0 collects these sums (clusters x (columns + 1) values from
    each rank, however many points there are), divides, and sends the new centres to all. A
    centre without points moves to the point that is farthest from its own centre.

    The mean of all points is subtracted before and added after: daal4py compares |c|^2 - 2 x c,
    which far from zero has no digits left for the difference of two distances.

    The result depends on the number of ranks only by rounding; a point exactly between two
    centres may go to either, and then the last digits differ more. Initial centres chosen by
    daal4py may depend on the number of ranks.

    Args:
        points: this rank's points, shape (own, columns), at least as many as clusters.
        clusters: number of centres.
        iterations: maximum number of steps; fewer if nothing changes.
        initial: different initial centres, shape (clusters, columns); None for k-means++.
        seed: of k-means++.
        threads: threads of daal4py on this rank; None for one per CPU that the process could use
            when daal4py was loaded.

    Source:
        Lloyd, IEEE Trans. Inf. Theory 28 (1982); for the initial centres Arthur and Vassilvitskii,
        SODA (2007); on ranks: daal4py, `kmeans_init` and `kmeans` with distributed=True.
    """
    # mpi4py starts MPI before daal4py does, so that `daalfini` does not finalise it
    from mpi4py import MPI

    world, daal4py = MPI.COMM_WORLD, load_daal4py()
    with agree_or_raise(world):
        rows = _finite(points)
        first = None if initial is None else np.asarray(initial, np.float64)
    print_of = None if first is None else f"centres with checksum {zlib.crc32(first.tobytes()):08x}"
    require_equal(
        world, columns=rows.shape[1], clusters=clusters, iterations=iterations, seed=seed,
        initial=print_of,
    )  # fmt: skip
    count = _require_enough(world, rows, clusters)
    mean = sum(world.allgather(rows.sum(axis=0))) / count
    moved = rows - mean

    with daal_threads(threads) as used:
        if first is None:
            engine = daal4py.engines_mt2203(seed=seed)
            chosen = daal4py.kmeans_init(
                clusters, method="plusPlusDense", distributed=True, engine=engine
            ).compute(moved)
            first = chosen.centroids + mean
        world.Barrier()
        begin = perf_counter()
        result = daal4py.kmeans(
            clusters, maxIterations=iterations, accuracyThreshold=0.0, distributed=True
        ).compute(moved, first - mean)
        seconds = max(world.allgather(perf_counter() - begin))
        centres = np.array(result.centroids)
        # releases daal4py's part of MPI; the next call acquires it again
        daal4py.daalfini()
        labels = _nearest(moved, centres)
    sizes = np.sum(world.allgather(np.bincount(labels, minlength=clusters)), axis=0)
    return KMeansFit(
        centres=centres + mean,
        initial=first,
        inertia=math.fsum(world.allgather(inertia(moved, centres, labels))),
        objective=float(result.objectiveFunction.item()),
        iterations=int(result.nIterations.item()),
        counts=tuple(sizes.tolist()),
        points=count,
        own=len(rows),
        rank=world.rank,
        ranks=world.size,
        threads=used,
        seconds=seconds,
    )


def _finite(points: ArrayLike) -> np.ndarray:
    """Return a table of finite numbers in daal4py's format: contiguous float64 rows."""
    rows = np.ascontiguousarray(points, np.float64)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        then = "Drop such rows or fill them: one NaN would spread to every centre."
        require(False, "points", "be finite numbers", f"{rows[row].tolist()} in row {row}", then)
    return rows


def _require_enough(world: Comm, rows: np.ndarray, clusters: int) -> int:
    """Check that daal4py will not wait indefinitely; return the number of all ranks' points."""
    counts = world.allgather(len(rows))
    least = int(np.argmin(counts))
    then = "daal4py needs that many everywhere. Use fewer ranks or fewer clusters."
    must = f"be at least the {clusters} clusters on every rank"
    require(counts[least] >= clusters, "points", must, f"{counts[least]} on rank {least}", then)
    # a few rows have enough different ones as a rule; sorting all of them takes long
    for few in (rows[:: 1 + len(rows) // 4096], rows):
        listed = np.concatenate(world.allgather(np.unique(few, axis=0)[:clusters]))
        different = len(np.unique(listed, axis=0))
        if different >= clusters:
            return sum(counts)
    must, then = "be at most the number of different points", f"There are {different}."
    require(False, "clusters", must, clusters, then)
    raise AssertionError  # `require` has raised


def assign(points: ArrayLike, centres: ArrayLike, threads: int | None = None) -> np.ndarray:
    """Return the index of the nearest centre of each point: k-means with zero iterations.

    In daal4py this is the training with `maxIterations=0` and `assignFlag=True`. It needs no
    other rank. The mean of the centres is subtracted first, because daal4py compares
    |c|^2 - 2 x c, which far from zero has no digits left for the difference.

    Args:
        points: shape (points, columns), possibly empty.
        centres: shape (clusters, columns).
        threads: threads of this call; None for daal4py's setting.
    """
    centres = np.asarray(centres, np.float64)
    if not np.size(points):
        return np.zeros(0, np.int32)
    middle = centres.mean(axis=0)
    with daal_threads(threads):
        return _nearest(np.asarray(points, np.float64) - middle, centres - middle)


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Let daal4py find the nearest centre of points that lie around zero."""
    routine = load_daal4py().kmeans(len(centres), maxIterations=0, assignFlag=True)
    return routine.compute(points, centres).assignments.ravel()


def inertia(points: ArrayLike, centres: ArrayLike, labels: Sequence[int] | np.ndarray) -> float:
    """Add up the squared distances of the points from their centres.

        inertia = sum over i of |x_i - c_label(i)|^2

    Computed from the differences, not from |x|^2 - 2 x c + |c|^2, which loses digits if points
    are near their centres. daal4py's own `objectiveFunction` belongs to the centres before the
    last step.

    >>> inertia([[0.0], [1.0], [5.0]], [[0.0], [4.0]], [0, 0, 1])
    2.0
    """
    return float(np.sum((np.asarray(points) - np.asarray(centres)[labels]) ** 2))


class ThreadUse(NamedTuple):
    """The logical CPUs and threads that a rank was allowed, and how many threads worked."""

    cpus: tuple[int, ...]
    threads: int
    working: int


def measure_threads(
    function: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[Any, ThreadUse]:
    """Call a function and count the threads of this process that worked for it.

    The CPU time of every thread is read before and after. A thread counts if it was on a CPU for
    at least a quarter of the busiest thread's time, which leaves out threads that wait for
    messages. The function should take a tenth of a second or more.
    """
    before = _cpu_s()
    result = function(*args, **kwargs)
    spent = [after - before.get(one, 0.0) for one, after in _cpu_s().items()]
    working = sum(each > 0 and each >= 0.25 * max(spent) for each in spent)
    used = getattr(result, "threads", load_daal4py().num_threads())
    return result, ThreadUse(tuple(sorted(os.sched_getaffinity(0))), used, working)


def _cpu_s() -> dict[int, float]:
    """Return the CPU time of each thread of this process (s)."""
    found = {one.id: one.user_time + one.system_time for one in psutil.Process().threads()}
    for thread in found:  # psutil counts in ticks of 10 ms; the kernel may know nanoseconds
        with suppress(OSError, ValueError, IndexError):
            spent = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]
            found[thread] = int(spent) / 1e9
    return found
