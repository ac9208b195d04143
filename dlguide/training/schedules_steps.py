"""Steps and epochs of a schedule: how they are counted and checked."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from dlguide.errors import require


def whole_steps(epochs: float, steps_per_epoch: int) -> int:
    """Count the steps of some epochs, to the nearest."""
    steps = round(epochs * steps_per_epoch)
    must = f"make each piece of the recipe a step long, {epochs:g} epochs too"
    require(steps >= 1, "steps_per_epoch", must, steps_per_epoch)
    return steps


def part_left(step: Any, steps: int) -> Any:
    """Give the part of a piece that is still to come."""
    # The difference of whole numbers is exact; 1 - step / steps would lose digits near the end.
    return np.float64(steps - step) / steps


def require_rate(value: Any, name: str) -> None:
    """Refuse what cannot be a learning rate."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and 0 <= value < float("inf")
    require(fits, name, "be a finite rate of at least 0", value)


def require_epochs(value: Any, name: str) -> None:
    """Refuse what cannot be a length."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    fits = number and 0 < value < float("inf")
    require(fits, name, "be a number of epochs above 0", value)
