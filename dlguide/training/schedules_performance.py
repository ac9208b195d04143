"""A rate that follows the training itself: lower when the loss no longer falls."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlguide.errors import require, require_count, require_positive


def performance(
    rate: float,
    losses: Sequence[float],
    factor: float = 0.1,
    patience: int = 10,
    least_gain: float = 0.0,
) -> float:
    """Give the rate after some epochs: lower each time the loss has not fallen for a while.

    A function of the losses alone, so that all ranks decide alike when all hold the same losses:
    average them over the ranks first (`hvd.callbacks.MetricAverageCallback`). An epoch whose loss
    is not finite counts as one without progress.

    Args:
        rate: the first rate.
        losses: one a finished epoch, usually of the validation data.
        factor: what the rate is multiplied with each time.
        patience: epochs without progress before that (count).
        least_gain: what the loss must fall below the best one to count as progress.

    Returns:
        float: the rate of the coming epoch.

    Raises:
        ValueError: when a number is out of range, for example a factor of 1 or more.

    Source:
        The thesis, section 2.3 (performance scheduling, after Senior et al. 2013).

    >>> performance(0.1, [3.0, 2.0, 2.5, 2.1], factor=0.5, patience=2)
    0.05
    """
    current = require_positive(rate, "rate")
    require(require_positive(factor, "factor") < 1, "factor", "be below 1", factor)
    require_count(patience, "patience")
    require(least_gain >= 0, "least_gain", "be at least 0", least_gain)
    best, waited = math.inf, 0
    for loss in losses:
        if math.isfinite(loss) and loss < best - least_gain:
            best, waited = loss, 0
            continue
        waited += 1
        if waited == patience:
            current, waited = current * factor, 0
    return current
