"""Checks of the exercises of notebook 42: opens, stripes, what limits, samples from peers."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dlguide.exercises import NotAnswered, answered, expect, expect_close, expect_function
from dlguide.exercises.on_ranks import results

# Each observation of 42-3: its cause, and what tells it from the others.
CAUSES = {
    "A": ("metadata", "More nodes change nothing, and the targets are idle. Who is left?"),
    "B": ("requests", "33 MB/s of 500 MB/s: it is not the bytes. What else does a target count?"),
    "C": ("latency", "No server is busy. Two requests at a time help. So what is waited for?"),
    "D": (
        "client link",
        "More nodes help, more requests of a node do not: what belongs to a node?",
    ),
    "E": ("bandwidth", "Large requests in order, and more targets help at once."),
}
_TO_ALL = ("Allgather", "Allgatherv", "Bcast", "allgather", "bcast")
FLOATS = 500  # numbers in a row of 42-4, so that rows are large against their numbers


def exercise_42_1(samples_per_file: Callable[..., Any]) -> str:
    """Check how many samples must be packed into a file to keep the opens few.

    Args:
        samples_per_file: called with samples, the seconds of an epoch, the opens/s of all
            metadata servers and the share of them that is ours; returns the smallest number.

    Returns:
        str: what it means.
    """
    expect_function(samples_per_file)
    for samples, epoch_s, opens_per_s, share in (
        (1_280_000, 40.0, 20_000.0, 0.05),
        (1_281_167, 40.0, 20_000.0, 0.5),
        (112_120, 60.0, 15_000.0, 0.125),
        (60_000, 30.0, 20_000.0, 1.0),
    ):
        came = answered(samples_per_file(samples, epoch_s, opens_per_s, share))
        allowed = share * opens_per_s * epoch_s
        right = math.ceil(samples / allowed)
        case = f"{samples} samples in {epoch_s:g} s, {share:.1%} of {opens_per_s:g} opens/s"
        expect(
            came != samples / (share * opens_per_s),
            f"opens of a whole epoch for {case}",
            came,
            "How many files may be opened in the seconds of an epoch, not in one second?",
        )
        hint = "A whole number, rounded up: files that are too small are too many."
        if right == 1:
            hint = "Here a file an image is allowed. A file holds at least one sample."
        text = f"the smallest number of samples in a file for {case}"
        expect_close(came, right, text, hint, 1e-9)
    return "In the guide's run 32 images in a file are enough to leave 95 % of the opens to others."


def exercise_42_2(place_of: Callable[..., Any]) -> str:
    """Check where a byte of a striped file lies.

    Args:
        place_of: called with the byte's number in the file, the bytes of a stripe, the stripe
            count, the target of the first stripe and the number of targets; returns the target
            and the byte's number among the file's bytes on that target.

    Returns:
        str: what it means.
    """
    expect_function(place_of)
    random = np.random.default_rng(42)
    cases = [(0, 4, 2, 1, 5), (5, 4, 1, 0, 5), (9, 4, 2, 3, 8)]
    for _ in range(40):
        targets = int(random.integers(2, 9))
        count, first = int(random.integers(1, targets + 1)), int(random.integers(targets))
        cases.append((int(random.integers(5000)), 64, count, first, targets))
    for offset, stripe, count, first, targets in cases:
        came = answered(place_of(offset, stripe, count, first, targets))
        expect(np.shape(came) == (2,), "two numbers: the target, the byte on it", came)
        number = offset // stripe
        unwrapped = first + number % count
        case = (
            f"byte {offset}, stripes of {stripe}, count {count}, the first on target {first} of "
            f"{targets}"
        )
        hint = "The stripes take turns over `count` targets: which one has the byte's stripe?"
        if unwrapped >= targets and came[0] == unwrapped:
            hint = "There is no such target. After the last one comes target 0."
        elif count < targets and came[0] == (first + number) % targets:
            hint = "That uses all targets. This file is spread over `count` of them."
        expect(came[0] == unwrapped % targets, f"the target of {case}", came[0], hint)
        right = number // count * stripe + offset % stripe
        hint = "Which stripes of the file lie before it on the same target?"
        if came[1] == offset:
            hint = "That is the byte in the file. The target does not hold the other stripes."
        expect(came[1] == right, f"the byte on the target of {case}", came[1], hint)
    return (
        "So any node computes by itself whom to ask. That is why reading needs no metadata server."
    )


def exercise_42_3(causes: Mapping[str, Any]) -> str:
    """Check what limited each of five observed trainings.

    Args:
        causes: for each letter the part of the file system that limits.

    Returns:
        str: what it means.
    """
    expect(isinstance(causes, Mapping), "a dictionary from letters to causes", causes)
    missing = sorted(CAUSES.keys() - causes.keys())
    expect(not missing, "an answer to each of A to E", f"nothing for {', '.join(missing)}")
    if any(each is Ellipsis for each in causes.values()):
        raise NotAnswered
    known = sorted(cause for cause, _ in CAUSES.values())
    for letter, (cause, hint) in CAUSES.items():
        came = str(causes[letter]).strip().lower()
        expect(came in known, f"{letter}: one of {', '.join(known)}", came)
        expect(came == cause, f"the cause of {letter}", came, hint)
    return "Change one thing and look what stays the same: that names the part that limits."


class Watched:
    """A communicator that notes when a rank hands its whole part to all others.

    Args:
        comm: the communicator.
        limit_nbytes: bytes handed to all from which on it is noted (bytes).
    """

    def __init__(self, comm: Any, limit_nbytes: float) -> None:
        self.comm, self.limit_nbytes, self.noted = comm, limit_nbytes, False

    def __getattr__(self, name: str) -> Any:
        """Give the communicator's own method, watched where it sends to all.

        Args:
            name: of the method.

        Returns:
            Any: the method, or a value.
        """
        method = getattr(self.comm, name)
        return partial(self._to_all, method) if name in _TO_ALL else method

    def _to_all(self, method: Callable[..., Any], value: Any, *more: Any, **named: Any) -> Any:
        # methods with a capital letter also take [array, count, type]
        array = value[0] if isinstance(value, list) and value else value
        known = isinstance(array, np.ndarray)
        nbytes = array.nbytes if known else len(pickle.dumps(value))
        self.noted |= nbytes > self.limit_nbytes
        return method(value, *more, **named)


def exercise_42_4(fetch: Callable[..., Any], cluster: Any) -> str:
    """Check on real ranks that every sample comes from the rank that keeps it.

    Args:
        fetch: called with the communicator, the rows that this rank keeps and the samples that it
            wants; returns their rows in that order.
        cluster: the learner's cluster.

    Returns:
        str: what it means.
    """
    expect_function(fetch)
    ranks = cluster.ranks
    random = np.random.default_rng(43)
    samples = 12 * ranks + 1
    data = random.normal(size=(samples, FLOATS))
    data[:, 0] = np.arange(samples)
    order = random.permutation(samples)
    from_last = np.arange(ranks - 1, samples, ranks)
    epochs = {
        "an epoch in random order": [order[rank::ranks] for rank in range(ranks)],
        "rank 0 wants what the last rank keeps, the others want nothing": [
            from_last if rank == 0 else from_last[:0] for rank in range(ranks)
        ],
    }
    for name, wanted in epochs.items():
        inputs = [(data[rank::ranks], wanted[rank]) for rank in range(ranks)]
        came = results(cluster, partial(_fetched, fetch), inputs)
        for rank, (rows, noted) in enumerate(came):
            _same_rows(f"{name}, rank {rank}", data, wanted[rank], rows, ranks)
            hint = "Then each node needs room for all. Tell each owner what you want from it."
            expect(not noted, "rows sent to those who want them", "all rows, to all", hint)
    if ranks == 1:
        return "But one rank has no peers: try it on two."
    return (
        f"Every sample came once, from its owner; {(ranks - 1) / ranks:.0%} of them over the "
        "network, none from the file system."
    )


def _fetched(fetch: Callable[..., Any], comm: Any, kept: np.ndarray, wanted: np.ndarray) -> Any:
    watched = Watched(comm, kept.nbytes / 2 if comm.size > 1 else math.inf)
    rows = fetch(watched, kept, wanted)
    return rows if rows is Ellipsis else (rows, watched.noted)


def _same_rows(case: str, data: np.ndarray, wanted: np.ndarray, rows: Any, ranks: int) -> None:
    try:
        rows = np.asarray(rows, float)
    except (TypeError, ValueError):
        expect(False, f"{case}: an array of rows", rows)
    hint = "One row for each wanted sample."
    expect(len(np.atleast_1d(rows)) == len(wanted), f"{case}: {len(wanted)} rows", rows, hint)
    if len(wanted) == 0:
        return
    expect(rows.shape == data[wanted].shape, f"{case}: rows of {FLOATS} numbers", rows.shape)
    numbers = rows[:, 0].astype(int)
    if sorted(numbers) == sorted(wanted):
        hint = "All are there, in another order: bring them into the order of `wanted`."
    elif np.any(numbers % ranks != wanted % ranks):
        hint = "Some come from a rank that does not keep them. Sample s lies on rank s % ranks."
    else:
        hint = "The owner is right. Sample s is the row s // ranks of those it keeps."
    right = bool(np.array_equal(rows, data[wanted]))
    expect(right, f"{case}: samples {wanted.tolist()}", f"samples {numbers.tolist()}", hint)
