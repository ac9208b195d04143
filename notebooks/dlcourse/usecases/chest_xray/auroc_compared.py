"""Areas under two ROC curves on the same radiographs, and an area on patients drawn anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse.usecases.chest_xray.auroc import (
    FEW,
    as_table,
    checked,
    expected_error,
    influence_of,
    parts_of,
    people_of,
)
from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Difference:
    """How much larger one area is than another on the same radiographs.

    Args:
        name: of the finding, or "mean".
        value: the first area minus the second.
        low: lower end of the interval.
        high: upper end of the interval.
        error: standard error of the value.
    """

    name: str
    value: float
    low: float
    high: float
    error: float

    @property
    def row(self) -> tuple[str, float, float, float]:
        """What `pictures.area_gains` draws of it."""
        return self.name, self.value, self.low, self.high

    @property
    def told(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0

    def as_dict(self) -> dict[str, Any]:
        """Give all fields, ready for JSON."""
        return asdict(self)


def differences(
    labels: ArrayLike,
    scores: ArrayLike,
    others: ArrayLike,
    patients: ArrayLike,
    names: Sequence[str],
    confidence: float = 0.95,
) -> tuple[Difference, ...]:
    """Compare two nets on the same radiographs, finding by finding and in the mean.

    Both judged the same patients, so what is hard for both cancels: the interval is narrower
    than two separate ones would say. Of fewer than 10 patients of a kind it is not trusted, and
    the two errors are taken for independent ones of Hanley and McNeil's size.

    Args:
        labels: zeros and ones, shape (samples, findings).
        scores: of one net, shape (samples, findings).
        others: of the other net, shape (samples, findings).
        patients: number of each radiograph's patient, shape (samples,).
        names: of the findings.
        confidence: how often the interval shall hold the true difference (0 to 1).

    Returns:
        tuple: of `Difference`, in the order of `areas`.

    Raises:
        ValueError: when shapes do not fit, or no finding can be judged.

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845, equation 5.
    """
    labels, scores, who = as_table(labels, scores, patients, names)
    labels, others, _ = as_table(labels, others, patients, names)
    found, width = [], NormalDist().inv_cdf((1 + confidence) / 2)
    values, influences, more = [], [], []
    for name, truth, one, other in zip(names, labels.T, scores.T, others.T, strict=True):
        if truth.all() or not truth.any():
            continue
        (a, ours), (b, theirs) = (influence_of(truth, each, who) for each in (one, other))
        values.append(a - b)
        influences.append(ours - theirs)
        error = float(np.sqrt(np.sum((ours - theirs) ** 2)))
        people = people_of(truth, who)
        if min(people) < FEW:  # as if each net had judged patients of its own
            apart = [expected_error(each, *people) for each in (a, b)]
            error = max(error, float(np.hypot(*apart)))
        more.append(error**2 - float(np.sum((ours - theirs) ** 2)))
        found.append(Difference(name, a - b, a - b - width * error, a - b + width * error, error))
    require(bool(found), "labels", "have findings that some radiographs have and others not", 0)
    value, variance = float(np.mean(values)), float(np.sum(np.mean(influences, 0) ** 2))
    error = float(np.sqrt(variance + sum(more) / len(more) ** 2))
    mean = Difference("mean", value, value - width * error, value + width * error, error)
    return *found, mean


def resampled(
    labels: ArrayLike,
    scores: ArrayLike,
    patients: ArrayLike,
    draws: int = 500,
    seed: int = 0,
) -> np.ndarray:
    """Compute the area on patients drawn again and again with replacement: the bootstrap.

    Slower than `areas`, and free of its formulas: the two can be held against each other.

    Args:
        labels: zeros and ones, shape (samples,).
        scores: shape (samples,).
        patients: number of each radiograph's patient, shape (samples,).
        draws: how often (count).
        seed: of the drawing.

    Returns:
        numpy.ndarray: areas, shape (draws,); a draw without a 0 or without a 1 is drawn anew.

    Raises:
        ValueError: when there is no 0 or no 1, or a score is not finite.

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    truth, scores = checked(labels, scores)
    _, who = np.unique(np.asarray(patients), return_inverse=True)
    groups = [np.flatnonzero(who == each) for each in range(int(who.max()) + 1)]
    rng, found = np.random.default_rng(seed), []
    while len(found) < require_count(draws, "draws"):
        drawn = rng.integers(len(groups), size=len(groups))
        rows = np.concatenate([groups[each] for each in drawn])
        if 0 < truth[rows].sum() < len(rows):
            found.append(float(parts_of(truth[rows], scores[rows])[0].mean()))
    return np.asarray(found)
