"""What the guide found in its section 6.4, beside what a training here found."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlcourse.usecases.chest_xray.against_keras import Race
from dlcourse.usecases.chest_xray.auroc import interval
from dlcourse.usecases.chest_xray.outcome import Outcome
from dlcourse.usecases.report import Finding
from dlguide import published

if TYPE_CHECKING:
    from dlcourse.usecases.speedup import Speedup

# Guide 6.4.2 to 6.4.4 and the text under Figures 27 and 28.
NODES, RANKS_PER_NODE = 200, 2
LAUNCHED, STEPS, BATCH, EPOCHS = 512, 14_075, 8_192, 60
IMAGENET = 1_281_167
BETTER = {"VGG-16": 4, "ResNet-50": 10}
TIMES = {"VGG-16": 293, "ResNet-50": 1688}
SMALLER_NODES = 64


def findings(
    outcomes: Sequence[Outcome], speedup: Speedup | None = None, race: Race | None = None
) -> list[Finding]:
    """Compare what was measured here with what the guide states.

    Args:
        outcomes: one for each rank.
        speedup: of the ranks' step over one process's; None when not measured.
        race: of Keras' `fit` against our loop; None when not measured.

    Returns:
        list: of `case.Finding`, numbers computed.
    """
    first = outcomes[0]
    found = [_areas(first), *_transfer(first), _checkpoint(first), _epochs(first)]
    found += [_keras(race)] if race is not None else []
    found += [_times(net) for net in TIMES]
    found += [_ranks(speedup)] if speedup is not None else []
    return found


def by_chance(better: int, of: int = 14) -> float:
    """Give the probability that one of two equally good nets is ahead in so many findings.

        sum over k >= better of C(of, k) / 2^of

    As if the findings were independent coins. Those of one net on one test are not, which makes
    extreme counts more frequent still.

    Args:
        better: findings in which it is ahead, at least (count).
        of: findings in all (count).

    Returns:
        float: the probability.

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


def honest_times(net: str, nodes: int) -> tuple[float, float]:
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
    again, of = trained_again()
    ours = f"mean AUROC {interval(first.mean)}"
    why = ""
    if first.gains is not None:
        each = first.gains[:-1]
        ahead, told = sum(one.value > 0 for one in each), sum(one.excludes_zero for one in each)
        ours = (
            f"with transfer better than from scratch in {ahead} of {len(each)}; the interval of "
            f"the difference lies on one side of 0 in {told}"
        )
    chance = by_chance(BETTER["ResNet-50"])
    why = (
        "The guide gives no intervals, and does not say which patients were tested. "
        f"{BETTER['ResNet-50']} or "
        f"more of 14 fall to one of two equal nets with a probability of {chance:.2f}; CheXNet "
        f"itself, trained anew by others on another split, is above the published one in {again} "
        f"of {of}."
    )
    if not first.made:
        known = {row["finding"]: row["auroc"] for row in published.load("chexnet_auroc")}
        each = [one for one in first.areas if one.name in known]
        ahead = sum(one.value > known[one.name] for one in each)
        told = sum(not one.low <= known[one.name] <= one.high for one in each)
        ours += f"; above CheXNet in {ahead} of {len(each)}, CheXNet outside the interval in {told}"
    else:
        why += " Ours are phantoms: their AUROC says nothing about patients."
    guide = f"better than CheXNet in {BETTER['VGG-16']} (VGG-16), up to {BETTER['ResNet-50']} "
    return Finding("AUROC by finding", guide + "(ResNet-50) of 14", "guide 6.4.5, Figures 27, 28",
                   ours, why)  # fmt: skip


def _transfer(first: Outcome) -> list[Finding]:
    if first.gains is None or first.scratch is None:
        return []
    guide = "pre-training on ImageNet for more than 75 % top-1; nothing without it is shown"
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
                       "Weights from a file, or none, have no rate to go on with.")  # fmt: skip
    rates = first.pretraining.rates
    ours = (
        f"epoch {first.origin.epoch} of {first.pretraining.epochs} at rate "
        f"{first.start_rate:.3g}; the last was at {rates[-1]:.2g}"
    )
    why = (
        "Both rules look at the rate: at the end of a schedule it has fallen "
        f"({max(rates) / max(rates[-1], 1e-12):.0f} times here), so who goes on with it takes "
        "smaller steps. Train with start=last to see what that does."
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


def _keras(race: Race) -> Finding:
    rows = [row for row in published.load("time_to_train") if row["table"] == 13]
    hours = [row["hours"] for row in rows]
    guide = f"TensorFlow {max(hours) / min(hours):.1f} times as fast as Keras (85 s and 18 s)"
    ours = "; ".join(f"{name}: {race.ratio(name)}" for name in race.others)
    why = (
        "Today Keras compiles the same step. What can cost is what surrounds it: a step without "
        "a graph, or radiographs that one thread of Python decodes."
    )
    return Finding("Keras' fit", guide, "guide Table 13", ours, why)


def _times(net: str) -> Finding:
    fair, left = honest_times(net, SMALLER_NODES)
    guide = f"{net} {TIMES[net]} times as fast as DenseNet-121 on one node"
    ours, rest = f"{fair:.0f} times on {SMALLER_NODES} equal nodes", f"{left:.0f}"
    if net == "ResNet-50":  # the text does not say how many nodes these were
        most, least = honest_times(net, NODES)
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
