"""How far made samples are from true ones, as one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def frechet_distance(one: ArrayLike, other: ArrayLike) -> float:
    """Compare two sets of samples by mean and covariance of their features.

        d^2 = |m1 - m2|^2 + tr(C1 + C2 - 2 (C1^1/2 C2 C1^1/2)^1/2)

    0 for equal means and covariances, whatever else is different. With features of Inception-v3
    this is the usual FID; with others, such as those of a small classifier, it is a number of
    the same kind that must not be compared with published ones. It is biased upwards for few
    samples: compare sets of equal size, and give the distance of two sets of true samples
    beside it.

    Source:
        Dowson and Landau, J. Multivariate Analysis 12 (1982), 450-455; Heusel et al. 2017
        (arXiv:1706.08500), equation 6.

    >>> frechet_distance([[0.0], [2.0]], [[3.0], [5.0]])
    9.0
    """
    sets = [np.asarray(each, float) for each in (one, other)]
    for name, each in zip(("one", "other"), sets, strict=True):
        table = each.ndim == 2 and len(each) >= 2
        require(table, name, "be samples x features with at least 2 samples", each.shape)
    widths = tuple(each.shape[1] for each in sets)
    require(widths[0] == widths[1], "other", f"have the {widths[0]} features of `one`", widths[1])
    means = [each.mean(axis=0) for each in sets]
    first, second = (np.atleast_2d(np.cov(each, rowvar=False)) for each in sets)
    values, vectors = np.linalg.eigh(first)
    root = vectors * np.sqrt(np.clip(values, 0, None)) @ vectors.T
    shared = np.sqrt(np.clip(np.linalg.eigvalsh(root @ second @ root), 0, None)).sum()
    apart = float(((means[0] - means[1]) ** 2).sum())
    return apart + float(np.trace(first) + np.trace(second) - 2 * shared)
