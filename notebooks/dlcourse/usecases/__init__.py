"""Worked cases on the ranks of a cluster (lessons 60, 80 to 83), and a table of their findings."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import NamedTuple

from IPython.display import HTML

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


def findings_table(findings: Sequence[Finding]) -> HTML:
    """Return findings as a table, for the last line of a notebook's cell."""
    rows = [
        "".join(f'<{tag} style="text-align: left; vertical-align: top">{text}</{tag}>'
                for text in map(html.escape, row))
        for tag, row in (("th", HEADS), *(("td", finding) for finding in findings))
    ]  # fmt: skip
    return HTML(f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>")
