"""The results of the case: numbers, pictures, and how they compare with the guide's section 6.4."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dlcourse import pictures
from dlcourse.usecases.chest_xray.auroc import Area, Estimate, interval
from dlcourse.usecases.chest_xray.model import WeightsOrigin
from dlcourse.usecases.report import Finding
from dlguide import published

if TYPE_CHECKING:
    from dlcourse.usecases.chest_xray.keras_fit import KerasTimings
    from dlcourse.usecases.speedup import Speedup

# Guide 6.4.2 to 6.4.4 and the text under Figures 27 and 28.
NODES, RANKS_PER_NODE = 200, 2
LAUNCHED, STEPS, BATCH, EPOCHS = 512, 14_075, 8_192, 60
IMAGENET = 1_281_167
BETTER = {"VGG-16": 4, "ResNet-50": 10}
TIMES = {"VGG-16": 293, "ResNet-50": 1688}
SMALLER_NODES = 64


@dataclass(frozen=True)
class StageResult:
    """The result of one stage of the training on this rank.

    epochs (count), first_epoch (epochs of a checkpoint before this call), loss and rates (at the
    end of each epoch), steps_per_epoch, samples (counts), step_s, wait_s (of each step taken
    here), images_per_s (of all ranks), digest (SHA-256 of the trained weights).
    """

    epochs: int
    first_epoch: int
    loss: tuple[float, ...]
    rates: tuple[float, ...]
    steps_per_epoch: int
    samples: int
    step_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    images_per_s: float
    digest: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a training on one rank; the areas are the same on all ranks.

    Args:
        rank: this rank.
        ranks: that trained (count).
        net: its name.
        data: name of the radiographs.
        synthetic: whether they are phantoms.
        global_batch: radiographs of one step (count).
        seed: of weights and order.
        parameters: trained weights (count).
        radiographs: to train and to test with (counts).
        patients: to train and to test with (counts).
        origin: of the initial weights; None for a training from scratch.
        start_rate: learning rate at which fine-tuning began.
        scratch_rate: highest rate of a training from scratch.
        pretraining: None if weights were given, or none were wanted.
        tuning: the training on the 14 findings.
        areas: AUROC of each finding, and the mean.
        scratch: AUROC of the same net from scratch, in as many steps; None if not asked for.
        gains: areas minus those from scratch; None without these.
        labels: of the test, zeros and ones, shape (radiographs, 14).
        scores: logits of the test, shape (radiographs, 14).
    """

    rank: int
    ranks: int
    net: str
    data: str
    synthetic: bool
    global_batch: int
    seed: int
    parameters: int
    radiographs: tuple[int, int]
    patients: tuple[int, int]
    origin: WeightsOrigin | None
    start_rate: float
    scratch_rate: float
    pretraining: StageResult | None
    tuning: StageResult
    areas: tuple[Area, ...]
    scratch: tuple[Area, ...] | None
    gains: tuple[Estimate, ...] | None
    labels: np.ndarray = field(repr=False)
    scores: np.ndarray = field(repr=False)

    @property
    def mean(self) -> Area:
        """The mean over findings."""
        return self.areas[-1]

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers without the arrays of the test, ready for JSON."""
        arrays = {"labels", "scores"}
        return {one.name: _plain(getattr(self, one.name))
                for one in fields(self) if one.name not in arrays}  # fmt: skip

    def summary(self) -> str:
        """Return the result in a few lines."""
        lines = [
            f"{self.net} on {self.data}: mean AUROC {interval(self.mean)} over "
            f"{len(self.areas) - 1} findings, {self.radiographs[1]} radiographs of "
            f"{self.patients[1]} patients."
        ]
        if self.origin is not None:
            begun = f"initial weights from {Path(self.origin.path).name}"
            lines.append(f"Transfer: {begun}, fine-tuned from a rate of {self.start_rate:.3g}.")
        if self.gains is not None:
            lines.append(
                f"Compared with as many steps from scratch, at a rate of {self.scratch_rate:.3g}: "
                f"{interval(self.gains[-1], '+')}."
            )
        return "\n".join(lines)


def _plain(value: Any) -> Any:
    """Dataclasses and tuples of them as dicts and lists."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, int | float | str | None) else asdict(value)


def write(outcomes: Sequence[Outcome], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write the numbers of all ranks and the pictures of the first.

    Args:
        outcomes: one for each rank.
        folder: where to write; created if it is missing.

    Returns:
        tuple: paths of `outcome.json` and of the pictures.
    """
    folder, first = Path(folder), outcomes[0]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "outcome.json", folder / "auroc.png"]
    paths[0].write_text(json.dumps([one.as_dict() for one in outcomes], indent=1) + "\n")
    bars = {"with transfer" if first.origin else first.net: first.areas}
    if first.scratch is not None:
        bars["from scratch"] = first.scratch
    # phantoms have nothing to do with the published areas
    known = None if first.synthetic else _chexnet()
    drawn = {name: [one.row for one in areas] for name, areas in bars.items()}
    pictures.areas_under_curves(drawn, known).savefig(paths[1])
    if first.gains is not None:
        paths.append(folder / "gains.png")
        rows = [one.row for one in first.gains]
        pictures.area_gains({"transfer - scratch": rows}).savefig(paths[-1])
    return tuple(paths)


def _chexnet() -> dict[str, float]:
    return {row["finding"]: row["auroc"] for row in published.load("chexnet_auroc")}


def findings(
    outcomes: Sequence[Outcome],
    speedup: Speedup | None = None,
    keras_timings: KerasTimings | None = None,
) -> list[Finding]:
    """Compare the results with the guide's statements.

    Args:
        outcomes: one for each rank.
        speedup: of the ranks' step over one process's; None if not measured.
        keras_timings: of Keras' `fit` and our loop; None if not measured.
    """
    first = outcomes[0]
    found = [_areas(first), *_transfer(first), _checkpoint(first), _epochs(first)]
    found += [] if keras_timings is None else [_keras(keras_timings)]
    found += [_times(net) for net in TIMES]
    found += [] if speedup is None else [_ranks(speedup)]
    return found


def by_chance(better: int, of: int = 14) -> float:
    """Return the probability that one of two equally good nets is ahead in so many findings.

        sum over k >= better of C(of, k) / 2^of

    As if the findings were independent coins. Those of one net on one test are not, which makes
    extreme counts more frequent still.

    Args:
        better: findings in which it is ahead, at least (count).
        of: findings in all (count).

    >>> round(by_chance(10), 3)
    0.09
    """
    return sum(math.comb(of, k) for k in range(better, of + 1)) / 2**of


def trained_again() -> tuple[int, int]:
    """Count where CheXNet trained anew by others came out above the published one.

    Returns:
        tuple: findings in which it did, and all findings (counts).
    """
    rows = published.load("chexnet_auroc")
    return sum(row["auroc_again"] > row["auroc"] for row in rows), len(rows)


def fair_speedup(net: str, nodes: int) -> tuple[float, float]:
    """Compare a claimed speed-up with that of equal nodes that scale perfectly.

    A node spends on each image as many multiply-adds as the net has. So p nodes with the same
    speed in multiply-adds reach

        p * (multiply-adds of DenseNet-121) / (multiply-adds of the net)

    times the images per second of one node with DenseNet-121.

    Args:
        net: "VGG-16" or "ResNet-50".
        nodes: p (count).

    Returns:
        tuple: that ratio, and the claimed one over it: what neither nodes nor nets explain.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.4.4 (the claims); torchvision's
        multiply-adds, `architectures.csv`.
    """
    adds = {row["name"]: row["multiply_adds"] for row in published.load("architectures")
            if row["source"] == "torchvision"}  # fmt: skip
    fair = nodes * adds["DenseNet-121"] / adds[net]
    return fair, TIMES[net] / fair


def _areas(first: Outcome) -> Finding:
    ours = f"mean AUROC {interval(first.mean)}"
    if first.gains is not None:
        each = first.gains[:-1]
        ahead, outside = sum(one.value > 0 for one in each), sum(one.excludes_zero for one in each)
        ours = (
            f"with transfer better than from scratch in {ahead} of {len(each)}; the interval of "
            f"the difference lies on one side of 0 in {outside}"
        )
    again, of = trained_again()
    why = (
        "The guide gives no intervals, and does not say which patients were tested. "
        f"{BETTER['ResNet-50']} or more of 14 fall to one of two equal nets with a probability of "
        f"{by_chance(BETTER['ResNet-50']):.2f}; CheXNet itself, trained anew by others on another "
        f"split, is above the published one in {again} of {of}."
    )
    if first.synthetic:
        why += " Ours are phantoms: their AUROC says nothing about patients."
    else:
        known = _chexnet()
        each = [one for one in first.areas if one.name in known]
        ahead = sum(one.value > known[one.name] for one in each)
        outside = sum(not one.low <= known[one.name] <= one.high for one in each)
        ours += (
            f"; above CheXNet in {ahead} of {len(each)}, CheXNet outside the interval in {outside}"
        )
    guide = f"better than CheXNet in {BETTER['VGG-16']} (VGG-16), up to {BETTER['ResNet-50']} "
    return Finding("AUROC by finding", guide + "(ResNet-50) of 14", "guide 6.4.5, Figures 27, 28",
                   ours, why)  # fmt: skip


def _transfer(first: Outcome) -> list[Finding]:
    if first.gains is None or first.scratch is None:
        return []
    guide = "pre-training on ImageNet for more than 75 % top-1; no result without it"
    ours = (
        f"mean {first.mean.value:.3f} against {first.scratch[-1].value:.3f} from scratch: "
        f"{interval(first.gains[-1], '+')}"
    )
    why = (
        f"Equal steps and radiographs ({first.tuning.steps_per_epoch * first.tuning.epochs} steps "
        f"of {first.global_batch}), one seed, and pre-training on a task nearby. Its "
        "own steps are not counted: they are paid once for many tasks."
    )
    return [Finding("transfer", guide, "guide 6.4.3", ours, why)]


def _checkpoint(first: Outcome) -> Finding:
    guide = "not the last checkpoint; start at the rate it was training at, warm up gradually"
    if first.origin is None or first.pretraining is None:
        return Finding("checkpoint", guide, "guide 6.4.3", "no pre-training here",
                       "Weights from a file, or none, have no rate to continue with.")  # fmt: skip
    rates = first.pretraining.rates
    ours = (
        f"epoch {first.origin.epoch} of {first.pretraining.epochs} at rate "
        f"{first.start_rate:.3g}; the last was at {rates[-1]:.2g}"
    )
    why = (
        "Both rules look at the rate: at the end of a schedule it has fallen "
        f"({max(rates) / max(rates[-1], 1e-12):.0f} times here), so a training that continues with "
        "it takes smaller steps. Train with start=last to see the effect."
    )
    return Finding("checkpoint", guide, "guide 6.4.3", ours, why)


def _epochs(first: Outcome) -> Finding:
    nodes = LAUNCHED // RANKS_PER_NODE
    guide = f"-np {LAUNCHED} --ppn {RANKS_PER_NODE}, {STEPS} steps of {BATCH}; Table 12: ~{EPOCHS}"
    ours = f"{first.ranks} ranks, {first.tuning.epochs} epochs"
    why = (
        f"The printed line needs {nodes} nodes of a cluster of {NODES} and trains "
        f"{STEPS * BATCH / IMAGENET:.0f} epochs: it is another run's, of another machine (its "
        "data folder is not the cluster's)."
    )
    return Finding("launch line", f"{guide} epochs", "guide 6.4.3, Table 12", ours, why)


def _keras(timings: KerasTimings) -> Finding:
    rows = [row for row in published.load("time_to_train") if row["table"] == 13]
    hours = [row["hours"] for row in rows]
    guide = f"TensorFlow {max(hours) / min(hours):.1f} times as fast as Keras (85 s and 18 s)"
    ours = "; ".join(f"{name}: {timings.ratio(name)}" for name in timings.others)
    why = (
        "Today Keras compiles the same step. What can cost is what surrounds it: a step without "
        "a graph, or radiographs that one thread of Python decodes."
    )
    return Finding("Keras' fit", guide, "guide Table 13", ours, why)


def _times(net: str) -> Finding:
    fair, left = fair_speedup(net, SMALLER_NODES)
    guide = f"{net} {TIMES[net]} times as fast as DenseNet-121 on one node"
    ours, rest = f"{fair:.0f} times on {SMALLER_NODES} equal nodes", f"{left:.0f}"
    if net == "ResNet-50":  # the text does not say how many nodes these were
        most, least = fair_speedup(net, NODES)
        ours, rest = f"{ours}, {most:.0f} on {NODES}", f"{least:.0f} to {left:.0f}"
    why = (
        f"Two nets are compared. A factor of {rest} is left that nodes of equal speed cannot give: "
        "it lies in the baseline, in its speed for each multiply-add and in how it was run, of "
        "which the guide says nothing."
    )
    return Finding(f"{net}'s speed-up", guide, "guide 6.4.4, Figure 26", ours, why)


def _ranks(speedup: Speedup) -> Finding:
    ours = f"{speedup.speedup:.2f} on {speedup.ranks} ranks, predicted "
    return Finding(
        "speed-up by ranks", "a single CPU would take about 300 hours; up to 400 workers",
        "guide 6.4.2, Table 12", f"{ours}{speedup.predicted_speedup:.2f}",
        f"Ranks of {speedup.threads} thread{'s'[: speedup.threads != 1]} each against one process "
        "of as many, the same net and as many radiographs in all. The guide's hours are an "
        "estimate, without the time on 400.",
    )  # fmt: skip
