"""How good a net is, by finding and by patient; and the guide's section 6.4 beside our results.

Three questions, one number each: does it rank those with a finding above those without (area
under the ROC curve), how pure is what it finds (area under the precision-recall curve, average
precision), and does 0.3 mean 30 of 100 (Brier score, calibration)?

Radiographs of one patient resemble each other, so the variance of an area is a sum over patients
of the squared influence of all their radiographs on it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dlcourse import pictures
from dlcourse.usecases import report
from dlcourse.usecases.chest_xray.model import WeightsOrigin
from dlcourse.usecases.report import Finding
from dlguide import published
from dlguide.errors import require
from dlguide.measure import TrainingResult

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dlcourse.usecases.speedup import Speedup

# With fewer patients of a kind the estimated variance is not reliable.
FEW = 10
# Above this share of waiting the files are worth packing.
_SLOW = 0.1
# Guide 6.4.2 to 6.4.4 and the text under Figures 27 and 28.
NODES, RANKS_PER_NODE = 200, 2
LAUNCHED, STEPS, BATCH, EPOCHS = 512, 14_075, 8_192, 60
IMAGENET = 1_281_167
BETTER = {"VGG-16": 4, "ResNet-50": 10}
TIMES = {"VGG-16": 293, "ResNet-50": 1688}
SMALLER_NODES = 64


class Estimate(NamedTuple):
    """A value, the interval that holds the true one with 95 % confidence, its standard error."""

    name: str
    value: float
    low: float
    high: float
    error: float

    @property
    def row(self) -> tuple[str, float, float, float]:
        """What `dlcourse.pictures` draws of it."""
        return self[:4]


def interval(estimate: Estimate, sign: str = "") -> str:
    """Format a value with its interval; `sign="+"` writes the sign of positive values too.

    >>> interval(Estimate("mean", 0.05, 0.03, 0.07, 0.01), "+")
    '+0.050 (+0.030 to +0.070)'
    """
    form = f"{sign}.3f"
    return f"{estimate.value:{form}} ({estimate.low:{form}} to {estimate.high:{form}})"


def areas(
    labels: ArrayLike, scores: ArrayLike, patients: ArrayLike, names: Sequence[str]
) -> tuple[Estimate, ...]:
    """Compute the AUROC of each finding with an interval, and their mean.

    The variance is that of DeLong et al., summed by patient as in Obuchowski. With fewer than 10
    patients of a kind it is not reliable, and Hanley and McNeil's is used if it is larger. The
    interval is symmetric on the scale of the log odds; that of an area of exactly 0 or 1 is the
    exact one of as many won pairs as there are patients of the rarer kind. Leaves out findings
    that all radiographs have, or none.

    Args:
        labels: zeros and ones, shape (samples, findings).
        scores: shape (samples, findings).
        patients: number of each radiograph's patient, shape (samples,).
        names: of the findings.

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845; Obuchowski, Biometrics
        53 (1997), 567-578 (patients with several images).
    """
    return _estimates(labels, (scores,), patients, names)


def differences(
    labels: ArrayLike, scores: ArrayLike, others: ArrayLike, patients: ArrayLike,
    names: Sequence[str],
) -> tuple[Estimate, ...]:  # fmt: skip
    """The AUROC of one net minus that of another on the same radiographs, and the mean.

    Both judge the same patients, so what is difficult for both cancels: the interval is narrower
    than two separate ones suggest.

    Source:
        DeLong, DeLong and Clarke-Pearson, Biometrics 44 (1988), 837-845, equation 5.
    """
    return _estimates(labels, (scores, others), patients, names)


def _estimates(
    labels: ArrayLike, nets: Sequence[ArrayLike], patients: ArrayLike, names: Sequence[str]
) -> tuple[Estimate, ...]:
    """Areas of one net, or differences of two, by finding and in the mean."""
    ends = _ends if len(nets) == 1 else _ends_of_difference
    tables = [_table(labels, one, patients, names) for one in nets]
    labels, _, who = tables[0]
    found, influences, added = [], [], 0.0
    for name, k in _judged(labels, names):
        each = [influence_of(labels[:, k], scores[:, k], who) for _, scores, _ in tables]
        people = tuple(len(np.unique(who[labels[:, k] == kind])) for kind in (1, 0))
        value = each[0][0] - sum(area for area, _ in each[1:])
        influence = each[0][1] - sum(part for _, part in each[1:])
        error = float(np.sqrt(np.sum(influence**2)))
        if min(people) < FEW:
            least = math.hypot(*(expected_error(area, *people) for area, _ in each))
            added += max(error, least) ** 2 - error**2
            error = max(error, least)
        found.append(Estimate(name, value, *ends(value, error, min(people)), error))
        influences.append(influence)
    value = float(np.mean([one.value for one in found]))
    # the findings of a patient go together; what few patients add counts as independent
    variance = np.sum(np.mean(influences, 0) ** 2) + added / len(found) ** 2
    error, rarest = float(np.sqrt(variance)), len(np.unique(who))
    return *found, Estimate("mean", value, *ends(value, error, rarest), error)


def influence_of(truth: ArrayLike, scores: ArrayLike, who: ArrayLike) -> tuple[float, np.ndarray]:
    """An area and each patient's influence on it; the variance is the sum of their squares."""
    truth, scores, who = np.asarray(truth, bool), np.asarray(scores, float), np.asarray(who)
    positives, negatives = np.sort(scores[truth]), np.sort(scores[~truth])
    # the share of the other kind that each positive lies above, and each negative below
    above = _beaten(negatives, scores[truth])
    below = 1 - _beaten(positives, scores[~truth])
    value, people = float(above.mean()), int(who.max()) + 1
    influence = np.zeros(people)
    for part, mine in ((above, truth), (below, ~truth)):
        # n / (n - 1) as in any variance; the sample is one of patients
        drawn = len(np.unique(who[mine]))
        few = np.sqrt(drawn / (drawn - 1)) if drawn > 1 else 1.0
        influence += np.bincount(who[mine], (part - value) / len(part) * few, people)
    return value, influence


def _beaten(ordered: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """The share of sorted scores below each score; ties count half."""
    sides = [np.searchsorted(ordered, scores, side) for side in ("left", "right")]
    return np.sum(sides, 0) / (2 * len(ordered))


def expected_error(area: float, positives: int, negatives: int) -> float:
    """Estimate the standard error of an area A from its value and the counts m and n alone.

        SE^2 = (A (1 - A) + (m - 1)(A / (2 - A) - A^2) + (n - 1)(2 A^2 / (1 + A) - A^2)) / (m n)

    For published areas, whose scores are not available; of independent, exponential scores.

    Source:
        Hanley and McNeil, Radiology 143 (1982), 29-36, equations 1 and 2.
    """
    one, two = area / (2 - area) - area**2, 2 * area**2 / (1 + area) - area**2
    variance = area * (1 - area) + (positives - 1) * one + (negatives - 1) * two
    return float(np.sqrt(variance / (positives * negatives)))


def _judgeable(labels: np.ndarray) -> np.ndarray:
    """Columns of the findings that some radiographs have and others do not."""
    count = labels.sum(0)
    return np.flatnonzero((count > 0) & (count < len(labels)))


def _judged(labels: np.ndarray, names: Sequence[str]) -> list[tuple[str, int]]:
    """Names and columns of the findings that can be judged."""
    columns, must = _judgeable(labels), "have findings that some radiographs have and others not"
    require(len(columns) > 0, "labels", must, labels.sum(0).tolist())
    return [(names[k], k) for k in columns]


def require_judgeable(labels: np.ndarray, where: str) -> None:
    """Refuse, before a training, radiographs on which no finding can be judged after it."""
    must = f"hold, in the {where}, a finding that some radiographs have and others not"
    then = "Use more radiographs, or another list of patients."
    got = f"{labels.sum(0).tolist()} positives of {len(labels)}"
    require(len(_judgeable(labels)) > 0, "labels", must, got, then)


_WIDTH = NormalDist().inv_cdf(0.975)


def _ends_of_difference(value: float, error: float, fewest: int) -> tuple[float, float]:
    return value - _WIDTH * error, value + _WIDTH * error


def _ends(value: float, error: float, fewest: int) -> tuple[float, float]:
    """Ends of an area's interval, symmetric on the scale of the log odds."""
    if not 0 < value < 1:
        end = 0.025 ** (1 / fewest)
        return (end, 1.0) if value == 1 else (0.0, 1 - end)
    from scipy.special import expit, logit

    width = _WIDTH * error / (value * (1 - value))
    return float(expit(logit(value) - width)), float(expit(logit(value) + width))


def _table(
    labels: Any, scores: Any, patients: Any, names: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, scores and patients as arrays of matching shapes; patients counted from 0."""
    labels, scores, patients = np.asarray(labels), np.asarray(scores, float), np.asarray(patients)
    shape = (len(patients), len(names))
    for name, each in (("labels", labels), ("scores", scores)):
        require(each.shape == shape, name, f"have shape {shape}", each.shape)
    require(np.isfinite(scores).all(), "scores", "be finite", "nan or infinity")
    binary = bool(np.isin(labels, (0, 1)).all())
    require(binary, "labels", "be zeros and ones", np.unique(labels)[:5].tolist())
    return labels.astype(bool), scores, np.unique(patients, return_inverse=True)[1]


def probabilities(logits: ArrayLike, weights: np.ndarray | None = None) -> np.ndarray:
    """Turn logits into probabilities; with the loss's weights, undo what these did to the rates.

    A loss in which a one weighs w1 and a zero w0 has its minimum where the odds are w1 / w0 times
    the true ones. So the logit of the true probability is z - log(w1 / w0).

    Args:
        logits: z, shape (samples, labels).
        weights: of zeros and ones, shape (2, labels); None to leave the logits alone.
    """
    logits = np.asarray(logits, float)
    if weights is not None:
        logits = logits - np.log(weights[1] / weights[0])
    return 1 / (1 + np.exp(-logits))


def precision_and_calibration(
    labels: np.ndarray, chances: np.ndarray, names: Sequence[str]
) -> list[dict[str, Any]]:
    """Share of ones, average precision (AUPRC; guessing gets that share) and Brier score."""
    from sklearn.metrics import average_precision_score, brier_score_loss

    labels = np.asarray(labels, bool)
    return [
        {
            "finding": name,
            "share": float(labels[:, k].mean()),
            "average_precision": float(average_precision_score(labels[:, k], chances[:, k])),
            "brier": float(brier_score_loss(labels[:, k], chances[:, k])),
        }
        for name, k in _judged(labels, names)
    ]


@dataclass(frozen=True, eq=False)
class Judged:
    """Radiographs that were judged: labels and logits of shape (radiographs, 14), and the areas."""

    areas: tuple[Estimate, ...]
    labels: np.ndarray = field(repr=False)
    scores: np.ndarray = field(repr=False)
    patients: np.ndarray = field(repr=False)

    @property
    def mean(self) -> Estimate:
        """The mean area over findings."""
        return self.areas[-1]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a training on one rank; what was judged is the same on all ranks.

    Args:
        files: whether each radiograph was a file, not a record of a packed collection.
        radiographs: to train with (count).
        origin: of the initial weights; None for a training from scratch.
        start_rate: learning rate at which fine-tuning began.
        weights: of zeros and ones in the loss, shape (2, 14).
        pretraining: of `fit`; None if weights were given, or none were wanted.
        tuning: of `fit` on the 14 findings.
        judged: "test", and "validation" and "external" if there are any.
    """

    net: str
    data: str
    synthetic: bool
    files: bool
    radiographs: int
    origin: WeightsOrigin | None
    start_rate: float
    weights: np.ndarray = field(repr=False)
    pretraining: TrainingResult | None
    tuning: TrainingResult
    judged: dict[str, Judged]

    @property
    def test(self) -> Judged:
        """The patients that the result is about."""
        return self.judged["test"]

    @property
    def mean(self) -> Estimate:
        """The mean area over findings in the test."""
        return self.test.mean

    @property
    def chances(self) -> np.ndarray:
        """The probabilities of the test, with the loss's weights undone."""
        return probabilities(self.test.scores, self.weights)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers without the arrays, ready for JSON."""
        found = {name: asdict(value) if is_dataclass(value) else value
                 for name, value in vars(self).items()
                 if name not in ("weights", "judged")}  # fmt: skip
        found["areas"] = {
            name: [one._asdict() for one in part.areas] for name, part in self.judged.items()
        }
        names = [one.name for one in self.test.areas[:-1]]
        if len(names) == self.test.labels.shape[1]:
            found["precision"] = precision_and_calibration(self.test.labels, self.chances, names)
        return found

    def summary(self) -> str:
        """Return the result in a few lines."""
        lines = [
            f"{self.net} on {self.data}: mean AUROC {interval(self.mean)} over "
            f"{len(self.test.areas) - 1} findings, {len(self.test.labels)} radiographs of "
            f"{len(np.unique(self.test.patients))} patients."
        ]
        for name, what in (("validation", "Validation, to choose settings with"),
                           ("external", "External test")):  # fmt: skip
            if name in self.judged:
                lines.append(f"{what}: {interval(self.judged[name].mean)}.")
        if self.origin is not None:
            begun = f"initial weights from {Path(self.origin.path).name}"
            lines.append(f"Transfer: {begun}, fine-tuned from a rate of {self.start_rate:.3g}.")
        waited = sum(self.tuning.wait_s) / (sum(self.tuning.step_s) or 1.0)
        if self.files and waited > _SLOW:
            lines.append(f"The steps waited {waited:.0%} of their time for files. Pack them once: "
                         "chest_xray.pack(FOLDER, NEW), then --real NEW.")  # fmt: skip
        return "\n".join(lines)


def write(outcomes: Sequence[Outcome], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write `outcome.json` of all ranks and `auroc.png` of the first; return the paths."""
    first = report.first_of(outcomes)
    # phantoms have nothing to do with the published areas
    known = None if first.synthetic else _chexnet()
    rows = {"with transfer" if first.origin else first.net: [one.row for one in first.test.areas]}
    figures = {"auroc.png": pictures.areas_under_curves(rows, known)}
    return report.write(folder, [one.as_dict() for one in outcomes], figures)


def _chexnet() -> dict[str, float]:
    return {row["finding"]: row["auroc"] for row in published.load("chexnet_auroc")}


def by_chance(better: int, of: int = 14) -> float:
    """Return the probability that one of two equally good nets is ahead in so many findings.

        sum over k >= better of C(of, k) / 2^of

    As if the findings were independent coins. Those of one net on one test are not, which makes
    extreme counts more frequent still.

    >>> round(by_chance(10), 3)
    0.09
    """
    return sum(math.comb(of, k) for k in range(better, of + 1)) / 2**of


def trained_again() -> tuple[int, int]:
    """Count where CheXNet trained anew by others came out above the published one.

    Returns the findings in which it did, and all findings (counts).
    """
    rows = published.load("chexnet_auroc")
    return sum(row["auroc_again"] > row["auroc"] for row in rows), len(rows)


def fair_speedup(net: str, nodes: int) -> tuple[float, float]:
    """Compare a claimed speed-up with that of equal nodes that scale perfectly.

    A node spends on each image as many multiply-adds as the net has. So p nodes with the same
    speed in multiply-adds reach

        p * (multiply-adds of DenseNet-121) / (multiply-adds of the net)

    times the images per second of one node with DenseNet-121.

    Returns that ratio for "VGG-16" or "ResNet-50", and the claimed one over it: what neither
    nodes nor nets explain.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.4.4 (the claims); torchvision's
        multiply-adds, `architectures.csv`.
    """
    adds = {row["name"]: row["multiply_adds"] for row in published.load("architectures")
            if row["source"] == "torchvision"}  # fmt: skip
    fair = nodes * adds["DenseNet-121"] / adds[net]
    return fair, TIMES[net] / fair


def findings(outcomes: Sequence[Outcome], speedup: Speedup | None = None) -> list[Finding]:
    """Compare the results with the guide's statements."""
    first = report.first_of(outcomes)
    ours = f"mean AUROC {interval(first.mean)}"
    phantoms = " Ours are phantoms: their AUROC says nothing about patients."
    if not first.synthetic:
        known, phantoms = _chexnet(), ""
        each = [one for one in first.test.areas if one.name in known]
        ahead = sum(one.value > known[one.name] for one in each)
        outside = sum(not one.low <= known[one.name] <= one.high for one in each)
        ours += (
            f"; above CheXNet in {ahead} of {len(each)}, CheXNet outside the interval in {outside}"
        )
    checkpoint = (
        "no pre-training here",
        ("Weights from a file, or none, have no rate to continue with."),
    )
    if first.origin is not None and first.pretraining is not None:
        checkpoint = (
            f"epoch {first.origin.epoch} of {first.pretraining.epochs} at rate "
            f"{first.start_rate:.3g}",
            "Both rules look at the rate: at the end of a schedule it has fallen, so a training "
            "that continues with it takes smaller steps. Train with start=last to see the effect.",
        )
    found = [
        Finding(
            "AUROC by finding",
            f"better than CheXNet in {BETTER['VGG-16']} (VGG-16), up to {BETTER['ResNet-50']} "
            "(ResNet-50) of 14",
            "guide 6.4.5, Figures 27, 28",
            ours,
            "The guide gives no intervals, and does not say which patients were tested. "
            f"{BETTER['ResNet-50']} or more of 14 fall to one of two equal nets with a probability "
            f"of {by_chance(BETTER['ResNet-50']):.2f} if findings are independent, which they are "
            "not; CheXNet itself, trained anew by others on another split, is above the published "
            "one in {} of {}.".format(*trained_again()) + phantoms,
        ),
        Finding(
            "checkpoint",
            "not the last checkpoint; start at the rate it was training at, warm up gradually",
            "guide 6.4.3",
            *checkpoint,
        ),
        Finding(
            "launch line",
            f"-np {LAUNCHED} --ppn {RANKS_PER_NODE}, {STEPS} steps of {BATCH}; Table 12: ~{EPOCHS} "
            "epochs",
            "guide 6.4.3, Table 12",
            f"{first.tuning.ranks} ranks, {first.tuning.epochs} epochs",
            f"The printed line needs {LAUNCHED // RANKS_PER_NODE} nodes of a cluster of {NODES} "
            f"and trains {STEPS * BATCH / IMAGENET:.0f} epochs: it is another run's, of another "
            "machine (its data folder is not the cluster's).",
        ),
    ]  # fmt: skip
    for net, times in TIMES.items():
        fair, left = fair_speedup(net, SMALLER_NODES)
        ours, rest = f"{fair:.0f} times on {SMALLER_NODES} equal nodes", f"{left:.0f}"
        if net == "ResNet-50":  # the text does not say how many nodes these were
            most, least = fair_speedup(net, NODES)
            ours, rest = f"{ours}, {most:.0f} on {NODES}", f"{least:.0f} to {left:.0f}"
        found.append(Finding(
            f"{net}'s speed-up",
            f"{net} {times} times as fast as DenseNet-121 on one node",
            "guide 6.4.4, Figure 26",
            ours,
            f"Two nets are compared. A factor of {rest} is left that nodes of equal speed cannot "
            "give: it lies in the baseline, in its speed for each multiply-add and in how it was "
            "run, of which the guide says nothing.",
        ))  # fmt: skip
    if speedup is not None:
        found.append(Finding(
            "speed-up by ranks",
            "a single CPU would take about 300 hours; up to 400 workers",
            "guide 6.4.2, Table 12",
            f"{speedup.speedup:.2f} on {speedup.ranks} ranks, predicted "
            f"{speedup.predicted_speedup:.2f}",
            f"Ranks of {speedup.threads} thread{'s'[: speedup.threads != 1]} each against one "
            "process of as many, the same net and as many radiographs in all. The guide's hours "
            "are an estimate, without the time on 400.",
        ))  # fmt: skip
    return found
