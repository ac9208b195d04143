"""Findings of a use case compared with the guide's, as a table."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

HEADS = {
    "what": "what",
    "guide": "the guide found",
    "ours": "we found",
    "why": "why they differ",
    "source": "source",
}
WIDTHS = {"what": 20, "guide": 24, "ours": 24, "why": 40, "source": 16}


@dataclass(frozen=True)
class Finding:
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


@dataclass(frozen=True)
class Table:
    """Findings as a table: text if printed, HTML as the last line of a notebook's cell."""

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [_row(HEADS), _row({name: "-" * width for name, width in WIDTHS.items()})]
        lines += [_row(asdict(each)) + "\n" for each in self.findings]
        return "\n".join(lines).rstrip()

    def _repr_html_(self) -> str:
        style = 'style="text-align: left; vertical-align: top"'
        rows = [[html.escape(getattr(each, name)) for name in HEADS] for each in self.findings]
        heads = "".join(f"<th {style}>{text}</th>" for text in HEADS.values())
        body = "".join(
            f"<tr>{''.join(f'<td {style}>{text}</td>' for text in row)}</tr>" for row in rows
        )
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def table(findings: Sequence[Finding]) -> Table:
    """Return findings as a table."""
    return Table(tuple(findings))


def _row(texts: Mapping[str, str]) -> str:
    cells = {name: textwrap.wrap(texts[name], width) for name, width in WIDTHS.items()}
    height = max(1, *map(len, cells.values()))
    rows = [
        "  ".join((cells[name] + [""] * height)[at].ljust(WIDTHS[name]) for name in WIDTHS)
        for at in range(height)
    ]
    return "\n".join(row.rstrip() for row in rows)
