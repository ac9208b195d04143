"""What a training of the case came to, and its files."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dlcourse import pictures
from dlcourse.usecases.chest_xray.auroc import Area, Estimate, interval
from dlcourse.usecases.chest_xray.fitting import Fitted
from dlcourse.usecases.chest_xray.weights import Origin
from dlguide import published


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one rank can tell of a training; the areas are the same on all ranks.

    Args:
        rank: this rank.
        ranks: how many trained (count).
        net: its name.
        data: name of the radiographs.
        made: whether they are phantoms.
        global_batch: radiographs of one step (count).
        seed: of weights and order.
        parameters: trained weights (count).
        radiographs: to train and to test with (counts).
        patients: to train and to test with (counts).
        origin: where the first weights came from; None for a training from scratch.
        start_rate: learning rate at which fine-tuning began.
        scratch_rate: highest rate of the training from scratch; None without one.
        pretraining: what it came to; None where weights were given, or none were wanted.
        tuning: the training on the 14 findings.
        areas: AUROC of each finding, and the mean.
        scratch: AUROC of the same net from scratch, in as many steps; None when not asked for.
        gains: areas minus those from scratch; None without these.
        labels: of the test, zeros and ones, shape (radiographs, 14).
        scores: logits of the test, shape (radiographs, 14).
    """

    rank: int
    ranks: int
    net: str
    data: str
    made: bool
    global_batch: int
    seed: int
    parameters: int
    radiographs: tuple[int, int]
    patients: tuple[int, int]
    origin: Origin | None
    start_rate: float
    scratch_rate: float | None
    pretraining: Fitted | None
    tuning: Fitted
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
        """Give the numbers without the arrays of the test, ready for JSON."""
        plain = ("rank", "ranks", "net", "data", "made", "global_batch", "seed", "parameters")
        told: dict[str, Any] = {name: getattr(self, name) for name in plain}
        told |= {"radiographs": list(self.radiographs), "patients": list(self.patients)}
        told["origin"] = None if self.origin is None else vars(self.origin)
        told |= {"start_rate": self.start_rate, "scratch_rate": self.scratch_rate}
        for name in ("pretraining", "tuning"):
            each = getattr(self, name)
            told[name] = None if each is None else vars(each)
        for name in ("areas", "scratch", "gains"):
            each = getattr(self, name)
            told[name] = None if each is None else [asdict(one) for one in each]
        return told

    def summary(self) -> str:
        """Tell the result in a few lines."""
        lines = [
            f"{self.net} on {self.data}: mean AUROC {interval(self.mean)} over "
            f"{len(self.areas) - 1} findings, {self.radiographs[1]} radiographs of "
            f"{self.patients[1]} patients."
        ]
        if self.origin is not None:
            begun = f"first weights from {Path(self.origin.path).name}"
            lines.append(f"Transfer: {begun}, fine-tuned from a rate of {self.start_rate:.3g}.")
        if self.gains is not None:
            lines.append(
                f"Against as many steps from scratch, at a rate of {self.scratch_rate:.3g}: "
                f"{interval(self.gains[-1], '+')}."
            )
        return "\n".join(lines)


def write(outcomes: Sequence[Outcome], folder: str | os.PathLike) -> tuple[Path, ...]:
    """Write the numbers of all ranks and the pictures of the first.

    Args:
        outcomes: one for each rank.
        folder: where to write; made when it is missing.

    Returns:
        tuple: paths of `outcome.json` and of the pictures.
    """
    folder, first = Path(folder), outcomes[0]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "outcome.json", folder / "auroc.png"]
    paths[0].write_text(json.dumps([one.as_dict() for one in outcomes], indent=1) + "\n")
    known = {row["finding"]: row["auroc"] for row in published.load("chexnet_auroc")}
    # phantoms have nothing to do with the published areas
    drawn = pictures.areas_under_curves(_bars(first), None if first.made else known)
    drawn.savefig(paths[1])
    if first.gains is not None:
        paths.append(folder / "gains.png")
        rows = [one.row for one in first.gains]
        pictures.area_gains({"transfer - scratch": rows}).savefig(paths[-1])
    return tuple(paths)


def _bars(outcome: Outcome) -> dict[str, list[tuple[str, float, float, float]]]:
    told = {"with transfer" if outcome.origin else outcome.net: outcome.areas}
    if outcome.scratch is not None:
        told["from scratch"] = outcome.scratch
    return {name: [one.row for one in areas] for name, areas in told.items()}
