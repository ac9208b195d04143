"""Published rows of Nyholm's thesis, and the last batch of its epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlguide import published
from dlguide.errors import require, require_count, require_known


def published_row(columns: Mapping[str, Any], name: str = "accuracy") -> dict[str, Any]:
    """Find the one row of a published table with these values; texts may be their beginnings."""
    rows = published.load(name)
    for column in columns:
        require_known(column, rows[0], "columns")

    def matches(value: Any, wanted: Any) -> bool:
        both = isinstance(value, str) and isinstance(wanted, str)
        return value.startswith(wanted) if both else str(value) == str(wanted)

    found = [row for row in rows if all(matches(row[c], wanted) for c, wanted in columns.items())]
    then = "Name more columns." if found else "Look at `published.load`."
    must = f"match one row of {name}, {len(found)} match"
    require(len(found) == 1, "columns", must, dict(columns), then)
    return found[0]


def last_batch(samples: int, batch: int, workers: int) -> int:
    """Count the images of one worker in the last step of an epoch."""
    own = -(-require_count(samples, "samples") // require_count(workers, "workers"))
    return (own - 1) % require_count(batch, "batch") + 1
