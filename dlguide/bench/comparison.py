"""What the comparison of oneDNN on and off found: a record, its ratios, its summary in words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from dlguide import published
from dlguide.errors import require
from dlguide.measure import Ratio, Timing, ratio


@dataclasses.dataclass(frozen=True)
class Proof:
    """What oneDNN did for one convolution, as its log says.

    Args:
        version: of oneDNN; empty when TensorFlow never called it.
        isa: the instructions it may use, in its words.
        convolutions: convolutions it computed (count).
        products: matrix products it computed (count).
    """

    version: str
    isa: str
    convolutions: int
    products: int


@dataclasses.dataclass(frozen=True)
class Speed:
    """One way to run one mode."""

    mode: str
    onednn: bool
    batch: int
    timing: Timing

    @property
    def images_per_s(self) -> float:
        """In the median step."""
        return self.batch / self.timing.median


@dataclasses.dataclass(frozen=True)
class Comparison:
    """oneDNN on and off, with equal work, on one machine.

    Args:
        machine: its name and processor.
        tensorflow: version.
        net: name of the net.
        batch: images per step (count).
        image: height and width of the images (pixels); None is the net's own.
        threads: computing threads (count).
        on: what the log says with oneDNN switched on.
        off: what it says with oneDNN switched off.
        digest: of the weights, equal on both sides.
        apart: largest relative difference of what both sides computed in their first step.
        speeds: both sides of each mode; one side only where this TensorFlow has no oneDNN.
    """

    machine: str
    tensorflow: str
    net: str
    batch: int
    image: int | None
    threads: int
    on: Proof
    off: Proof
    digest: str
    apart: float
    speeds: tuple[Speed, ...]

    @property
    def has_onednn(self) -> bool:
        """Whether TensorFlow computes convolutions with oneDNN when it is switched on."""
        return self.on.convolutions > 0

    def speed(self, mode: str, onednn: bool) -> Speed:
        """Find one side of one mode.

        Args:
            mode: "train" or "infer", one that was measured.
            onednn: which side.

        Returns:
            Speed: what was measured.

        Raises:
            ValueError: when it was not measured.
        """
        found = {(each.mode, each.onednn): each for each in self.speeds}
        require((mode, onednn) in found, "mode", f"be measured, one of {list(found)}", mode)
        return found[mode, onednn]

    def ratio(self, mode: str) -> Ratio:
        """How many times as fast oneDNN makes it: time without over time with.

        Args:
            mode: "train" or "infer", one that was measured.

        Returns:
            Ratio: median, and the range that the quartiles allow.
        """
        return ratio(self.speed(mode, False).timing, self.speed(mode, True).timing)

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record."""
        return dataclasses.asdict(self)

    def write(self, path: Path) -> None:
        """Write the record as JSON.

        Args:
            path: the file.
        """
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    def summary(self) -> str:
        """Sum up in a few lines: the machine, both sides, the ratio, the deck's numbers."""
        size = "" if self.image is None else f", images of {self.image} x {self.image}"
        head = [
            f"{self.net}, batch {self.batch}{size}, {self.threads} threads; "
            f"TensorFlow {self.tensorflow}",
            self.machine,
        ]
        return "\n".join([*head, *_said_of_library(self), *_said_of_speed(self), *_deck()])


def _said_of_library(found: Comparison) -> list[str]:
    if not found.has_onednn:
        return [
            "This TensorFlow computes no convolution with oneDNN, so there is nothing to switch."
        ]
    lines = [f"oneDNN {found.on.version}, may use: {found.on.isa}"]
    if "AVX-512" not in found.on.isa and "AVX512" not in found.on.isa:
        lines.append("No AVX-512 here: oneDNN's kernels of the widest vectors are not used.")
    if found.off.products:
        lines.append(
            "Switched off, oneDNN still does the matrix products inside Eigen's convolutions: "
            "the baseline is better than that of 2019."
        )
    return lines


def _said_of_speed(found: Comparison) -> list[str]:
    lines = ["mode    oneDNN   images/s   a step (quartiles)"]
    lines += [
        f"{each.mode:7} {('off', 'on')[each.onednn]:6} {each.images_per_s:10.2f}   {each.timing}"
        for each in found.speeds
    ]
    if found.has_onednn:
        lines += [
            f"{mode}: {found.ratio(mode)} times as fast with oneDNN"
            for mode in dict.fromkeys(each.mode for each in found.speeds)
        ]
    return lines


def _deck() -> list[str]:
    """Quote the deck's numbers as printed, and what they make."""
    rows = [row for row in published.load("throughput") if row["table"] == "tf_bench"]
    plain, optimised = (row["images_per_s"] for row in rows)
    return [
        f"The deck, 2019: {plain} and {optimised} images/s (ResNet-50, training, batch 16, on a "
        f"machine it does not name): {optimised / plain:.2f} times; it says 5X."
    ]
