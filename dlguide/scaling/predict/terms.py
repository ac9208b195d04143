"""What makes a step on p workers longer than on one, each as a shape over p."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dlguide.scaling.costs import slowest


@dataclass(frozen=True)
class Term:
    """One reason why a step takes longer, in units of the step of one worker.

    Args:
        name: a word for tables.
        meaning: what it stands for.
        shape: how it grows; takes the workers p (count), 0 for one worker.
        usual: a usual size of its coefficient (fraction of the step of one worker): the mean of
            what is believed before anything is measured.
        of_bytes: whether it shrinks with fewer bytes or a faster link.
    """

    name: str
    meaning: str
    shape: Callable[[int], float]
    usual: float
    of_bytes: bool


TERMS = (
    Term(
        "start",
        "what any exchange costs: copies, hooks, a shared bus",
        lambda p: p > 1,
        0.05,
        False,
    ),
    Term("bandwidth", "bytes of a ring that are not hidden", lambda p: 2 * (p - 1) / p, 0.04, True),
    Term("rounds", "messages of a tree, one after the other", lambda p: np.log2(p), 0.02, False),
    Term("stragglers", "waiting for the slowest of p", cache(slowest), 0.03, False),
    Term("servers", "p messages through one place", lambda p: p - 1.0, 0.004, True),
)
CAPACITY = "capacity"  # a server, switch or storage that hands out no more than so much in all
MOST_CAPACITY = 4096.0  # in speeds of one worker; one that is larger is never met


def shapes(workers: Iterable[int]) -> np.ndarray:
    """Evaluate all terms."""
    return np.array([[float(term.shape(p)) for p in workers] for term in TERMS])
