"""A learning rate's course in epochs, put together of pieces, and the rate of each step.

A `Recipe` says what the rate is over the epochs, for any number of steps an epoch: the same
recipe serves every batch size. `Recipe.at` fixes the steps and gives a `Schedule`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dlguide.errors import require, require_count
from dlguide.training.schedules_steps import whole_steps


class Recipe(ABC):
    """A learning rate over epochs; `then` and `over` put two together."""

    epochs: float

    @abstractmethod
    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the rate at a step of this piece.

        Args:
            step: whole steps since the piece began, 0 to `steps` (array).
            steps_per_epoch: steps of one epoch (count).

        Returns:
            array: the rates, real numbers of the shape of `step`.
        """

    def steps(self, steps_per_epoch: int) -> int:
        """Count the steps.

        Args:
            steps_per_epoch: steps of one epoch (count).

        Returns:
            int: steps of the whole piece (count).
        """
        return whole_steps(self.epochs, steps_per_epoch)

    def then(self, following: Recipe) -> Recipe:
        """Go on with another recipe, which starts at its own epoch 0 where this one ends.

        Args:
            following: what comes after; a linear decay after a warmup, as the guide has it.

        Returns:
            Recipe: as long as both together.
        """
        return Then(_recipe(self, "recipe"), _recipe(following, "following"))

    def over(self, whole: Recipe) -> Recipe:
        """Take the place of another recipe's first epochs; its own epochs go on being counted.

        Args:
            whole: the recipe of the whole training; a decay at epochs 30, 60 and 80 stays there.

        Returns:
            Recipe: as long as `whole`.

        Raises:
            ValueError: when this one is not shorter.
        """
        return Over(_recipe(self, "recipe"), _recipe(whole, "whole"))

    def beginning(self, epochs: float) -> Recipe:
        """Take the beginning only, for a training that is left there and goes on in other ways."""
        return Beginning(self, epochs)

    def at(self, steps_per_epoch: int, epochs: float | None = None) -> Schedule:
        """Fix the steps of an epoch.

        Args:
            steps_per_epoch: updates of the weights in one epoch: samples / global batch (count).
            epochs: length of the training it is meant for; None where nobody asked (epochs).

        Returns:
            Schedule: the rate of each step.

        Raises:
            ValueError: when the training is longer or shorter than the recipe, or a piece of it
                has not one step.
        """
        fits = epochs is None or math.isclose(epochs, self.epochs)
        then = "Make the recipe as long as the training; a shorter one may end inside a warmup."
        require(fits, "epochs", f"be the {self.epochs:g} of the recipe", epochs, then)
        return Schedule(self, require_count(steps_per_epoch, "steps_per_epoch"))

    def config(self) -> dict[str, Any]:
        """Describe the recipe in plain numbers.

        Returns:
            dict: JSON-able; `schedules.recipe_from` makes the recipe of it again.
        """
        described: dict[str, Any] = {"kind": type(self).__name__}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                described[field.name] = [_plain(one) for one in value]
            else:
                described[field.name] = (
                    value.config() if isinstance(value, Recipe) else _plain(value)
                )
        return described


@dataclass(frozen=True)
class Then(Recipe):
    """One recipe after another."""

    first: Recipe
    second: Recipe

    @property
    def epochs(self) -> float:
        """Both lengths (epochs)."""
        return self.first.epochs + self.second.epochs

    def steps(self, steps_per_epoch: int) -> int:
        """Count the steps of both."""
        return self.first.steps(steps_per_epoch) + self.second.steps(steps_per_epoch)

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the rate of the one whose turn it is."""
        split = self.first.steps(steps_per_epoch)
        before = self.first.value(np.minimum(step, split), steps_per_epoch)
        after = self.second.value(np.maximum(step - split, 0), steps_per_epoch)
        return np.where(step < split, before, after)


@dataclass(frozen=True)
class Over(Recipe):
    """One recipe in the place of another's beginning."""

    first: Recipe
    whole: Recipe

    def __post_init__(self) -> None:
        must = f"be longer than the {self.first.epochs:g} epochs that lead into it"
        then = "Shorten the warmup or train longer."
        require(self.first.epochs < self.whole.epochs, "whole", must, self.whole.epochs, then)

    @property
    def epochs(self) -> float:
        """The length of the whole (epochs)."""
        return self.whole.epochs

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the rate of the one whose turn it is."""
        split = self.first.steps(steps_per_epoch)
        early = self.first.value(np.minimum(step, split), steps_per_epoch)
        late = self.whole.value(step, steps_per_epoch)
        return np.where(step < split, early, late)


@dataclass(frozen=True)
class Beginning(Recipe):
    """The beginning of another recipe."""

    recipe: Recipe
    length: float

    def __post_init__(self) -> None:
        must = f"be above 0 and at most the {self.recipe.epochs:g} epochs of the recipe"
        require(0 < self.length <= self.recipe.epochs, "epochs", must, self.length)

    @property
    def epochs(self) -> float:
        """As long as asked for (epochs)."""
        return self.length

    def value(self, step: Any, steps_per_epoch: int) -> Any:
        """Give the recipe's own rate."""
        return self.recipe.value(step, steps_per_epoch)


@dataclass(frozen=True)
class Schedule:
    """The rate of every step of a training.

    Args:
        recipe: the rate over epochs.
        steps_per_epoch: updates of the weights in one epoch (count).
    """

    recipe: Recipe
    steps_per_epoch: int

    def __post_init__(self) -> None:
        _recipe(self.recipe, "recipe")
        require_count(self.steps_per_epoch, "steps_per_epoch")
        self.rate(0)  # every piece says here when it has not one step

    @property
    def steps(self) -> int:
        """Length (steps)."""
        return self.recipe.steps(self.steps_per_epoch)

    def rate(self, step: Any) -> Any:
        """Give the rate of a step; steps after the end have the rate that it ends with.

        Args:
            step: 0 for the first update; a whole number or an array of them.

        Returns:
            float: the rate, an array for an array.

        Raises:
            ValueError: when a step is negative or not whole.
        """
        places = np.asarray(step)
        whole = np.issubdtype(places.dtype, np.integer)
        fits = whole and (not places.size or bool(places.min() >= 0))
        require(fits, "step", "be whole numbers of at least 0", step)
        inside = np.minimum(places.astype(np.int64), self.steps)
        rates = self.recipe.value(inside, self.steps_per_epoch)
        return float(rates) if places.ndim == 0 else rates

    def rates(self) -> np.ndarray:
        """Give the rates of all steps.

        Returns:
            array: of the length `steps`, float64.
        """
        return self.rate(np.arange(self.steps))


def _plain(value: Any) -> Any:
    """Give numbers of NumPy as Python's, which JSON knows."""
    return value.item() if isinstance(value, np.generic) else value


def _recipe(value: Any, name: str) -> Recipe:
    then = "Make one with `schedules.warmup`, `schedules.cosine` or another of that module."
    require(isinstance(value, Recipe), name, "be a Recipe", value, then)
    return value
