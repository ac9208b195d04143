"""K-means++ in NumPy: how centres are chosen far from each other, one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dlguide.errors import require, require_count


@dataclass(frozen=True, eq=False)
class Seeds:
    """The points chosen as first centres, and what the choice looked at.

    Args:
        chosen: index of the point of each centre, in the order of the choice.
        centres: these points, shape (clusters, columns).
        distances: for each step the squared distance of every point from the centres so far,
            shape (clusters - 1, points); the next centre was drawn with these as weights.
    """

    chosen: tuple[int, ...]
    centres: np.ndarray
    distances: np.ndarray


def plus_plus(points: ArrayLike, clusters: int, seed: int = 0) -> Seeds:
    """Draw first centres: a point's chance is its squared distance from the centres so far.

    The first one is any point. A point that is a centre has the chance 0, one twice as far away
    four times the chance. This is for looking at: daal4py does the same on ranks.

    Args:
        points: shape (points, columns).
        clusters: number of centres (count).
        seed: of the random numbers.

    Returns:
        Seeds: the chosen points.

    Raises:
        ValueError: when there are fewer different points than clusters.

    Source:
        Arthur and Vassilvitskii, k-means++: the advantages of careful seeding, SODA (2007).
    """
    points = np.asarray(points, np.float64)
    require(points.ndim == 2, "points", "be rows of numbers", points.shape)
    require_count(clusters, "clusters")
    random = np.random.default_rng(seed)
    chosen = [int(random.integers(len(points)))]
    nearest, weights = np.full(len(points), np.inf), []
    while len(chosen) < clusters:
        nearest = np.minimum(nearest, np.sum((points - points[chosen[-1]]) ** 2, axis=1))
        total = nearest.sum()
        must = "be at most the number of different points"
        require(total > 0, "clusters", must, clusters, f"There are {len(chosen)}.")
        weights.append(nearest)
        chosen.append(int(random.choice(len(points), p=nearest / total)))
    table = np.array(weights).reshape(len(weights), len(points))
    return Seeds(tuple(chosen), points[chosen], table)
