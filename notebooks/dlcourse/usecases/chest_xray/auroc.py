"""The area under the ROC curve of each finding, and how far it can be trusted.

    AUROC = P(score of a radiograph with the finding > score of one without), ties count half

It is counted over all pairs (Mann and Whitney's U), exactly and in n log n steps. Radiographs of
one patient are alike, so intervals take each patient's whole influence on the area.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# Fewer patients of a kind say too little of how others would spread.
FEW = 10


@dataclass(frozen=True)
class Area:
    """An area under the curve with its interval.

    Args:
        name: of the finding, or "mean".
        value: the area, 0 to 1.
        low: lower end of the interval.
        high: upper end of the interval.
        error: standard error of the value.
        positives: radiographs with the finding (count).
        negatives: radiographs without (count).
    """

    name: str
    value: float
    low: float
    high: float
    error: float
    positives: int
    negatives: int

    @property
    def row(self) -> tuple[str, float, float, float]:
        """What `pictures.areas_under_curves` draws of it."""
        return self.name, self.value, self.low, self.high

    def as_dict(self) -> dict[str, Any]:
        """Give all fields, ready for JSON."""
        return asdict(self)


def area(labels: ArrayLike, scores: ArrayLike) -> float:
    """Compute the area under the ROC curve.

    Args:
        labels: zeros and ones, shape (samples,).
        scores: larger where a 1 is expected, shape (samples,).

    Returns:
        float: 0.5 for scores that tell nothing, 1.0 where all ones lie above all zeros.

    Raises:
        ValueError: when there is no 0 or no 1, or a score is not finite.

    >>> area([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    return float(np.mean(parts_of(*checked(labels, scores))[0]))


def areas(
    labels: ArrayLike,
    scores: ArrayLike,
    patients: ArrayLike,
    names: Sequence[str],
    confidence: float = 0.95,
) -> tuple[Area, ...]:
    """Compute the area of each finding with an interval, and their mean.

    The variance of an area is that of DeLong et al., summed up patient by patient as Obuchowski
    does; with one radiograph a patient it is DeLong's. Of fewer than 10 patients of a kind it
    says too little, and Hanley and McNeil's is taken where it is larger. The interval is
    symmetric on the scale of the log odds, so that it stays within 0 and 1. The mean's comes
    from the sum of each patient's influences on all areas, which are not independent.

    Leaves out findings that all radiographs have, or none. An area of exactly 0 or 1 has no
    variance to be estimated: its interval is that of Hanley and McNeil's formula, solved for the
    area, with the patients as the counts.

    Args:
        labels: zeros and ones, shape (samples, findings).
        scores: shape (samples, findings).
        patients: number of each radiograph's patient, shape (samples,).
        names: of the findings.
        confidence: how often the interval shall hold the true area (0 to 1).

    Returns:
        tuple: of `Area`, one for each finding that can be judged, then their "mean".

    Raises:
        ValueError: when shapes do not fit, labels are no zeros and ones, or none can be judged.

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845; Obuchowski, Biometrics
        53 (1997), 567-578 (patients with several images); Hanley and McNeil, Radiology 143
        (1982), 29-36, as Newcombe, Statistics in Medicine 25 (2006), 559-573, solves it.
    """
    labels, scores, who = as_table(labels, scores, patients, names)
    found, influences, more = [], [], []
    for name, truth, score in zip(names, labels.T, scores.T, strict=True):
        if truth.all() or not truth.any():
            continue
        value, influence = influence_of(truth, score, who)
        influences.append(influence)
        error = float(np.sqrt(np.sum(influence**2)))
        people = people_of(truth, who)
        if min(people) < FEW:
            error = max(error, expected_error(value, *people))
        more.append(error**2 - float(np.sum(influence**2)))
        ends = _interval(value, error, people, confidence)
        counts = int(truth.sum()), int((~truth).sum())
        found.append(Area(name, value, *ends, error, *counts))
    must, got = "have findings that some radiographs have and others not", labels.sum(0).tolist()
    require(bool(found), "labels", must, got)
    value = float(np.mean([each.value for each in found]))
    error = float(np.sqrt(np.sum(np.mean(influences, 0) ** 2) + sum(more) / len(more) ** 2))
    ends = min(one.low for one in found), max(one.high for one in found)
    if 0 < value < 1:
        ends = _by_odds(value, error, confidence)
    return *found, Area("mean", value, *ends, error, int(labels.sum()), int((~labels).sum()))


def influence_of(truth: ArrayLike, scores: ArrayLike, who: ArrayLike) -> tuple[float, np.ndarray]:
    """Give an area and each patient's influence on it; the variance is the sum of their squares."""
    truth, scores = checked(truth, scores)
    who = np.asarray(who)
    above, below = parts_of(truth, scores)  # of each positive, of each negative
    value, people = float(above.mean()), int(who.max()) + 1
    influence = np.zeros(people)
    for part, mine in ((above, truth), (below, ~truth)):
        # as n / (n - 1) in any variance; the patients are what was drawn
        drawn = len(np.unique(who[mine]))
        few = np.sqrt(drawn / (drawn - 1)) if drawn > 1 else 1.0
        weights = (part - value) / len(part) * few
        influence += np.bincount(who[mine], weights, people)
    return value, influence


def people_of(truth: np.ndarray, who: np.ndarray) -> list[int]:
    """Count the patients with the finding and those without; one can be both."""
    return [len(np.unique(who[mine])) for mine in (truth, ~truth)]


def expected_error(area: float, positives: int, negatives: int) -> float:
    """Estimate an area's standard error from its value and the counts alone.

    For published areas, whose scores nobody has: of independent, exponential scores.

        SE^2 = (A (1 - A) + (m - 1)(A / (2 - A) - A^2) + (n - 1)(2 A^2 / (1 + A) - A^2)) / (m n)

    Args:
        area: A, 0 to 1.
        positives: m, radiographs with the finding (count).
        negatives: n, radiographs without (count).

    Returns:
        float: the standard error.

    Source:
        Hanley and McNeil, Radiology 143 (1982), 29-36, equations 1 and 2.
    """
    one, two = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (positives - 1) * one + (negatives - 1) * two
    return float(np.sqrt(variance / (positives * negatives)))


def parts_of(truth: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count for each radiograph how much of the other kind lies on the right side of it."""
    positives, negatives = np.sort(scores[truth]), np.sort(scores[~truth])
    below = sum(np.searchsorted(negatives, scores[truth], side) for side in ("left", "right"))
    beneath = sum(np.searchsorted(positives, scores[~truth], side) for side in ("left", "right"))
    return below / (2 * len(negatives)), 1 - beneath / (2 * len(positives))


def checked(labels: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Give labels and scores of one finding as arrays, when they have an area."""
    truth, scores = np.asarray(labels), np.asarray(scores, float)
    require(truth.shape == scores.shape, "scores", f"have shape {truth.shape}", scores.shape)
    binary = bool(np.isin(truth, (0, 1)).all())
    require(binary, "labels", "be zeros and ones", np.unique(truth)[:5].tolist())
    truth = truth.astype(bool)
    both = truth.any() and not truth.all()
    require(both, "labels", "hold both a 0 and a 1", f"{int(truth.sum())} ones of {truth.size}")
    require(np.isfinite(scores).all(), "scores", "be finite", "nan or infinity")
    return truth, scores


def as_table(
    labels: Any, scores: Any, patients: Any, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give labels, scores and patients as arrays that fit each other."""
    labels, scores, patients = np.asarray(labels), np.asarray(scores, float), np.asarray(patients)
    shape = (len(patients), len(names))
    for name, each in (("labels", labels), ("scores", scores)):
        require(each.shape == shape, name, f"have shape {shape}", each.shape)
    binary = bool(np.isin(labels, (0, 1)).all())
    require(binary, "labels", "be zeros and ones", np.unique(labels)[:5].tolist())
    return labels.astype(bool), scores, np.unique(patients, return_inverse=True)[1]


def _interval(
    value: float, error: float, people: list[int], confidence: float
) -> tuple[float, float]:
    if 0 < value < 1:
        return _by_odds(value, error, confidence)
    end = _end_at_one(*people, NormalDist().inv_cdf((1 + confidence) / 2))
    return (end, 1.0) if value == 1 else (0.0, 1 - end)


def _by_odds(value: float, error: float, confidence: float) -> tuple[float, float]:
    odds, width = value / (1 - value), NormalDist().inv_cdf((1 + confidence) / 2)
    factor = float(np.exp(width * error / (value * (1 - value))))
    low, high = odds / factor, odds * factor
    return low / (1 + low), high / (1 + high)


def _end_at_one(positives: int, negatives: int, width: float) -> float:
    """Find the area below 1 from which 1 would just not be surprising, by halving."""
    low, high, half = 0.0, 1.0, (positives + negatives) / 2 - 1
    for _ in range(60):
        a = (low + high) / 2
        far = 1 - a > width * np.sqrt(_spread(a, half) / (positives * negatives))
        low, high = (a, high) if far else (low, a)
    return high


def _spread(area: float, half: float) -> float:
    """Give positives times negatives times the variance, with both counts as `half` + 1."""
    return area * (1 - area) * (1 + half * ((1 - area) / (2 - area) + area / (1 + area)))
