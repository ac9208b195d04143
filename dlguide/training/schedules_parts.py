"""The kinds of pieces a learning rate's course is made of.

Each says the rate at step t of its T steps. Positions are whole steps until the last division, so
that single precision in Keras gives the same rates as double precision in NumPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dlguide.errors import require, require_known, require_positive
from dlguide.training.schedules_recipe import Recipe
from dlguide.training.schedules_steps import (
    part_left,
    require_epochs,
    require_rate,
    whole_steps,
)

PER = ("step", "epoch")


@dataclass(frozen=True)
class Constant(Recipe):
    """One rate all the time."""

    rate: float
    epochs: float

    def __post_init__(self) -> None:
        require_rate(self.rate, "rate")
        require_epochs(self.epochs, "epochs")

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the rate."""
        return self.rate + 0.0 * np.float64(step)


@dataclass(frozen=True)
class Ramp(Recipe):
    """A straight way from `start` to `end`, at every step or in one stair an epoch."""

    start: float
    end: float
    epochs: float
    per: str

    def __post_init__(self) -> None:
        require_rate(self.start, "start")
        require_rate(self.end, "end")
        require_epochs(self.epochs, "epochs")
        stairs = require_known(self.per, PER, "per") == "epoch"
        must = "be whole where the rate changes once an epoch"
        require(not stairs or self.epochs == int(self.epochs), "epochs", must, self.epochs)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give start + (end - start) t/T, where an epoch's stair counts whole epochs."""
        if self.per == "epoch":
            done = np.float64(step // steps_per_epoch) / self.epochs
        else:
            done = np.float64(step) / self.steps(steps_per_epoch)
        return self.start + (self.end - self.start) * done


@dataclass(frozen=True)
class Polynomial(Recipe):
    """From `start` to `end` as a power of the part that is left."""

    start: float
    end: float
    epochs: float
    power: float

    def __post_init__(self) -> None:
        require_rate(self.start, "start")
        require_rate(self.end, "end")
        require_epochs(self.epochs, "epochs")
        require_positive(self.power, "power")

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give end + (start - end) (1 - t/T)^power."""
        left = part_left(step, self.steps(steps_per_epoch))
        return self.end + (self.start - self.end) * left**self.power


@dataclass(frozen=True)
class Cosine(Recipe):
    """From `start` to `end` along half a wave."""

    start: float
    end: float
    epochs: float

    def __post_init__(self) -> None:
        require_rate(self.start, "start")
        require_rate(self.end, "end")
        require_epochs(self.epochs, "epochs")

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give end + (start - end) (1 + cos(pi t/T)) / 2."""
        # (1 + cos(pi t)) / 2 = sin(pi (1 - t) / 2) ** 2, which keeps its digits near the end.
        left = part_left(step, self.steps(steps_per_epoch))
        wave = np.sin(0.5 * math.pi * left)
        return self.end + (self.start - self.end) * wave * wave


@dataclass(frozen=True)
class Exponential(Recipe):
    """Times `factor` every so many epochs, smoothly or at once."""

    start: float
    factor: float
    every: float
    epochs: float
    staircase: bool

    def __post_init__(self) -> None:
        require_rate(self.start, "start")
        require_positive(self.factor, "factor")
        require_epochs(self.every, "every")
        require_epochs(self.epochs, "epochs")

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give start factor^(t / every)."""
        every = whole_steps(self.every, steps_per_epoch)
        full, rest = np.float64(step // every), np.float64(step % every) / every
        rate = self.start * self.factor**full
        return rate if self.staircase else rate * self.factor**rest


@dataclass(frozen=True)
class StepDecay(Recipe):
    """Times `factor` at each of the epochs `boundaries`."""

    start: float
    boundaries: tuple[float, ...]
    factor: float
    epochs: float

    def __post_init__(self) -> None:
        require_rate(self.start, "start")
        require_positive(self.factor, "factor")
        require_epochs(self.epochs, "epochs")
        for each in self.boundaries:
            require_epochs(each, "boundaries")
        ends = [0.0, *self.boundaries, self.epochs]
        rising = all(a < b for a, b in pairwise(ends))
        must = f"rise and lie between 0 and the {self.epochs:g} epochs"
        require(rising and len(ends) > 2, "boundaries", must, self.boundaries)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give start factor^(number of boundaries passed)."""
        passed = [
            np.float64(step >= whole_steps(each, steps_per_epoch)) for each in self.boundaries
        ]
        return self.start * self.factor ** sum(passed)


@dataclass(frozen=True)
class Triangles(Recipe):
    """Up from `low` to `high` and down again in every cycle."""

    low: float
    high: float
    cycle: float
    epochs: float
    shrink: float

    def __post_init__(self) -> None:
        require_rate(self.low, "low")
        require_rate(self.high, "high")
        require_epochs(self.cycle, "cycle")
        require_epochs(self.epochs, "epochs")
        require_positive(self.shrink, "shrink")
        require(self.low < self.high, "high", f"be above the {self.low:g} of `low`", self.high)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the way from low to high that is done, times shrink^(cycle)."""
        cycle = whole_steps(self.cycle, steps_per_epoch)
        height = 1.0 - np.float64(abs(2 * (step % cycle) - cycle)) / cycle
        shrunk = self.shrink ** np.float64(step // cycle)
        return self.low + (self.high - self.low) * height * shrunk


@dataclass(frozen=True)
class Collapse(Recipe):
    """A recipe until the epoch `until`, then from the rate it has there to 0, as a power."""

    recipe: Recipe
    until: float
    last: float
    power: float

    def __post_init__(self) -> None:
        require_epochs(self.until, "until")
        require_epochs(self.last, "last")
        require_positive(self.power, "power")
        must = f"lie before the end of the recipe at {self.recipe.epochs:g} epochs"
        require(self.until < self.recipe.epochs, "until", must, self.until)

    @property
    def epochs(self) -> float:
        """Both parts (epochs)."""
        return self.until + self.last

    def steps(self, steps_per_epoch: int) -> int:
        """Count the steps of both parts."""
        return sum(whole_steps(each, steps_per_epoch) for each in (self.until, self.last))

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the recipe's rate, and after its end rate(end) (1 - t/T)^power."""
        split = whole_steps(self.until, steps_per_epoch)
        kept = self.recipe.value(np.minimum(step, split), steps_per_epoch)
        last = whole_steps(self.last, steps_per_epoch)
        left = part_left(np.maximum(step - split, 0), last)
        return np.where(step < split, kept, kept * left**self.power)


def recipe_from(config: dict[str, Any]) -> Recipe:
    """Make a recipe of its description.

    Args:
        config: as `Recipe.config` gives it.

    Returns:
        Recipe: equal to the described one.

    Raises:
        ValueError: when the kind is not known.
    """
    kinds = {kind.__name__: kind for kind in Recipe.__subclasses__()}
    given = dict(config)
    kind = kinds[require_known(given.pop("kind", None), kinds, "kind")]
    for name, value in given.items():
        if isinstance(value, dict):
            given[name] = recipe_from(value)
        elif isinstance(value, list):
            given[name] = tuple(value)
    return kind(**given)
