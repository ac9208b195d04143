"""Finding: one mistake of a training, and the ranks that agree or do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlguide.training.evidence import Evidence

Ranks = Sequence[Evidence]
LONG = 6  # so many ranks without a gap are named by the first and the last


@dataclass(frozen=True)
class Finding:
    """One mistake: kind (one of `audit.KINDS`), ranks, what, evidence in numbers, how to mend.

    `doubtful` is True where it does harm only sometimes.
    """

    kind: str
    ranks: tuple[int, ...]
    what: str
    evidence: str
    mend: str
    doubtful: bool = False

    def __str__(self) -> str:
        head = "Perhaps" if self.doubtful else "Mistake"
        return (
            f"{head} ({self.kind}, {listed(self.ranks)}): {self.what}\n"
            f"    Evidence: {self.evidence}\n    To mend it: {self.mend}"
        )


def listed(ranks: Sequence[int]) -> str:
    """Name ranks: "rank 1", "ranks 0, 2", a long row of them "ranks 0 to 23"."""
    ranks = list(ranks)
    row = list(range(ranks[0], ranks[0] + len(ranks))) if ranks else []
    if len(ranks) >= LONG and ranks == row:
        return f"ranks {row[0]} to {row[-1]}"
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def groups(everyone: Ranks, value: Callable[[Evidence], Any]) -> dict[Any, tuple[int, ...]]:
    """Sort ranks by a value, the most common one first."""
    found: dict[Any, list[int]] = {}
    for one in everyone:
        found.setdefault(value(one), []).append(one.rank)
    order = sorted(found.items(), key=lambda item: (-len(item[1]), item[1]))
    return {key: tuple(ranks) for key, ranks in order}
