"""K-means with daal4py on ranks: initial centres, training, assignment; the threads that work."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psutil
from numpy.typing import ArrayLike

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.data.datasets import shard
from dlguide.errors import MissingComponentError, require, require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

LARGEST = 1e150  # its square leaves room for the sum over all points of any machine
_BLOCK = 65_536  # rows whose differences are in memory at once
_SAMPLE = 4096  # rows looked at before all when different ones are counted


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
        daal4py.daalinit(require_count(count, "threads"))
    try:
        yield daal4py.num_threads()
    finally:
        daal4py.daalinit(before)


def numbers(values: Any, name: str) -> np.ndarray:
    """Return a table of finite numbers in daal4py's format: contiguous float64 rows."""
    try:
        table = np.ascontiguousarray(values, np.float64)
        shape = np.shape(values)
    except (TypeError, ValueError):
        table, shape = np.zeros(0), type(values).__name__
    require(len(table.shape) == 2 and table.ndim == len(shape), name, "be rows of numbers", shape)
    require(table.shape[1] > 0, name, "have at least one column", table.shape)
    # A sum of finite numbers may overflow, one with a NaN or an infinity is never finite.
    with np.errstate(invalid="ignore", over="ignore"):
        sound = np.isfinite(table.sum())
    finite = np.ones(1, bool) if sound else np.isfinite(table).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        then = "Drop such rows or fill them: one NaN would spread to every centre."
        require(False, name, "be finite numbers", f"{table[row].tolist()} in row {row}", then)
    size = max(table.max(initial=0.0), -table.min(initial=0.0))
    must = f"be numbers from {-LARGEST:g} to {LARGEST:g}, whose squares can be added up"
    require(size <= LARGEST, name, must, f"one of size {size:g}", "Take a larger unit.")
    return table


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
    require(points.ndim == 2, "points", "be rows of numbers", points.shape)
    require_count(clusters, "clusters")
    different = len(_different(points, clusters))
    must = "be at most the number of different points"
    require(different >= clusters, "clusters", must, clusters, f"There are {different}.")
    centres, chosen = kmeans_plusplus(points, clusters, random_state=seed, n_local_trials=1)
    apart = [np.sum((points - centre) ** 2, axis=1) for centre in centres[:-1]]
    table = np.minimum.accumulate(np.reshape(apart, (clusters - 1, len(points))))
    return Seeds(tuple(chosen.tolist()), centres, table)


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
        seeding_s: time to choose the initial centres, of the slowest rank; 0 if given (s).
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
    seeding_s: float
    seconds: float


def share(points: ArrayLike) -> np.ndarray:
    """Return this rank's part of points that every rank has; collective.

    The parts are consecutive in the order of the ranks; their sizes differ by at most one.
    """
    world, daal4py = _world(), load_daal4py()
    with agree_or_raise(world):
        points = np.asarray(points)
        require(points.ndim > 0, "points", "be rows of numbers", points.shape)
    require_equal(world, points=points.shape)
    ranks, rank = daal4py.num_procs(), daal4py.my_procid()
    return points[shard(len(points), rank, ranks)]


def fit(
    points: ArrayLike,
    clusters: int,
    iterations: int = 20,
    initial: ArrayLike | None = None,
    seed: int = 1,
    tolerance: float = 0.0,
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
        iterations: maximum number of steps.
        initial: initial centres, shape (clusters, columns); None for k-means++.
        seed: of k-means++.
        tolerance: stop when a step lowers the inertia by no more than this; 0 stops when
            nothing changes.
        threads: threads of daal4py on this rank; None for one per CPU that the process could use
            when daal4py was loaded.

    Source:
        Lloyd, IEEE Trans. Inf. Theory 28 (1982); for the initial centres Arthur and Vassilvitskii,
        SODA (2007); on ranks: daal4py, `kmeans_init` and `kmeans` with distributed=True.
    """
    world, daal4py = _world(), load_daal4py()
    with agree_or_raise(world):
        rows = numbers(points, "points")
        require_count(clusters, "clusters")
        require_count(iterations, "iterations")
        require_count(seed, "seed", 0)
        number = isinstance(tolerance, Real) and 0 <= tolerance < float("inf")
        require(number, "tolerance", "be a number from 0 on", tolerance)
        if threads is not None:
            require_count(threads, "threads")
        first = None if initial is None else _initial(initial, clusters, rows)
    print_of = None if first is None else f"centres with checksum {zlib.crc32(first.tobytes()):08x}"
    require_equal(world, columns=rows.shape[1], clusters=int(clusters), initial=print_of)
    require_equal(world, iterations=int(iterations), seed=int(seed), tolerance=float(tolerance))
    mean = _mean(world, rows)
    moved = rows - mean
    counts = _enough(world, moved, clusters)

    with daal_threads(threads) as used:
        begin = _start(world)
        if first is None:
            engine = daal4py.engines_mt2203(seed=seed)
            chosen = daal4py.kmeans_init(
                clusters, method="plusPlusDense", distributed=True, engine=engine
            ).compute(moved)
            first = _originals(world, rows, moved, chosen.centroids)
        seeding_s = 0.0 if initial is not None else _slowest(world, begin)
        begin = _start(world)
        result = daal4py.kmeans(
            clusters, maxIterations=iterations, accuracyThreshold=tolerance, distributed=True
        ).compute(moved, first - mean)
        seconds = _slowest(world, begin)
        centres = np.array(result.centroids)
        # releases daal4py's part of MPI; the next call acquires it again
        daal4py.daalfini()
        labels = _nearest(moved, centres)
    sums = world.allgather(inertia(moved, centres, labels))
    sizes = np.sum(world.allgather(np.bincount(labels, minlength=clusters)), axis=0)
    return KMeansFit(
        centres=centres + mean,
        initial=first,
        inertia=math.fsum(sums),
        objective=float(result.objectiveFunction.item()),
        iterations=int(result.nIterations.item()),
        counts=tuple(int(size) for size in sizes),
        points=sum(counts),
        own=len(rows),
        rank=world.rank,
        ranks=world.size,
        threads=used,
        seeding_s=seeding_s,
        seconds=seconds,
    )


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
    centres = numbers(centres, "centres")
    require(len(centres) > 0, "centres", "be at least one", 0)
    points = np.reshape(points, (-1, centres.shape[1])) if np.size(points) == 0 else points
    points = numbers(points, "points")
    must = f"have the {centres.shape[1]} columns of the centres"
    require(points.shape[1] == centres.shape[1], "points", must, points.shape)
    if not len(points):
        return np.zeros(0, np.int32)
    middle = centres.mean(axis=0)
    points, centres = points - middle, centres - middle
    with daal_threads(threads):
        return _nearest(points, centres)


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Let daal4py find the nearest centre of checked points that lie around zero."""
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
    points, centres, labels = np.asarray(points), np.asarray(centres), np.asarray(labels)
    parts = (slice(begin, begin + _BLOCK) for begin in range(0, len(points), _BLOCK))
    apart = (points[part] - centres.take(labels[part], axis=0) for part in parts)
    return math.fsum(float(np.einsum("ij,ij->", each, each)) for each in apart)


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


def _world() -> Comm:
    # mpi4py starts MPI before daal4py does, so that `daalfini` does not finalise it
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _initial(initial: ArrayLike, clusters: int, rows: np.ndarray) -> np.ndarray:
    first = numbers(initial, "initial")
    wanted = (clusters, rows.shape[1])
    require(first.shape == wanted, "initial", f"have the shape {wanted}", first.shape)
    different = len(np.unique(first, axis=0))
    then = "Two equal centres would share one cluster."
    require(different == clusters, "initial", "be different centres", f"{different} of them", then)
    return first


def _enough(world: Comm, rows: np.ndarray, clusters: int) -> list[int]:
    """Check that each rank has enough points, and all together enough different ones."""
    counts = world.allgather(len(rows))
    least = int(np.argmin(counts))
    then = "daal4py needs that many everywhere. Use fewer ranks or fewer clusters."
    must = f"be at least the {clusters} clusters on every rank"
    require(counts[least] >= clusters, "points", must, f"{counts[least]} on rank {least}", then)
    listed = world.allgather(_different(rows, clusters))
    different = len(np.unique(np.concatenate(listed), axis=0))
    must = "be at most the number of different points"
    then = f"There are {different}; use that many or fewer."
    require(different >= clusters, "clusters", must, clusters, then)
    return counts


def _mean(world: Comm, rows: np.ndarray) -> np.ndarray:
    """Return the mean of all ranks' points, with the same digits on each rank."""
    parts = world.allgather((rows.sum(axis=0), len(rows)))
    return sum(total for total, _ in parts) / max(1, sum(count for _, count in parts))


def _originals(world: Comm, rows: np.ndarray, moved: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the original points of chosen moved ones; adding the mean again would round."""
    mine = {}
    for number, centre in enumerate(np.asarray(chosen)):
        places = np.flatnonzero(moved[:, 0] == centre[0])
        places = places[(moved[places] == centre).all(axis=1)]
        if len(places):
            mine[number] = rows[places[0]]
    found = {}
    for each in world.allgather(mine):
        found |= each
    return np.array([found[number] for number in range(len(chosen))])


def _different(rows: np.ndarray, most: int) -> np.ndarray:
    """Return up to `most` different rows."""
    for few in (16 * most, _SAMPLE, max(1, len(rows))):
        found = np.unique(rows[:: max(1, len(rows) // few)], axis=0)
        if len(found) >= most:
            break
    return found[:most]


def _start(world: Comm) -> float:
    world.Barrier()
    return perf_counter()


def _slowest(world: Comm, begin: float) -> float:
    return max(world.allgather(perf_counter() - begin))
