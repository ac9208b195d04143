"""The two lanes of the tests: `make test` runs what is not marked `long`, `make test-all` the rest.

A test on ranks runs on 2 and 3 ranks in the fast lane, on one of them where it trains whole nets.
One rank and four or five are in the long lane, unless an algorithm branches there.
"""

from __future__ import annotations

from typing import Any

import pytest


def long(*values: Any) -> list[Any]:
    """Parameters that only the long lane runs; a tuple holds those of one case."""
    rows = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*row, marks=pytest.mark.long) for row in rows]


RANKS = [2, 3, *long(1, 4)]
TRAINED = [2, *long(1, 3, 4)]
