"""Training: Lloyd's iterations on ranks, each with its own points."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from dlcourse.usecases.kmeans import daal
from dlcourse.usecases.kmeans.assigning import assign, inertia
from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_SAMPLE = 4096  # rows looked at first when different ones are counted


@dataclass(frozen=True, eq=False)
class Fit:
    """Centres that the ranks have found together; alike on all of them but for `rank` and `own`.

    Args:
        centres: shape (clusters, columns).
        initial: the centres it started from, of the same shape.
        inertia: sum of the squared distances of all points from their centres.
        objective: what daal4py says of itself: the inertia before its last step.
        iterations: steps made (count).
        counts: points of each cluster, over all ranks.
        points: points of all ranks (count).
        own: points of this rank (count).
        rank: this rank (index).
        ranks: all of them (count).
        threads: threads that daal4py was set to on this rank (count).
        seeding_s: time to choose the first centres, of the slowest rank; 0 for given ones (s).
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
    """Cut this rank's part out of points that every rank has; collective.

    Parts follow each other in the order of the ranks and differ by at most one point.

    Args:
        points: shape (points, columns), the same on all ranks.

    Returns:
        np.ndarray: the rows of the rank `daal4py.my_procid()` of `daal4py.num_procs()`.

    Raises:
        ValueError: on all ranks alike, when they have unequal numbers of points or one has none
            that are rows.
        MissingComponentError: when there is no daal4py.
    """
    world, daal4py = _world(), daal.load()
    with agree_or_raise(world):
        points = np.asarray(points)
        require(points.ndim > 0, "points", "be rows of numbers", points.shape)
    require_equal(world, points=points.shape)
    ranks, rank = daal4py.num_procs(), daal4py.my_procid()
    return points[part(len(points), ranks, rank)]


def part(count: int, ranks: int, rank: int) -> slice:
    """Say which of a number of things are a rank's; there may be none.

    >>> [part(5, 2, rank) for rank in range(2)]
    [slice(0, 2, None), slice(2, 5, None)]
    """
    return slice(rank * count // ranks, (rank + 1) * count // ranks)


def fit(
    points: ArrayLike,
    clusters: int,
    iterations: int = 20,
    initial: ArrayLike | None = None,
    seed: int = 1,
    tolerance: float = 0.0,
    threads: int | None = None,
) -> Fit:
    """Find the centres of clusters of points that are spread over all ranks; collective.

    Each step every rank finds the nearest centre of its own points and adds up, for each centre,
    the points and their number; rank 0 collects these sums (clusters x (columns + 1) numbers of
    each rank, however many points there are), divides, and sends the new centres to all. A
    centre that has lost all its points goes to the point that is farthest from its own centre.

    The mean of all points is taken off before and added again after: daal4py compares
    |c|^2 - 2 x c, which far from zero has no digits left for the difference of two distances.

    The result does not depend on the number of ranks but for rounding; a point exactly in the
    middle of two centres may go to either, and then the last digits differ more. First centres
    chosen by daal4py may depend on the number of ranks.

    Args:
        points: this rank's points, shape (own, columns), at least as many as clusters.
        clusters: number of centres (count).
        iterations: most steps (count).
        initial: first centres, shape (clusters, columns); None for k-means++.
        seed: of k-means++.
        tolerance: end when a step lowers the inertia by less than this; 0 makes all steps.
        threads: threads of daal4py on this rank (count); None for its own choice, one for each
            CPU that the process could use when daal4py was loaded.

    Returns:
        Fit: the centres and what came of it.

    Raises:
        ValueError: on all ranks alike, naming those where an argument is wrong: no finite
            numbers or too large ones to be squared, other columns or arguments than the other
            ranks, fewer points than clusters on a rank, fewer different points than clusters in
            all.
        MissingComponentError: when there is no daal4py.

    Source:
        Lloyd, IEEE Trans. Inf. Theory 28 (1982); for the first centres Arthur and Vassilvitskii,
        SODA (2007); on ranks: daal4py, `kmeans_init` and `kmeans` with distributed=True.
    """
    world, daal4py = _world(), daal.load()
    with agree_or_raise(world):
        rows = daal.numbers(points, "points")
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

    with daal.threads(threads) as used:
        begin = _start(world)
        if first is None:
            engine = daal4py.engines_mt2203(seed=seed)
            plan = daal4py.kmeans_init(
                clusters, method="plusPlusDense", distributed=True, engine=engine
            )
            first = _originals(world, rows, moved, plan.compute(moved).centroids)
        seeding_s = 0.0 if initial is not None else _slowest(world, begin)
        begin = _start(world)
        routine = daal4py.kmeans(
            clusters, maxIterations=iterations, accuracyThreshold=tolerance, distributed=True
        )
        result = routine.compute(moved, first - mean)
        seconds = _slowest(world, begin)
        centres = np.array(result.centroids)
        objective, made = float(result.objectiveFunction.item()), int(result.nIterations.item())
        # gives back daal4py's part of MPI; the next call takes it again
        daal4py.daalfini()
        labels = assign(moved, centres)
    sums = world.allgather(inertia(moved, centres, labels))
    sizes = np.sum(world.allgather(np.bincount(labels, minlength=clusters)), axis=0)
    return Fit(
        centres=centres + mean,
        initial=first,
        inertia=math.fsum(sums),
        objective=objective,
        iterations=made,
        counts=tuple(int(size) for size in sizes),
        points=sum(counts),
        own=len(rows),
        rank=world.rank,
        ranks=world.size,
        threads=used,
        seeding_s=seeding_s,
        seconds=seconds,
    )


def _world() -> Comm:
    # mpi4py starts MPI before daal4py does, so that `daalfini` does not end it for everybody
    from mpi4py import MPI

    return MPI.COMM_WORLD


def _initial(initial: ArrayLike, clusters: int, rows: np.ndarray) -> np.ndarray:
    first = daal.numbers(initial, "initial")
    wanted = (clusters, rows.shape[1])
    require(first.shape == wanted, "initial", f"have the shape {wanted}", first.shape)
    different = len(np.unique(first, axis=0))
    then = "Two equal centres would share one cluster."
    require(different == clusters, "initial", "be different centres", f"{different} of them", then)
    return first


def _enough(world: Comm, rows: np.ndarray, clusters: int) -> list[int]:
    """Check that each rank has enough points and all together enough different ones."""
    counts = world.allgather(len(rows))
    least = int(np.argmin(counts))
    then = "daal4py wants that many everywhere. Use fewer ranks or fewer clusters."
    must = f"be at least the {clusters} clusters on every rank"
    require(counts[least] >= clusters, "points", must, f"{counts[least]} on rank {least}", then)
    listed = world.allgather(_different(rows, clusters))
    different = len(np.unique(np.concatenate(listed), axis=0))
    must = "be at most the number of different points"
    then = f"There are {different}; use that many or fewer."
    require(different >= clusters, "clusters", must, clusters, then)
    return counts


def _mean(world: Comm, rows: np.ndarray) -> np.ndarray:
    """Average the points of all ranks, with the same digits on each of them."""
    parts = world.allgather((rows.sum(axis=0), len(rows)))
    return sum(total for total, _ in parts) / max(1, sum(count for _, count in parts))


def _originals(world: Comm, rows: np.ndarray, moved: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Find the points that were chosen when moved; adding the mean again would round them."""
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
    """Give different rows, all of them where there are fewer than `most`."""
    few = np.unique(rows[:: max(1, len(rows) // _SAMPLE)], axis=0)
    return (few if len(few) >= most else np.unique(rows, axis=0))[:most]


def _start(world: Comm) -> float:
    world.Barrier()
    return perf_counter()


def _slowest(world: Comm, begin: float) -> float:
    return max(world.allgather(perf_counter() - begin))
