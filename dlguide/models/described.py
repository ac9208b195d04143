"""What a net of the course is before it is built: its task, its sizes, what they may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any

from dlguide.errors import require, require_count

Size = int | float


@dataclass(frozen=True)
class Described:
    """What a net does and how large it is unless the caller says otherwise.

    `task` is what it is trained for; `sizes` are what the caller may choose, each with its usual
    value; `inputs` names those that make the shape of one sample, or gives a fixed number;
    `least` has the smallest value of a size where that is not 1; `dropout` is the net's own
    share, None where the net has no dropout at all.
    """

    task: str
    sizes: Mapping[str, Size]
    inputs: tuple[str | int, ...]
    least: Mapping[str, int] = field(default_factory=dict)
    dropout: float | None = None

    def resolve(self, name: str, given: Mapping[str, Any]) -> dict[str, Size]:
        """Complete the sizes that a caller gave by the net's own, and check them."""
        chosen = dict(self.sizes)
        for size, value in given.items():
            if value is None:
                continue
            then = f"{name} takes {', '.join(self.sizes)}."
            require(size in self.sizes, size, f"be left out for {name}", value, then)
            if isinstance(self.sizes[size], float):
                number = isinstance(value, Real) and isfinite(value) and value >= 0
                require(number, size, "be a number of at least 0", value)
                chosen[size] = float(value)
            else:
                chosen[size] = require_count(value, size, least=self.least.get(size, 1))
        return chosen

    def sample(self, sizes: Mapping[str, Size]) -> tuple[int, ...]:
        """Give the shape of one sample that the net takes."""
        return tuple(one if isinstance(one, int) else int(sizes[one]) for one in self.inputs)
