"""Worked cases on the ranks of a cluster (lessons 60, 80 to 83), and a table of their findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlcourse.pictures.frameworks import Table, table

HEADS = ("what", "the guide found", "source", "we found", "why they differ")


class Finding(NamedTuple):
    """A finding of the guide and the one measured here, in words with their numbers.

    Args:
        what: its subject, such as "speed-up of 8 GPUs".
        guide: the guide's finding, with the unit.
        source: its place: "guide 6.1, Table 4".
        ours: what was measured here; computed, never typed.
        why: the reason of the difference, or its meaning.
    """

    what: str
    guide: str
    source: str
    ours: str
    why: str


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return findings as a table, for the last line of a notebook's cell."""
    rows = [dict(zip(HEADS, finding, strict=True)) for finding in findings]
    return table(rows, title="What the guide found, and what we found")
