"""Experiments change one factor at a time: the recipe of a training, and an interval over seeds.

baseline = ExperimentConfig(samples=5000, epochs=4, base_rate=0.05)
eight = replace(baseline, virtual_workers=8, rate_scaling="linear")
rates = eight.schedule().to_steps(math.ceil(5000 / eight.global_batch), epochs=4).rates()
low, high = confidence_interval([0.93 - 0.94, 0.92 - 0.94, 0.94 - 0.95])  # seed by seed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlguide.errors import (
    require,
    require_count,
    require_known,
    require_not_negative,
    require_positive,
)
from dlguide.training import schedules
from dlguide.training.schedules import EpochSchedule

__all__ = ["ExperimentConfig", "confidence_interval"]

CONFIDENCE = 0.95
_NAMES = {
    "rate_scaling": schedules.SCALING,
    "decay": ("none", "step", "linear", "polynomial", "cosine"),
}
# These decay over the epochs after the warmup; "none" and "step" count from the beginning.
_AFTER_WARMUP = {
    "linear": schedules.linear,
    "polynomial": schedules.Polynomial,
    "cosine": schedules.Cosine,
}


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """Samples, batch sizes and learning rates of one training of an experiment.

    The global batch is virtual_workers x batch_per_worker. The learning rate that the warmup
    leads up to follows it:

        rate = base_rate f(global batch / base_batch),  f(k) = 1, k or sqrt(k) by `rate_scaling`

    The decays "none" and "step" (a tenth at each of the `boundaries`) count their epochs from the
    beginning of the training, as in Nyholm's thesis; "linear", "polynomial" and "cosine" fall to 0
    over the epochs after the warmup, as in the PRACE best practice guide.

    Args:
        samples: training samples (count); None leaves them open.
        warmup: None, "constant", "stepping" or "gradual", for `warmup_epochs`, rising
            with each "step" or each "epoch" (`per`).

    Raises:
        ValueError: if a value is not allowed, or values do not fit together.

    >>> config = ExperimentConfig(batch_per_worker=32, virtual_workers=32, rate_scaling="linear",
    ...                           base_rate=0.05, base_batch=32)
    >>> config.global_batch, config.rate
    (1024, 1.6)
    """

    samples: int | None = None
    epochs: int = 4
    batch_per_worker: int = 32
    virtual_workers: int = 1
    rate_scaling: str = "none"
    base_rate: float = 0.1
    base_batch: int = 32
    warmup: str | None = None
    warmup_epochs: float = 0.0
    per: str = "step"
    decay: str = "none"
    boundaries: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {"boundaries": tuple(map(float, self.boundaries))}
        for name in ("epochs", "batch_per_worker", "virtual_workers", "base_batch"):
            checked[name] = require_count(getattr(self, name), name)
        if self.samples is not None:
            checked["samples"] = require_count(self.samples, "samples")
        checked["base_rate"] = require_positive(self.base_rate, "base_rate")
        checked["warmup_epochs"] = require_not_negative(self.warmup_epochs, "warmup_epochs")
        for name, value in checked.items():  # plain Python values
            object.__setattr__(self, name, value)
        for name, known in _NAMES.items():
            require_known(getattr(self, name), known, name)
        if self.warmup is not None:
            require_known(self.warmup, schedules.WARMUPS, "warmup")
            must, then = "be more than 0 for a warmup", "Give its length, or `warmup=None`."
            require(self.warmup_epochs > 0, "warmup_epochs", must, self.warmup_epochs, then)
            must = f"be less than the {self.epochs} epochs of the training"
            then = "Shorten the warmup or train longer."
            fits = self.warmup_epochs < self.epochs
            require(fits, "warmup_epochs", must, self.warmup_epochs, then)
        if self.decay == "step":
            must, then = "name the epochs of a step decay", "For example (2, 3) of 4 epochs."
            require(bool(self.boundaries), "boundaries", must, self.boundaries, then)
        if self.samples is not None:
            must = f"give a global batch of at most the {self.samples} samples"
            then = "Use fewer workers or more samples."
            fits = self.global_batch <= self.samples
            require(fits, "batch_per_worker", must, self.global_batch, then)
        self.schedule()

    @property
    def global_batch(self) -> int:
        """Images per step over all workers (count)."""
        return self.virtual_workers * self.batch_per_worker

    @property
    def rate(self) -> float:
        """Learning rate for the global batch, to which a warmup leads up."""
        batches = (self.global_batch, self.base_batch)
        return schedules.scaled(self.base_rate, *batches, self.rate_scaling)

    def schedule(self) -> EpochSchedule:
        """Build the learning-rate schedule of the whole training."""
        length, start = self.warmup_epochs if self.warmup else 0.0, None
        if self.warmup:
            # a stepping warmup has its own formula; one that would not rise stays level
            first = None if self.warmup == "stepping" else min(self.base_rate, self.rate)
            start = schedules.warmup(self.warmup, self.rate, length, first, self.per)
        if self.decay in _AFTER_WARMUP:
            falling = _AFTER_WARMUP[self.decay](self.rate, self.epochs - length)
            return start.then(falling) if start else falling
        if self.decay == "step":
            whole = schedules.StepDecay(self.rate, self.boundaries, self.epochs)
        else:
            whole = schedules.Constant(self.rate, self.epochs)
        return start.over(whole) if start else whole


def confidence_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % confidence interval of the mean of some values, by Student's t.

    Args:
        values: one for each seed, for example paired differences.

    Returns:
        tuple: lower and upper end; None for fewer than 2 values.
    """
    if len(values) < 2:
        return None
    from scipy import stats

    t = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    mean, half = float(np.mean(values)), float(t * stats.sem(values))
    return mean - half, mean + half
