"""The workers of a simulation, and what a simulation tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dlguide.errors import require, require_count, require_positive


@dataclass(frozen=True)
class Workers:
    """How long steps take, who is slow, who fails.

    The time of a step follows a gamma distribution: the same each time with `spread` 0, nearly
    normal with a small one, exponential with 1.

    Args:
        count: p, number of workers.
        step_s: mean time to compute one step (s).
        spread: standard deviation of a step's time over its mean (ratio).
        slow: by worker (index) how many times longer its steps take.
        between_failures_s: mean time between two failures of one worker, exponential (s).
        restart_s: from a failure until work goes on (s).

    Raises:
        ValueError: when a number is out of range or a slow worker is none of them.
    """

    count: int
    step_s: float
    spread: float = 0.0
    slow: Mapping[int, float] = field(default_factory=dict)
    between_failures_s: float = math.inf
    restart_s: float = 0.0

    def __post_init__(self) -> None:
        require_count(self.count, "count")
        require_positive(self.step_s, "step_s")
        require(0 <= self.spread < math.inf, "spread", "be at least 0", self.spread)
        require(
            self.between_failures_s > 0,
            "between_failures_s",
            "be positive",
            self.between_failures_s,
        )
        require(0 <= self.restart_s < math.inf, "restart_s", "be at least 0", self.restart_s)
        for worker, factor in self.slow.items():
            known = worker in range(self.count)
            require(known, "slow", f"name workers 0 to {self.count - 1}", worker)
            require_positive(factor, f"slow[{worker}]")

    def steps(self, random: np.random.Generator, many: int = 1) -> np.ndarray:
        """Draw the times of steps.

        Args:
            random: the generator.
            many: steps of each worker that follow each other (count).

        Returns:
            numpy.ndarray: for each worker the sum of its steps, (p,) (s).
        """
        sums = many * self.step_s * self.factors()
        if self.spread:
            shape = many / self.spread**2
            sums = sums * random.gamma(shape, 1 / shape, self.count)
        return sums

    def shared_out(self) -> Workers:
        """Give the workers with shares of the same global batch in proportion to their speeds.

        A worker whose steps take f times longer gets (1/f) / sum(1/f) of the batch in place of
        1/p. In the mean all finish together:

            step = step_s p / sum over workers of 1/f

        which is the harmonic mean of their times, where equal shares take the largest. Leaves out
        what a step costs whatever its batch is, and that samples cannot be cut.

        Source:
            MXNet's static load balancing (survey, 1.5.4).
        """
        each = self.count / float((1 / self.factors()).sum())
        return replace(self, slow=dict.fromkeys(range(self.count), each))

    def factors(self) -> np.ndarray:
        """Return how many times longer each worker's steps take, (p,)."""
        factors = np.ones(self.count)
        for worker, factor in self.slow.items():
            factors[worker] = factor
        return factors


@dataclass(frozen=True)
class Simulated:
    """What a simulated training took.

    Args:
        seconds: from the start to the last update (s).
        updates: changes of the weights (count).
        gradients: gradients that were used in them (count).
        waited: share of all workers' time in which they did not compute (fraction).
        staleness: for each used gradient of asynchronous training the updates since its weights
            were sent; empty where all wait for each other.
        failures: workers that failed and came back (count).
        lost_s: time that failures cost, restarts and repeated work of all included (s of the
            training where all stop, of the worker where the others go on).
    """

    seconds: float
    updates: int
    gradients: int
    waited: float
    staleness: np.ndarray
    failures: int
    lost_s: float

    @property
    def updates_per_s(self) -> float:
        """Changes of the weights a second (1/s)."""
        return self.updates / self.seconds

    @property
    def gradients_per_s(self) -> float:
        """Gradients used a second (1/s); times the batch it is the throughput."""
        return self.gradients / self.seconds
