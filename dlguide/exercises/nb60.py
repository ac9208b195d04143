"""Checks of the exercises of notebook 60: rows and labels, cores, a law, a step, symptoms."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from dlguide.exercises import answered, expect, expect_close, expect_function
from dlguide.exercises.matching import expect_causes
from dlguide.exercises.on_ranks import results

# For each symptom the letter of its cause in the notebook, and a question that leads to it.
CAUSES = {
    "`allreduce` fails after `daalfini()`": (
        "D",
        "Who ended MPI? Ask who started it: what did the program import first?",
    ),
    "8 threads are no faster than 2": (
        "A",
        "How many CPUs may this rank use? A worker for each of them, and no more.",
    ),
    "2 ranks have 4 busy threads on 2 cores": (
        "F",
        "Nobody told these ranks of each other. Which cores does each of them see?",
    ),
    "16 colours have become thousands": (
        "B",
        "What was the file's kind? Which kind keeps every pixel?",
    ),
    "`objectiveFunction` is not the inertia": (
        "E",
        "To which centres does the routine's own number belong: before or after the last step?",
    ),
    "one rank raises an error, the others wait": (
        "C",
        "Where do ranks meet? What if one of them does not come?",
    ),
}


def exercise_60_1(my_rows: Callable[..., Any], infer: Callable[..., Any]) -> str:
    """Check that every point is on one rank in even parts, and that labels need no training.

    Args:
        my_rows: called with the number of points, of processes and this process' number, returns
            its first row and the row behind its last.
        infer: called with points and centres, returns the number of the nearest centre of each
            point, from k-means with zero iterations.

    Returns:
        str: what it means.
    """
    expect_function(my_rows)
    expect_function(infer)
    _expect_rows(my_rows)
    _expect_labels(infer)
    return (
        "Nothing was sent, which is the workshop's first statement. Training and inference share "
        "one routine, its second. But take its labels only: with zero iterations nobody fills in "
        "the centres that it returns."
    )


def _expect_rows(my_rows: Callable[..., Any]) -> None:
    for count, ranks in ((12, 3), (273_280, 2), (273_280, 3), (10, 4), (7, 7), (100, 1), (11, 6)):
        parts = [answered(my_rows(count, ranks, rank)) for rank in range(ranks)]
        parts = [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]
        pairs = all(isinstance(each, tuple | list) and len(each) == 2 for each in parts)
        expect(pairs, "two numbers, (begin, end)", parts[0])
        case = f"{count} points on {ranks} processes"
        whole = all(isinstance(end, int | np.integer) for each in parts for end in each)
        expect(whole, f"whole numbers for {case}", parts, "Divide with `//`.")
        held = [row for begin, end in parts for row in range(count)[max(0, begin) : max(0, end)]]
        hint = "Is there a remainder? Nobody may lose it: think of where the last part ends."
        expect(len(set(held)) == count, f"every point of {case}", f"{len(set(held))} points", hint)
        hint = "The end is not included: where one part ends, the next one begins."
        expect(len(held) == count, f"every point once, {case}", f"{len(held)} points", hint)
        sizes = [end - begin for begin, end in parts]
        hint = "The slowest rank sets the pace: deal the remainder out, one point each."
        expect(max(sizes) - min(sizes) <= 1, f"parts of equal size, {case}", sizes, hint)


def _expect_labels(infer: Callable[..., Any]) -> None:
    random = np.random.default_rng(60)
    for points, clusters, columns in ((200, 5, 3), (50, 16, 2), (9, 9, 4)):
        rows = random.normal(size=(points, columns))
        centres = random.normal(size=(clusters, columns))
        with _watched(infer) as calls:
            labels = answered(infer(rows.copy(), centres.copy()))
        expect(np.size(labels) == points, f"{points} labels", labels, "One for each point.")
        shape, wanted = np.shape(labels), f"labels of shape ({points},)"
        hint = "The routine gives a column, one row for each point: flatten it with `.ravel()`."
        expect(shape == (points,), wanted, f"shape {shape}", hint)
        right = _nearest(rows, centres)
        hint = "Nearest in squared distance, numbered from 0 in the order of the centres."
        if np.array_equal(labels, _nearest(rows, _moved(rows, centres))):
            hint = "These belong to centres that have moved: that is training. How many iterations?"
        expect(np.array_equal(labels, right), "the nearest centre of each point", labels, hint)
        hint = "The labels are right. Let daal4py find them: `daal4py.kmeans(...)`."
        if calls:
            hint = "Training with no step: `maxIterations=0`."
        expect(0 in calls, "a call of `daal4py.kmeans` with 0 iterations", calls, hint)


@contextmanager
def _watched(infer: Callable[..., Any]) -> Iterator[list[int]]:
    """Note the most iterations of every `daal4py.kmeans` that is made within."""
    import daal4py

    routine, calls = daal4py.kmeans, []

    @functools.wraps(routine)
    def noted(nClusters: Any = None, maxIterations: Any = None, *more: Any, **settings: Any) -> Any:
        calls.append(maxIterations)
        return routine(nClusters, maxIterations, *more, **settings)

    # also where the learner wrote `from daal4py import kmeans` beside the function
    spaces = (vars(daal4py), getattr(inspect.unwrap(infer), "__globals__", {}))
    places = [(space, name) for space in spaces for name in space if space[name] is routine]
    for space, name in places:
        space[name] = noted
    try:
        yield calls
    finally:
        for space, name in places:
            space[name] = routine


def exercise_60_2(crowd: Callable[..., Any]) -> str:
    """Check how many threads compute, and how many there are for each CPU.

    Args:
        crowd: called with the CPUs of each rank (a list of sets) and the threads that each rank
            was told to use (None for nothing); returns the computing threads of each rank, and
            the threads on the most crowded CPU, those of a rank being spread evenly over its own.

    Returns:
        str: what it means.
    """
    expect_function(crowd)
    four = {0, 1, 2, 3}
    for name, masks, told in (
        ("one rank on four CPUs", [four], None),
        ("two ranks, both on CPUs 0 and 1", [{0, 1}, {0, 1}], None),
        ("the workshop's two ranks on {0, 2} and {1, 3}", [{0, 2}, {1, 3}], None),
        ("two ranks of one CPU each, told 8 threads", [{0}, {1}], 8),
        ("two ranks on all four CPUs, told 2 threads", [four, four], 2),
        ("four ranks on two pairs of CPUs", [{0, 2}, {1, 3}, {0, 2}, {1, 3}], None),
        ("three ranks, two of them overlapping", [{0, 1}, {1, 2}, {3}], None),
        ("two ranks on CPUs 0 to 2, told 2 threads", [{0, 1, 2}, {0, 1, 2}], 2),
        ("four ranks on all four CPUs, told 1 thread", [four] * 4, 1),
    ):
        came = answered(crowd([set(mask) for mask in masks], told))
        pair = isinstance(came, tuple | list) and len(came) == 2
        expect(pair, "two things: the threads of each rank, and the most on one CPU", came)
        working = [len(mask) if told is None else min(told, len(mask)) for mask in masks]
        hint = "One for each CPU it sees."
        if told is not None:
            hint = "What it is told is the most; it never makes more than it has CPUs."
        right = list(came[0]) == working if np.ndim(came[0]) == 1 else False
        expect(right, f"the computing threads of {name}", came[0], hint)
        load = dict.fromkeys(set().union(*masks), 0.0)
        for mask, threads in zip(masks, working, strict=True):
            for cpu in mask:
                load[cpu] += threads / len(mask)
        hint = (
            "Each rank puts threads / CPUs on each of its CPUs. Add up CPU by CPU, take the most."
        )
        expect_close(came[1], max(load.values()), f"the most on one CPU, {name}", hint, 1e-9)
    return (
        "So the statement holds for ranks that are bound to cores of their own, and only for "
        "these. Four ranks on the workshop's two pairs of CPUs would be 2 threads a CPU."
    )


def exercise_60_3(speedup: Callable[..., Any], serial_of: Callable[..., Any]) -> str:
    """Check Amdahl's law, forwards and backwards, for threads and for processes.

    Args:
        speedup: called with the part that cannot be shared and the cores; returns how many times
            as fast they are.
        serial_of: called with the time on one core (s), the time on several (s) and these cores;
            returns the part that would explain it.

    Returns:
        str: what it means.
    """
    expect_function(speedup)
    expect_function(serial_of)
    for serial, cores in ((0.0, 4), (0.25, 1), (0.1, 2), (0.1, 16), (1.0, 8)):
        came = answered(speedup(serial, cores))
        hint = "The time of one core is 1. What is left of each of its two parts on p cores?"
        if np.ndim(came) == 0 and isinstance(came, float) and np.isclose(came, cores):
            hint = "Only the part that can be shared gets faster."
        elif np.ndim(came) == 0 and came == serial + (1 - serial) / cores:
            hint = "That is the time; asked is how many times as fast."
        expect_close(came, 1 / (serial + (1 - serial) / cores), _of(serial, cores), hint, 1e-6)
    for one_s, many_s, cores in ((0.2, 0.11, 2), (1.0, 0.4, 4), (0.3, 0.15, 2), (0.3, 0.3, 8)):
        came = answered(serial_of(one_s, many_s, cores))
        right = (many_s / one_s - 1 / cores) / (1 - 1 / cores)
        hint = "Put many_s / one_s in place of 1 / S(p), and solve for s."
        case = f"the part that explains {one_s} s on one core and {many_s} s on {cores}"
        if right == 0:
            near = np.ndim(came) == 0 and abs(float(came)) < 1e-6
            expect(near, case, came, hint)
        else:
            expect_close(came, right, case, hint, 1e-6)
    return (
        "With your own times it says what keeps threads, and what keeps processes, from the "
        "speed of all cores. A negative part means that one core was disturbed, not a wonder."
    )


def _of(serial: float, cores: int) -> str:
    return f"the law for a part of {serial:.0%} and {cores} core{'s' * (cores > 1)}"


def exercise_60_4(step: Callable[..., Any], cluster: Any) -> str:
    """Check a step of k-means on real ranks against one process with all points.

    Args:
        step: called with the communicator, this rank's points and the centres, returns the new
            centres; a cluster without points on all ranks keeps its centre.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(step)
    ranks = cluster.ranks
    random = np.random.default_rng(61)
    centres = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [90.0, 90.0]])
    parts = []
    for rank in range(ranks):  # parts of other sizes, and the last rank sees one cluster only
        where = random.integers(0, 1 if 0 < rank == ranks - 1 else 3, 20 + 30 * rank)
        parts.append(centres[where] + random.normal(0, 1.5, (len(where), 2)) + 0.1 * rank)
    came = results(cluster, step, [(part, centres.copy()) for part in parts])
    came = [np.asarray(each, float) for each in came]
    hint = "Return the new centres, of the shape of the old ones."
    expect(all(one.shape == centres.shape for one in came), "centres (4, 2)", came, hint)
    finite = all(np.isfinite(one).all() for one in came)
    hint = "0 / 0: a rank may have no points of a cluster, and a cluster none at all."
    expect(finite, "finite centres", came, hint)
    hint = "Have all ranks the sums of all? `Allreduce` gives them to everybody."
    alike = all(np.array_equal(one, came[0]) for one in came)
    expect(alike, "the same centres on all ranks", came, hint)
    expect(np.array_equal(came[0][3], centres[3]), "the fourth centre as it was", came[0][3],
           "It has no points on any rank.")  # fmt: skip
    if ranks > 1:
        means = np.array([_moved(part, centres) for part in parts])
        mean_of_means = np.allclose(came[0], means.mean(axis=0))
        hint = "A mean of means: a rank with few points counts as much as one with many."
        expect(not mean_of_means, "the centres of one process with all points", came[0], hint)
    right = _moved(np.concatenate(parts), centres)
    hint = "Sum of all points of the cluster on all ranks, divided by their number on all ranks."
    expect_close(came[0], right, "the centres of one process with all points", hint, 1e-9)
    return (
        "Each rank sent sums and counts, 12 numbers here, however many points it has: that is why "
        "k-means divides so well."
    )


def _moved(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Make one step alone: every centre goes to the mean of its points."""
    labels = _nearest(points, centres)
    moved = centres.copy()
    for cluster in np.unique(labels):
        moved[cluster] = points[labels == cluster].mean(axis=0)
    return moved


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.sum((points[:, None] - centres) ** 2, axis=2).argmin(axis=1)


def exercise_60_5(causes: Mapping[str, str]) -> str:
    """Check that six symptoms are explained.

    Args:
        causes: for each symptom of the notebook the letter of its cause, "A" to "F".

    Returns:
        str: what it means.
    """
    expect_causes(causes, CAUSES)
    return (
        "Half of these six raise no error at all. What a program does not say it must be asked: "
        "count threads, recompute the number, look at the file."
    )
