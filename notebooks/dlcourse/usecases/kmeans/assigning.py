"""Which centre is nearest to each point, and how far all points are from theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dlcourse.usecases.kmeans import daal
from dlguide.errors import require

_BLOCK = 65_536  # rows whose differences are in memory at once


def assign(points: ArrayLike, centres: ArrayLike, threads: int | None = None) -> np.ndarray:
    """Number the nearest centre of each point: k-means with zero iterations.

    daal4py has no routine of its own for this: it is the training with `maxIterations=0` and
    `assignFlag=True`. No rank needs another one, so nothing is sent, and any process may call.
    Distances do not change when all is moved: the mean of the centres is taken off first, since
    daal4py compares |c|^2 - 2 x c, which far from zero has no digits left for the difference.

    Args:
        points: the caller's points, shape (points, columns); there may be none.
        centres: shape (clusters, columns).
        threads: threads of this call (count); None for daal4py's setting.

    Returns:
        np.ndarray: int32 of shape (points,), the centre of each point.

    Raises:
        ValueError: when one is no table of finite numbers, or their columns differ.
        MissingComponentError: when there is no daal4py.
    """
    centres = daal.numbers(centres, "centres")
    require(len(centres) > 0, "centres", "be at least one", 0)
    points = np.reshape(points, (-1, centres.shape[1])) if np.size(points) == 0 else points
    points = daal.numbers(points, "points")
    must = f"have the {centres.shape[1]} columns of the centres"
    require(points.shape[1] == centres.shape[1], "points", must, points.shape)
    daal4py = daal.load()
    if not len(points):
        return np.zeros(0, np.int32)
    middle = centres.mean(axis=0)
    points, centres = points - middle, centres - middle
    with daal.threads(threads):
        routine = daal4py.kmeans(len(centres), maxIterations=0, assignFlag=True)
        return routine.compute(points, centres).assignments.ravel()


def inertia(points: ArrayLike, centres: ArrayLike, labels: Sequence[int] | np.ndarray) -> float:
    """Add up the squared distances of the points from their centres.

        inertia = sum over i of |x_i - c_label(i)|^2

    Taken from the differences, not from |x|^2 - 2 x c + |c|^2, which loses digits where points
    are near their centres. daal4py's own `objectiveFunction` lags: it belongs to the centres
    before the last step.

    Args:
        points: shape (points, columns).
        centres: shape (clusters, columns).
        labels: the centre of each point, shape (points,).

    Returns:
        float: in the squared unit of the points.

    >>> inertia([[0.0], [1.0], [5.0]], [[0.0], [4.0]], [0, 0, 1])
    2.0
    """
    points, centres, labels = np.asarray(points), np.asarray(centres), np.asarray(labels)
    sums = []
    for begin in range(0, len(points), _BLOCK):
        part = slice(begin, begin + _BLOCK)
        apart = points[part] - centres[labels[part]]
        sums.append(float(np.sum(apart * apart)))
    return math.fsum(sums)
