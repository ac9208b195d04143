"""Search spaces: the range of each parameter, and points drawn from a seed.

A space is a dictionary from a parameter's name to one of four kinds:

    space = {"rate": LogUniform(1e-3, 1.0), "batch": Choice((16, 32, 64)), "width": Integer(8, 64)}

Every kind maps the interval [0, 1) to its values, so a point of any space is a point of a unit
cube: random search and the Parzen estimators of `TPE` work there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from dlguide.errors import require, require_count


@dataclass(frozen=True)
class Uniform:
    """Uniformly distributed numbers from `low` to `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _require_numbers(self.low, self.high)

    def at(self, place: float) -> float:
        """Return low + place (high - low)."""
        return float(self.low + place * (self.high - self.low))

    def place(self, value: float) -> float:
        """Return the place of a value in [0, 1], the inverse of `at`."""
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class LogUniform:
    """Positive numbers whose logarithm is uniform, such as learning rates."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _require_numbers(self.low, self.high)
        require(self.low > 0, "low", "be above 0 on a logarithmic scale", self.low)

    def at(self, place: float) -> float:
        """Return low (high / low) ** place."""
        return float(self.low * (self.high / self.low) ** place)

    def place(self, value: float) -> float:
        """Return the place of a value in [0, 1], the inverse of `at`."""
        return math.log(value / self.low) / math.log(self.high / self.low)


@dataclass(frozen=True)
class Integer:
    """Uniformly distributed integers from `low` to `high`, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            require(whole, name, "be a whole number", value)
        _require_numbers(self.low, self.high)

    def at(self, place: float) -> int:
        """Return the value at a place; each value has an equal part of [0, 1]."""
        return min(int(self.high), int(self.low) + int(place * (self.high - self.low + 1)))

    def place(self, value: int) -> float:
        """Return the middle of the part of [0, 1] that belongs to a value."""
        return (value - self.low + 0.5) / (self.high - self.low + 1)


@dataclass(frozen=True)
class Choice:
    """One of several equally likely values without order, such as names."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        listed = isinstance(self.values, Sequence) and not isinstance(self.values, str)
        require(listed and len(self.values) > 0, "values", "hold at least one value", self.values)
        object.__setattr__(self, "values", tuple(self.values))

    def at(self, place: float) -> Any:
        """Return the value at a place; each value has an equal part of [0, 1]."""
        return self.values[min(len(self.values) - 1, int(place * len(self.values)))]

    def place(self, value: Any) -> float:
        """Return the middle of the part of [0, 1] that belongs to a value."""
        return (self.values.index(value) + 0.5) / len(self.values)


Kind = Uniform | LogUniform | Integer | Choice
Space = Mapping[str, Kind]


def check(space: Space) -> dict[str, Kind]:
    """Return the space as a dictionary; refuse what is none."""
    filled = isinstance(space, Mapping) and len(space) > 0
    require(filled, "space", "be a dictionary with at least one parameter", space)
    for name, kind in space.items():
        require(isinstance(name, str), "space", "have names as its keys", name)
        then = ""
        if isinstance(kind, list | tuple):
            then = f"For one of several values write Choice({tuple(kind)})."
        elif isinstance(kind, Real | str):
            then = "Leave out what does not vary: put it into the objective."
        must = f"have Uniform, LogUniform, Integer or Choice for {name!r}"
        require(isinstance(kind, Kind), "space", must, kind, then)
    return dict(space)


def draw(space: Space, seed: int, number: int) -> dict[str, Any]:
    """Draw the parameters of a trial, which depend only on `seed` and `number`.

    So trial 7 is the same whether 8 or 800 are made, and in whatever order they end.
    """
    places = np.random.default_rng([seed, number]).random(len(space))
    return {name: kind.at(place) for (name, kind), place in zip(space.items(), places, strict=True)}


def grid(space: Space, points: int) -> list[dict[str, Any]]:
    """Return all combinations of equally spaced values, the last parameter varying fastest.

    Numbers take the middles of `points` equal parts of their interval (on their own scale), of
    equal integers one is kept; a `Choice` takes all its values.
    """
    require_count(points, "points")
    middles = [(point + 0.5) / points for point in range(points)]
    values = [
        kind.values if isinstance(kind, Choice) else tuple(dict.fromkeys(map(kind.at, middles)))
        for kind in space.values()
    ]
    return [dict(zip(space, one, strict=True)) for one in itertools.product(*values)]


def _require_numbers(low: Any, high: Any) -> None:
    for name, value in (("low", low), ("high", high)):
        number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        require(number, name, "be a finite number", value)
    require(low < high, "high", f"be above `low`, {low}", high)
