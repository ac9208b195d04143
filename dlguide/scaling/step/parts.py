"""One step: computing, waiting for the slowest, exchanging, waiting for data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dlguide.errors import require, require_count, require_positive
from dlguide.scaling.costs import slowest

# A backward pass multiplies twice where the forward pass does once: gradients of inputs and of
# weights. So two thirds of the computing lie behind the first gradient.
BACKWARD = 2 / 3


@dataclass(frozen=True)
class Step:
    """What one step of one worker takes, each part that is not hidden behind another.

    Args:
        workers: p (count).
        compute_s: forward, backward, update on this worker (s).
        straggler_s: waiting for the slowest of p (s).
        exposed_s: of the exchange, what is not hidden behind the backward pass (s).
        hidden_s: of the exchange, what is (s): no part of `seconds`.
        input_s: of reading the input, what is not hidden behind the rest (s).
    """

    workers: int
    compute_s: float
    straggler_s: float
    exposed_s: float
    hidden_s: float
    input_s: float

    @property
    def parts(self) -> dict[str, float]:
        """What `seconds` is the sum of: compute, stragglers, exchange, input (s)."""
        return {
            "compute": self.compute_s,
            "stragglers": self.straggler_s,
            "exchange": self.exposed_s,
            "input": self.input_s,
        }

    @property
    def seconds(self) -> float:
        """The whole step (s)."""
        return sum(self.parts.values())

    @property
    def efficiency(self) -> float:
        """Share of the step in which a worker computes: the throughput's efficiency."""
        return self.compute_s / self.seconds

    @property
    def limited_by(self) -> str:
        """The largest part beside computing; "compute" when all are below 1 % of the step."""
        name = max(("stragglers", "exchange", "input"), key=self.parts.__getitem__)
        return name if self.parts[name] >= 0.01 * self.seconds else "compute"

    def images_per_s(self, batch: float) -> float:
        """Give the throughput of all workers.

        Args:
            batch: images of one worker in a step (count).

        Returns:
            float: images/s.
        """
        return self.workers * batch / self.seconds

    def __str__(self) -> str:
        told = ", ".join(f"{name} {1e3 * s:.3g} ms" for name, s in self.parts.items() if s > 0)
        hidden = f" ({1e3 * self.hidden_s:.3g} ms of the exchange hidden)" if self.hidden_s else ""
        return (
            f"{self.workers} workers: {1e3 * self.seconds:.3g} ms a step = {told}{hidden}; "
            f"efficiency {100 * self.efficiency:.0f} %"
        )


def predict(
    compute_s: float,
    exchange_s: float = 0.0,
    workers: int = 1,
    overlap: float = 0.0,
    spread: float = 0.0,
    input_s: float = 0.0,
    prefetched: bool = True,
) -> Step:
    """Predict a synchronous step from its parts.

        hidden     = min(overlap * exchange, 2/3 compute)
        stragglers = spread * compute * slowest(p)
        step       = max(input, compute + stragglers + exchange - hidden)    with prefetching
        step       = input + compute + stragglers + exchange - hidden        without

    Two thirds of computing are the backward pass, behind which alone an exchange can hide.
    Leaves out what computing and exchanging take from each other when the same core does both:
    then overlap is 0; and that workers of one node share its memory's bandwidth: measure
    `compute_s` with all of them busy.

    Args:
        compute_s: one worker's step by itself (s).
        exchange_s: the allreduce or whatever combines the gradients, such as `scaling.costs`
            predicts; for one worker it is taken to be 0 (s).
        workers: p (count).
        overlap: share of the exchange that is sent while gradients are still computed (fraction);
            `exposed` gives it layer by layer.
        spread: standard deviation of a worker's step time over its mean (ratio).
        input_s: time to read one step's samples (s), such as `storage.epoch(...)` over its steps.
        prefetched: whether the next samples are read while a step computes.

    Returns:
        Step: its parts.

    Raises:
        ValueError: when a number is out of range.
    """
    require_positive(compute_s, "compute_s")
    for name, value in (("exchange_s", exchange_s), ("spread", spread), ("input_s", input_s)):
        require(0 <= value < math.inf, name, "be at least 0", value)
    require(0 <= overlap <= 1, "overlap", "lie between 0 and 1", overlap)
    if require_count(workers, "workers") == 1:
        exchange_s = 0.0
    hidden_s = min(overlap * exchange_s, BACKWARD * compute_s)
    straggler_s = spread * compute_s * slowest(workers)
    working_s = compute_s + straggler_s + exchange_s - hidden_s
    waiting_s = max(0.0, input_s - working_s) if prefetched else input_s
    return Step(workers, compute_s, straggler_s, exchange_s - hidden_s, hidden_s, waiting_s)


def roofline_s(flops: float, nbytes: float, flops_per_s: float, bytes_per_s: float) -> float:
    """Predict computing from a roofline: max(flops / peak, bytes / bandwidth).

    A lower bound for one kernel; of a whole net, sum it over layers. `models.count` gives flops
    and bytes, `machine.roofline` both rates.

    Args:
        flops: operations.
        nbytes: moved between memory and cores (bytes).
        flops_per_s: the machine's peak (1/s).
        bytes_per_s: the memory's bandwidth (bytes/s).

    Returns:
        float: time (s).

    Raises:
        ValueError: when a rate is not positive or a number negative.

    Source:
        Williams, Waterman and Patterson, Communications of the ACM 52 (2009), 65-76.

    >>> roofline_s(2e9, 1e9, 1e11, 1e10)
    0.1
    """
    for name, value in (("flops", flops), ("nbytes", nbytes)):
        require(0 <= value < math.inf, name, "be at least 0", value)
    busy_s = flops / require_positive(flops_per_s, "flops_per_s")
    return max(busy_s, nbytes / require_positive(bytes_per_s, "bytes_per_s"))
