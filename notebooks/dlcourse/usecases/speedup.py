"""Ranks against one process: a use case's step measured, and predicted from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlcourse.bench import scaling
from dlguide.cluster import Cluster
from dlguide.measure import Ratio, Timing, ratio
from dlguide.scaling.step import StepTime

STEPS, ROUNDS = 2, 60  # measured calls of a part in a round; the most rounds


@dataclass(frozen=True)
class Speedup:
    """One training step on p ranks against the same step of one process.

    Both take the same samples in all: each rank its slice, a `batch`, of what the process takes.
    That they make the same update of the weights is measured first, in `difference`. Only batch
    normalisation may change it, because each rank normalises over its own slice; then `equal` has
    the difference with equal samples on all ranks. `alone` is one process with the `threads` of
    one rank, and a rank exchanges `nbytes` of gradients.
    """

    name: str
    ranks: int
    threads: int
    batch: int
    nbytes: int
    difference: float
    alone: Timing
    step: Timing
    predicted: StepTime
    equal: float | None = None

    @property
    def range(self) -> Ratio:
        """The speed-up with what its quartiles allow."""
        return ratio(self.alone, self.step)

    @property
    def speedup(self) -> float:
        """Of the ranks over one process with the threads of one rank, medians."""
        return self.range.median

    @property
    def predicted_speedup(self) -> float:
        """The same with the predicted step."""
        return self.alone.median / self.predicted.seconds

    @property
    def ratio(self) -> float:
        """Predicted over measured time of a step."""
        return self.predicted.seconds / self.step.median

    @property
    def efficiency(self) -> float:
        """Speed-up over p."""
        return self.speedup / self.ranks

    @property
    def exchange_share(self) -> float:
        """Share of the predicted step that goes to the exchange."""
        return self.predicted.exposed_s / self.predicted.seconds

    def __str__(self) -> str:
        each = f"{self.threads} thread{'s'[: self.threads != 1]}"
        lines = [
            f"{self.name}, {self.ranks * self.batch} samples a step, {1e-6 * self.nbytes:.3g} MB "
            f"of gradients (updates differ by {100 * self.difference:.1g} %)"
        ]
        if self.equal is not None:
            lines.append(
                "  not the same update: each rank normalises over its own samples (with equal "
                f"samples on all they differ by {100 * self.equal:.1g} %)"
            )
        lines += [
            f"  1 process, {each}:  {self.alone}",
            f"  {self.ranks} ranks of {each}:  {self.step}",
            f"  predicted from parts: {self.predicted}",
            "    measured: the ranks' computing side by side, with what sharing the machine costs; "
            "the exchange alone",
            "    predicted: that a step is their sum, nothing of the exchange hidden",
            f"  speed-up {self.range}, predicted {self.predicted_speedup:.2f}: "
            f"{100 * (self.ratio - 1):+.0f} % in time",
        ]
        return "\n".join(lines)


def measure(step: scaling.TimedStep, cluster: Cluster, seconds: float = 20.0) -> Speedup:
    """Measure a step on ranks and by one process, and predict the ranks' step from its parts.

    First the ranks are checked to do the work of the process (`scaling.equal_work`). Then
    parts and step alternate in rounds, the first call of each turn dropped:

        alone      one process takes the samples of all, the other ranks sleep
        together   each rank takes its slice of them, all at once, without exchange
        update     the optimizer's; with exchange on top in `exchange`
        step       the real one

    The prediction is the median of the slowest rank of `together` plus the exchange. So what ranks
    lose by sharing memory and caches is measured; predicted is that nothing hides the exchange.
    No time of the real step is used. The exchange is measured with all gradients ready at once;
    if the backward pass hides part of it (a free core, several threads), the predicted step is
    too long. Leaves out the input pipeline: the samples are in memory.

    Args:
        step: of a use case's `step(...)`.
        cluster: the ranks.
        seconds: approximate time of the rounds, of which there are always a few (s); the check
            of equal work and tracing come before.
    """
    order = cluster.ranks * step.batch_per_rank, STEPS, ROUNDS
    found = cluster.run(scaling.measure_parts, step, *order, seconds=seconds)
    return joined(step, cluster.ranks, cluster.plan.threads, found)


def joined(
    step: scaling.TimedStep, ranks: int, threads: int, found: Sequence[dict[str, Any]]
) -> Speedup:
    """Join what the ranks have measured."""
    first = found[0]
    slowest = np.max([rank["step"] for rank in found], axis=0)
    difference, equal = first["work"]
    return Speedup(
        step.name, ranks, threads, step.batch_per_rank, first["nbytes"], difference,
        Timing(tuple(first["alone"])), Timing(tuple(slowest.tolist())), scaling.from_parts(found),
        equal,
    )  # fmt: skip
