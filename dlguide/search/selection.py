"""What choosing the best does to its score: the winner was good, and it was lucky."""

from __future__ import annotations

import math

import numpy as np

from dlguide.errors import require, require_count


def expected_least_error(error: float, images: int, trials: int) -> float:
    """Predict the least validation error of several nets that are all equally good.

    Each net has the true error e, so that it takes X of m images wrongly, X binomial. Of n nets

        E[min X] / m = 1/m sum_{k=0}^{m-1} P(X > k)^n

    For n = 1 that is e; the more nets, the further below. Leaves out that real nets see the same
    images, and so err together: then it is nearer to e.

    >>> round(expected_least_error(0.5, 1, 3), 3)
    0.125
    """
    require(0 <= error <= 1, "error", "be a share from 0 to 1", error)
    require_count(images, "images")
    require_count(trials, "trials")
    if error in (0, 1):
        return float(error)
    log_odds = math.log(error) - math.log1p(-error)
    k = np.arange(images + 1)
    factorials = np.array([math.lgamma(each + 1) for each in range(images + 1)])
    ways = factorials[-1] - factorials - factorials[::-1]
    shares = np.exp(ways + k * log_odds + images * math.log1p(-error))
    above = 1 - np.cumsum(shares)[:-1]
    return float((np.clip(above, 0, 1) ** trials).sum() / images)
