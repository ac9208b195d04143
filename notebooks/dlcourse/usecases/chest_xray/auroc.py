"""The area under the ROC curve of each finding, with intervals that allow for patients.

    AUROC = P(score of a radiograph with the finding > score of one without), ties count half

Radiographs of one patient resemble each other, so the variance is a sum over patients of the
squared influence of all their radiographs on the area.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


# With fewer patients of a kind the estimated variance is not reliable.
FEW = 10


@dataclass(frozen=True)
class Estimate:
    """A value with the interval that holds the true one with the given confidence.

    Args:
        name: of the finding, or "mean".
        value: the estimate.
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
        """What `dlcourse.pictures` draws of it."""
        return self.name, self.value, self.low, self.high

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Area(Estimate):
    """An area under the ROC curve, 0 to 1, with its interval.

    Args:
        positives: radiographs with the finding (count).
        negatives: radiographs without (count).
    """

    positives: int
    negatives: int


def interval(estimate: Estimate, sign: str = "") -> str:
    """Format a value with its interval; `sign="+"` writes the sign of positive values too.

    >>> interval(Estimate("mean", 0.05, 0.03, 0.07, 0.01), "+")
    '+0.050 (+0.030 to +0.070)'
    """
    form = f"{sign}.3f"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def area(labels: ArrayLike, scores: ArrayLike) -> float:
    """Compute the area under the ROC curve with scikit-learn.

    Args:
        labels: zeros and ones, shape (samples,).
        scores: larger where a 1 is expected, shape (samples,).

    Returns:
        float: 0.5 for scores without information, 1.0 where all ones lie above all zeros.

    Raises:
        ValueError: if there is no 0 or no 1, or a score is not finite.

    >>> area([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(*_checked(labels, scores)))


def areas(
    labels: ArrayLike,
    scores: ArrayLike,
    patients: ArrayLike,
    names: Sequence[str],
    confidence: float = 0.95,
) -> tuple[Area, ...]:
    """Compute the area of each finding with an interval, and their mean.

    The variance of an area is that of DeLong et al., summed by patient as in Obuchowski; with
    one radiograph per patient it is DeLong's. With fewer than 10 patients of a kind it is not
    reliable, and Hanley and McNeil's is used if it is larger. The interval is symmetric on the
    scale of the log odds, so that it stays within 0 and 1. The interval of the mean comes from
    the sum of each patient's influences on all areas, which are correlated.

    Leaves out findings that all radiographs have, or none. The variance of an area of exactly 0
    or 1 cannot be estimated: its interval is that of Hanley and McNeil's formula, solved for the
    area, with the patients as the counts.

    Args:
        labels: zeros and ones, shape (samples, findings).
        scores: shape (samples, findings).
        patients: number of each radiograph's patient, shape (samples,).
        names: of the findings.
        confidence: of the intervals (0 to 1).

    Returns:
        tuple: of `Area`, one for each finding that can be judged, then their "mean".

    Raises:
        ValueError: if shapes do not fit, labels are not zeros and ones, or none can be judged.

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845; Obuchowski, Biometrics
        53 (1997), 567-578 (patients with several images); Hanley and McNeil, Radiology 143
        (1982), 29-36, as Newcombe, Statistics in Medicine 25 (2006), 559-573, solves it.
    """
    labels, scores, who = _table(labels, scores, patients, names)
    width = NormalDist().inv_cdf((1 + confidence) / 2)
    found, influences = [], []
    for name, k in _judged(labels, names):
        truth = labels[:, k]
        value, influence = influence_of(truth, scores[:, k], who)
        people = _patients(truth, who)
        error = _error(influence, people, expected_error(value, *people))
        ends = _ends(value, error, people, width)
        found.append(Area(name, value, *ends, error, int(truth.sum()), int((~truth).sum())))
        influences.append(influence)
    value, error = _mean(found, influences)
    ends = min(one.low for one in found), max(one.high for one in found)
    if 0 < value < 1:
        ends = _ends_by_odds(value, error, width)
    return *found, Area("mean", value, *ends, error, int(labels.sum()), int((~labels).sum()))


def differences(
    labels: ArrayLike,
    scores: ArrayLike,
    others: ArrayLike,
    patients: ArrayLike,
    names: Sequence[str],
    confidence: float = 0.95,
) -> tuple[Estimate, ...]:
    """Compare two nets on the same radiographs, by finding and in the mean.

    Both judge the same patients, so what is difficult for both cancels: the interval is narrower
    than two separate ones suggest. With fewer than 10 patients of a kind the error is at least
    that of two independent areas by Hanley and McNeil.

    Args:
        labels: zeros and ones, shape (samples, findings).
        scores: of one net, shape (samples, findings).
        others: of the other net, shape (samples, findings).
        patients: number of each radiograph's patient, shape (samples,).
        names: of the findings.
        confidence: of the intervals (0 to 1).

    Returns:
        tuple: of `Estimate`, the first area minus the second, in the order of `areas`.

    Raises:
        ValueError: if shapes do not fit, or no finding can be judged.

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845, equation 5.
    """
    labels, scores, who = _table(labels, scores, patients, names)
    labels, others, _ = _table(labels, others, patients, names)
    width = NormalDist().inv_cdf((1 + confidence) / 2)

    def estimate(name: str, value: float, error: float) -> Estimate:
        return Estimate(name, value, value - width * error, value + width * error, error)

    found, influences = [], []
    for name, k in _judged(labels, names):
        truth = labels[:, k]
        (one, ours), (other, theirs) = (
            influence_of(truth, each[:, k], who) for each in (scores, others)
        )
        people = _patients(truth, who)
        independent = np.hypot(*(expected_error(each, *people) for each in (one, other)))
        found.append(estimate(name, one - other, _error(ours - theirs, people, independent)))
        influences.append(ours - theirs)
    return *found, estimate("mean", *_mean(found, influences))


def resampled(
    labels: ArrayLike,
    scores: ArrayLike,
    patients: ArrayLike,
    draws: int = 500,
    seed: int = 0,
) -> np.ndarray:
    """Compute the area on patients drawn with replacement: the bootstrap.

    Slower than `areas` and independent of its formulas, so that each can be checked against the
    other.

    Args:
        labels: zeros and ones, shape (samples,).
        scores: shape (samples,).
        patients: number of each radiograph's patient, shape (samples,).
        draws: count of areas.
        seed: of the drawing.

    Returns:
        numpy.ndarray: areas, shape (draws,); a draw without a 0 or without a 1 is repeated.

    Raises:
        ValueError: if there is no 0 or no 1, or a score is not finite.

    Source:
        Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    truth, scores = _checked(labels, scores)
    require_count(draws, "draws")
    _, who = np.unique(np.asarray(patients), return_inverse=True)
    groups = [np.flatnonzero(who == each) for each in range(int(who.max()) + 1)]
    rng, found = np.random.default_rng(seed), []
    while len(found) < draws:
        drawn = rng.integers(len(groups), size=len(groups))
        rows = np.concatenate([groups[each] for each in drawn])
        if 0 < truth[rows].sum() < len(rows):
            found.append(float(parts_of(truth[rows], scores[rows])[0].mean()))
    return np.asarray(found)


def expected_error(area: float, positives: int, negatives: int) -> float:
    """Estimate the standard error of an area from its value and the counts alone.

    For published areas, whose scores are not available; of independent, exponential scores.

        SE^2 = (A (1 - A) + (m - 1)(A / (2 - A) - A^2) + (n - 1)(2 A^2 / (1 + A) - A^2)) / (m n)

    Args:
        area: A, 0 to 1.
        positives: m, radiographs with the finding (count).
        negatives: n, radiographs without (count).

    Source:
        Hanley and McNeil, Radiology 143 (1982), 29-36, equations 1 and 2.
    """
    one, two = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (positives - 1) * one + (negatives - 1) * two
    return float(np.sqrt(variance / (positives * negatives)))


def influence_of(truth: ArrayLike, scores: ArrayLike, who: ArrayLike) -> tuple[float, np.ndarray]:
    """An area and each patient's influence on it; the variance is the sum of their squares."""
    truth, scores = _checked(truth, scores)
    who = np.asarray(who)
    above, below = parts_of(truth, scores)  # of each positive, of each negative
    value, people = float(above.mean()), int(who.max()) + 1
    influence = np.zeros(people)
    for part, mine in ((above, truth), (below, ~truth)):
        # n / (n - 1) as in any variance; the sample is one of patients
        drawn = len(np.unique(who[mine]))
        few = np.sqrt(drawn / (drawn - 1)) if drawn > 1 else 1.0
        weights = (part - value) / len(part) * few
        influence += np.bincount(who[mine], weights, people)
    return value, influence


def parts_of(truth: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The share of the other kind that each positive lies above, and each negative below."""
    positives, negatives = np.sort(scores[truth]), np.sort(scores[~truth])
    below = sum(np.searchsorted(negatives, scores[truth], side) for side in ("left", "right"))
    beneath = sum(np.searchsorted(positives, scores[~truth], side) for side in ("left", "right"))
    return below / (2 * len(negatives)), 1 - beneath / (2 * len(positives))


def _judged(labels: np.ndarray, names: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Names and columns of the findings that some radiographs have and others do not."""
    count, must = labels.sum(0), "have findings that some radiographs have and others not"
    columns = np.flatnonzero((count > 0) & (count < len(labels)))
    require(len(columns) > 0, "labels", must, count.tolist())
    for k in columns:
        yield names[k], k


def _patients(truth: np.ndarray, who: np.ndarray) -> tuple[int, int]:
    """Count the patients with the finding and those without; one can be both."""
    return len(np.unique(who[truth])), len(np.unique(who[~truth]))


def _error(influence: np.ndarray, people: tuple[int, int], expected: float) -> float:
    """Standard error of an estimate; with few patients at least the expected one."""
    error = float(np.sqrt(np.sum(influence**2)))
    return max(error, float(expected)) if min(people) < FEW else error


def _mean(found: Sequence[Estimate], influences: Sequence[np.ndarray]) -> tuple[float, float]:
    """The mean of estimates on the same patients and its standard error."""
    value = float(np.mean([one.value for one in found]))
    # what `_error` added for few patients counts as independent
    added = sum(one.error**2 - float(np.sum(each**2))
                for one, each in zip(found, influences, strict=True))  # fmt: skip
    variance = np.sum(np.mean(influences, 0) ** 2) + added / len(found) ** 2
    return value, float(np.sqrt(variance))


def _ends(value: float, error: float, people: tuple[int, int], width: float) -> tuple[float, float]:
    """Ends of the interval of an area."""
    if 0 < value < 1:
        return _ends_by_odds(value, error, width)
    from scipy.optimize import brentq

    m, n = people
    half = (m + n) / 2 - 1

    def excess(a: float) -> float:
        """(1 - a) minus width^2 SE^2 / (1 - a), with both counts of SE as half + 1."""
        spread = a * (1 + half * ((1 - a) / (2 - a) + a / (1 + a)))
        return 1 - a - width**2 * spread / (m * n)

    end = float(brentq(excess, 0, 1))
    return (end, 1.0) if value == 1 else (0.0, 1 - end)


def _ends_by_odds(value: float, error: float, width: float) -> tuple[float, float]:
    odds = value / (1 - value)
    factor = float(np.exp(width * error / (value * (1 - value))))
    low, high = odds / factor, odds * factor
    return low / (1 + low), high / (1 + high)


def _checked(labels: Any, scores: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of one finding as arrays, if they have an area."""
    truth, scores = np.asarray(labels), np.asarray(scores, float)
    require(truth.shape == scores.shape, "scores", f"have shape {truth.shape}", scores.shape)
    truth = _binary(truth)
    both = truth.any() and not truth.all()
    require(both, "labels", "hold both a 0 and a 1", f"{int(truth.sum())} ones of {truth.size}")
    require(np.isfinite(scores).all(), "scores", "be finite", "nan or infinity")
    return truth, scores


def _table(
    labels: Any, scores: Any, patients: Any, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores and patients as arrays of matching shapes; patients counted from 0."""
    labels, scores, patients = np.asarray(labels), np.asarray(scores, float), np.asarray(patients)
    shape = (len(patients), len(names))
    for name, each in (("labels", labels), ("scores", scores)):
        require(each.shape == shape, name, f"have shape {shape}", each.shape)
    return _binary(labels), scores, np.unique(patients, return_inverse=True)[1]


def _binary(labels: np.ndarray) -> np.ndarray:
    binary = bool(np.isin(labels, (0, 1)).all())
    require(binary, "labels", "be zeros and ones", np.unique(labels)[:5].tolist())
    return labels.astype(bool)
