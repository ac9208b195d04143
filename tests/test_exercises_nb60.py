"""Notebook 60's checks tick what is right on 1 to 4 ranks and say which usual mistake was made."""

import math

import numpy as np
import pytest
from exercise_parts import Parts

from dlguide import exercises
from dlguide.exercises import nb60
from dlguide.usecases.kmeans import fitting


@pytest.fixture(scope="module", params=[1, 3])
def cluster_ranks(request):
    return request.param


def my_rows(count, processes, process):
    return process * count // processes, (process + 1) * count // processes


def crowd(masks, told):
    working = [min(told or len(mask), len(mask)) for mask in masks]
    cpus = set().union(*masks)
    loads = [
        sum(n / len(mask) for n, mask in zip(working, masks, strict=True) if cpu in mask)
        for cpu in cpus
    ]
    return working, max(loads)


def infer(points, centres, iterations=0):
    import daal4py

    routine = daal4py.kmeans(len(centres), maxIterations=iterations, assignFlag=True)
    return routine.compute(points, centres).assignments.ravel()


CAUSES = dict(zip(nb60.CAUSES, "DAFBEC", strict=True))


def nearest(points, centres):
    return np.sum((points[:, None] - centres) ** 2, axis=2).argmin(axis=1)


def infer_after_a_step(points, centres):
    infer(points, centres, 1)
    return nearest(points, centres)


def speedup(serial, cores):
    return 1 / (serial + (1 - serial) / cores)


def serial_of(one_s, many_s, cores):
    return (cores * many_s / one_s - 1) / (cores - 1)


def test_rows_as_an_array_are_ticked(capsys):
    ticked = exercises.check("60-1", lambda n, p, r: np.array(my_rows(n, p, r)), infer)
    assert ticked, capsys.readouterr().out


def test_watching_leaves_the_routine_as_it_was():
    import daal4py

    before = daal4py.kmeans
    assert exercises.check("60-1", my_rows, infer)
    assert daal4py.kmeans is before
    space = {"kmeans": before}  # as after `from daal4py import kmeans` in a notebook
    exec(
        "def infer(points, centres):\n"
        "    routine = kmeans(len(centres), maxIterations=0, assignFlag=True)\n"
        "    return routine.compute(points, centres).assignments.ravel()",
        space,
    )
    assert exercises.check("60-1", my_rows, space["infer"])
    assert space["kmeans"] is before


RIGHT = {
    "60-1": Parts((my_rows, infer)),
    "60-2": crowd,
    "60-3": Parts((speedup, serial_of)),
    "60-5": CAUSES,
}
WRONG = {
    "told is obeyed": (
        "60-2",
        lambda masks, told: ([told or len(m) for m in masks], crowd(masks, told)[1]),
        "never makes more",
    ),
    "one thread each": (
        "60-2",
        lambda masks, told: ([1] * len(masks), crowd(masks, told)[1]),
        "each CPU it sees",
    ),
    "mean load": (
        "60-2",
        lambda masks, told: (
            crowd(masks, told)[0],
            sum(crowd(masks, told)[0]) / len(set().union(*masks)),
        ),
        "CPU by CPU",
    ),
    "whole threads": (
        "60-2",
        lambda masks, told: (crowd(masks, told)[0], math.ceil(crowd(masks, told)[1])),
        "threads / CPUs",
    ),
    "ranks a CPU": (
        "60-2",
        lambda masks, told: (
            crowd(masks, told)[0],
            max(sum(c in m for m in masks) for c in range(2)),
        ),
        "threads / CPUs",
    ),
    "causes swapped": (
        "60-5",
        {**CAUSES, "`allreduce` fails after `daalfini()`": "C"},
        "Who ended MPI",
    ),
    "jpeg not found": (
        "60-5",
        {**CAUSES, "16 colours have become thousands": "E"},
        "keeps every pixel",
    ),
    "lag not found": (
        "60-5",
        {**CAUSES, "`objectiveFunction` is not the inertia": "A"},
        "before or after",
    ),
    "no letter": ("60-5", {**CAUSES, "`objectiveFunction` is not the inertia": "lag"}, "fits once"),
    "remainder lost": (
        "60-1",
        Parts((lambda n, p, r: (r * (n // p), (r + 1) * (n // p)), infer)),
        "lose it",
    ),
    "remainder on the last": (
        "60-1",
        Parts((lambda n, p, r: (r * (n // p), n if r == p - 1 else (r + 1) * (n // p)), infer)),
        "slowest rank",
    ),
    "end included": (
        "60-1",
        Parts((lambda n, p, r: (my_rows(n, p, r)[0], my_rows(n, p, r)[1] + 1), infer)),
        "end",
    ),
    "fractions": ("60-1", Parts((lambda n, p, r: (r * n / p, (r + 1) * n / p), infer)), "`//`"),
    "all points": ("60-1", Parts((lambda n, p, r: (0, n), infer)), "where one part ends"),
    "no function": ("60-1", Parts(((0, 5), infer)), "Write it with `def`"),
    "NumPy alone": ("60-1", Parts((my_rows, nearest)), "Let daal4py find them"),
    "one step beside it": ("60-1", Parts((my_rows, infer_after_a_step)), "Training with no step"),
    "one iteration": (
        "60-1",
        Parts((my_rows, lambda points, centres: infer(points, centres, 1))),
        "training",
    ),
    "no result": ("60-1", Parts((my_rows, lambda points, centres: [])), "one for each point"),
    "a column of labels": (
        "60-1",
        Parts((my_rows, lambda points, centres: infer(points, centres)[:, None])),
        ".ravel()",
    ),
    "distances for labels": (
        "60-1",
        Parts(
            (my_rows, lambda points, centres: np.abs(points[:, None] - centres).sum(2).argmin(1))
        ),
        "squared distance",
    ),
    "all is shared": (
        "60-3",
        Parts((lambda s, p: float(p), serial_of)),
        "can be shared gets faster",
    ),
    "the time": ("60-3", Parts((lambda s, p: s + (1 - s) / p, serial_of)), "That is the time"),
    "efficiency": ("60-3", Parts((lambda s, p: speedup(s, p) / p, serial_of)), "its two parts"),
    "what is lost": ("60-3", Parts((speedup, lambda a, b, p: 1 - a / b / p)), "solve for s"),
    "the ratio": ("60-3", Parts((speedup, lambda a, b, p: b / a)), "solve for s"),
    "a text": ("60-3", Parts((speedup, lambda a, b, p: "small")), "solve for s"),
}
EMPTY = {
    "60-1": [Parts((lambda *a: ..., infer)), Parts((my_rows, lambda *a: ...))],
    "60-3": [Parts((speedup, lambda *a: ...))],
    "60-5": [dict.fromkeys(CAUSES, ...)],
}


def test_oracle_of_rows_is_the_division_of_the_package():
    for count, ranks in ((12, 5), (3, 7), (273_280, 3)):
        for rank in range(ranks):
            part = fitting.part(count, ranks, rank)
            assert my_rows(count, ranks, rank) == (part.start, part.stop)


def sums_of(points, centres):
    labels = np.sum((points[:, None] - centres) ** 2, axis=2).argmin(axis=1)
    sums, counts = np.zeros_like(centres), np.zeros((len(centres), 1))
    np.add.at(sums, labels, points)
    np.add.at(counts, labels, 1)
    return sums, counts


def step(comm, points, centres):
    from mpi4py import MPI

    sums, counts = sums_of(points, centres)
    comm.Allreduce(MPI.IN_PLACE, sums)
    comm.Allreduce(MPI.IN_PLACE, counts)
    return np.where(counts > 0, sums / np.maximum(counts, 1), centres)


def mean_of_means(comm, points, centres):
    sums, counts = sums_of(points, centres)
    own = np.where(counts > 0, sums / np.maximum(counts, 1), centres)
    return comm.allreduce(own) / comm.size


def alone(comm, points, centres):
    sums, counts = sums_of(points, centres)
    return np.where(counts > 0, sums / np.maximum(counts, 1), centres)


def divides_by_zero(comm, points, centres):
    sums, counts = (comm.allreduce(each) for each in sums_of(points, centres))
    with np.errstate(invalid="ignore"):
        return sums / counts


def own_counts(comm, points, centres):
    sums, counts = sums_of(points, centres)
    return np.where(counts > 0, comm.allreduce(sums) / np.maximum(counts, 1), centres)


def empty_goes_to_zero(comm, points, centres):
    sums, counts = (comm.allreduce(each) for each in sums_of(points, centres))
    return sums / np.maximum(counts, 1)


def test_step_with_sums_and_counts_of_all_ranks_is_ticked(cluster, capsys):
    ticked = exercises.check("60-4", step, cluster)
    assert ticked, capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (mean_of_means, "a mean of means"),
        (alone, "have all ranks the sums of all"),
        (divides_by_zero, "0 / 0"),
        (own_counts, "have all ranks the sums of all"),
        (empty_goes_to_zero, "no points on any rank"),
        (lambda comm, points, centres: centres[0], "Return the new centres"),
    ],
)
def test_wrong_step_gets_its_hint(wrong, hint, cluster, capsys):
    ticked = exercises.check("60-4", wrong, cluster)
    out = capsys.readouterr().out
    if cluster.ranks == 1 and wrong in (mean_of_means, alone, own_counts):
        assert ticked  # one rank alone hides these
    else:
        assert not ticked
        assert hint.lower() in out.lower()


def test_empty_step_is_not_answered_yet(cluster, capsys):
    assert not exercises.check("60-4", lambda comm, points, centres: ..., cluster)
    assert "not answered yet" in capsys.readouterr().out
