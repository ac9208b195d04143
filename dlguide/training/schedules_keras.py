"""A schedule as Keras takes it: looked up inside the compiled step, and saved."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.training.schedules_parts import recipe_from
from dlguide.training.schedules_recipe import Schedule

if TYPE_CHECKING:
    import keras


def as_keras(schedule: Schedule) -> keras.optimizers.schedules.LearningRateSchedule:
    """Turn a schedule into one that a Keras optimizer asks for the rate of each update.

    The rates are looked up in a table of 4 bytes a step, not computed in the compiled step:
    compilers round such formulas differently in one net and in another, and trainings that
    should be equal to the bit would not be. Keras' SGD keeps the rate inside its velocity, and
    no callback can mend that under such a schedule (`momentum_correction`);
    `optimizers.momentum_sgd` does not need it. Keras counts calls: where an update adds up the
    gradients of k batches, give `Recipe.at` k times as many steps an epoch. A model compiled with
    it opens in another process after `optimizers.register()`.

    Args:
        schedule: the rate of every step.

    Returns:
        keras.optimizers.schedules.LearningRateSchedule: for `learning_rate`.

    Raises:
        ValueError: when it is a recipe, whose steps are not fixed yet, or anything else.
    """
    then = "Fix its steps with `recipe.at(steps_per_epoch)`."
    require(isinstance(schedule, Schedule), "schedule", "be a Schedule", schedule, then)
    return keras_class()(schedule.recipe.config(), schedule.steps_per_epoch)


@cache
def keras_class() -> type:
    """Make and register the class of Keras schedules."""
    import keras

    @keras.saving.register_keras_serializable("dlguide")
    class StepRates(keras.optimizers.schedules.LearningRateSchedule):
        """The rates of a schedule, step by step."""

        def __init__(self, recipe: dict[str, Any], steps_per_epoch: int) -> None:
            self.schedule = Schedule(recipe_from(recipe), steps_per_epoch)
            rates = self.schedule.rate(np.arange(self.schedule.steps + 1))
            self._rates = rates.astype(np.float32)

        def __call__(self, step: Any) -> Any:
            step = keras.ops.minimum(keras.ops.cast(step, "int32"), self.schedule.steps)
            return keras.ops.take(self._rates, step)

        def get_config(self) -> dict[str, Any]:
            recipe = self.schedule.recipe.config()
            return {"recipe": recipe, "steps_per_epoch": self.schedule.steps_per_epoch}

    return StepRates
