"""Ranks against one process: a use case's step measured, and predicted from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dlguide.bench.scaling import from_parts
from dlguide.cluster import Cluster
from dlguide.errors import require_count, require_positive
from dlguide.machine import describe, threads
from dlguide.measure import Ratio, Timing, ratio
from dlguide.scaling import step as steps_of
from dlguide.training import step_breakdown


@dataclass(frozen=True)
class Speedup:
    """One training step on p ranks against the same step of one process.

    Both take the same samples in all: each rank its slice of what the process takes. That they
    make the same update of the weights is measured first, in `difference`. Only batch
    normalisation may change it, because each rank normalises over its own slice; then `same` is
    False.
    """

    name: str
    ranks: int
    threads: int
    batch: int
    nbytes: int
    difference: float
    alone: Timing
    step: Timing
    predicted: steps_of.StepTime
    wide: Timing | None = None
    wide_threads: int = 0
    equal: float | None = None

    @property
    def same(self) -> bool:
        """Whether ranks and process make the same update of the weights."""
        return self.equal is None

    @property
    def speedup(self) -> float:
        """Of the ranks over one process with the threads of one rank, medians."""
        return self.range.median

    @property
    def range(self) -> Ratio:
        """The speed-up with what its quartiles allow."""
        return ratio(self.alone, self.step)

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

    @property
    def over_wide(self) -> Ratio | None:
        """Speed-up over one process that has all the cores; None when not measured."""
        return None if self.wide is None else ratio(self.wide, self.step)

    @property
    def samples_per_s(self) -> float:
        """Samples of all ranks per second (1/s)."""
        return self.ranks * self.batch / self.step.median

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        p, each = self.ranks, f"{self.threads} thread{'s'[: self.threads != 1]}"
        apart = f"updates differ by {100 * self.difference:.1g} %"
        lines = [
            f"{self.name}, {p * self.batch} samples a step, {1e-6 * self.nbytes:.3g} MB of "
            f"gradients ({apart})"
        ]
        if self.equal is not None:
            lines.append(
                "  not the same update: each rank normalises over its own samples (with equal "
                f"samples on all they differ by {100 * self.equal:.1g} %)"
            )
        lines.append(f"  1 process, {each}:  {self.alone}")
        if self.wide is not None:
            lines.append(f"  1 process, {self.wide_threads} threads: {self.wide}")
        lines += [
            f"  {p} ranks of {each}:  {self.step}",
            f"  predicted from parts: {self.predicted}",
            "    measured: the ranks' computing side by side, with what sharing the machine costs; "
            "the exchange alone",
            "    predicted: that a step is their sum, nothing of the exchange hidden",
            f"  speed-up {self.range}, predicted {self.predicted_speedup:.2f}: "
            f"{100 * (self.ratio - 1):+.0f} % in time",
        ]
        if self.wide is not None:
            lines.append(f"  speed-up over one process with all cores: {self.over_wide}")
        return "\n".join(lines)


def measure(
    step: step_breakdown.TimedStep,
    ranks: int = 2,
    cluster: Cluster | None = None,
    seconds: float = 20.0,
    steps: int = 2,
    rounds: int = 60,
    wide: bool = False,
    seed: int = 0,
    oversubscribe: bool = False,
) -> Speedup:
    """Measure a step on ranks and by one process, and predict the ranks' step from its parts.

    First the ranks are checked to do the work of the process (`step_breakdown.equal_work`). Then
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
        ranks: p; not used with a cluster.
        cluster: running ranks; None starts and stops them.
        seconds: approximate time of the rounds, of which there are always a few (s); starting
            ranks, the check of equal work and tracing come before, and `wide` adds two starts
            and two times an eighth.
        steps: measured calls of a part in each round.
        rounds: maximum number of turns.
        wide: whether to measure one process with a thread per core too, half before the ranks and
            half after them; this restarts a notebook's cluster.
        seed: of the samples.
        oversubscribe: allow more ranks than cores.

    Raises:
        ValueError: if a count is not positive.
        RankError: if a rank fails or the ranks do not do the work of one process.
    """
    for name, value in (("ranks", ranks), ("steps", steps), ("rounds", rounds)):
        require_count(value, name)
    require_positive(seconds, "seconds")
    p = ranks if cluster is None else cluster.ranks
    order = (p * step.batch_per_rank, steps, rounds, seed)
    wide_s: list[float] = []
    all_cores = threads.plan(describe(), 1)

    def one_process() -> None:
        with Cluster(all_cores, magics=False) as single:
            wide_s.extend(single.run(step_breakdown.measure_alone, step, *order, seconds / 8)[0])

    if wide:
        one_process()
    started = cluster is None
    ready = Cluster(ranks=p, oversubscribe=oversubscribe, magics=False) if started else cluster
    with ready if started else nullcontext():
        found = ready.run(step_breakdown.measure_parts, step, *order, seconds=seconds)
        each = ready.plan.threads
    if wide:
        one_process()
    return _speedup(step, p, each, found, wide_s, all_cores.threads)


def _speedup(
    step: step_breakdown.TimedStep, ranks: int, each: int, found: Sequence[dict[str, Any]],
    wide_s: Sequence[float], wide_threads: int,
) -> Speedup:  # fmt: skip
    return Speedup(
        name=step.name,
        ranks=ranks,
        threads=each,
        batch=step.batch_per_rank,
        nbytes=found[0]["nbytes"],
        difference=found[0]["work"][0],
        alone=Timing(tuple(found[0]["alone"])),
        step=Timing(tuple(np.max([rank["step"] for rank in found], axis=0).tolist())),
        predicted=from_parts(found),
        wide=Timing(tuple(wide_s)) if wide_s else None,
        wide_threads=wide_threads if wide_s else 0,
        equal=found[0]["work"][1],
    )
