"""Findings of a use case compared with the guide's, as a table."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from dlguide.errors import require

__all__ = ["Finding", "Table", "table"]

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

    def as_dict(self) -> dict[str, str]:
        """Return the texts by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Table:
    """Findings as a table: text if printed, HTML as the last line of a notebook's cell."""

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [_row(HEADS), _row({name: "-" * width for name, width in WIDTHS.items()})]
        lines += ["\n".join([_row(each.as_dict()), ""]) for each in self.findings]
        return "\n".join(lines).rstrip()

    def listed(self, width: int = 78) -> str:
        """Return a paragraph for each finding, for a terminal too narrow for the table."""
        wrap = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="    ").fill
        return "\n\n".join(
            "\n".join(
                [each.what]
                + [wrap(f"{head}: {getattr(each, name)}")
                   for name, head in HEADS.items() if name != "what"]
            )
            for each in self.findings
        )  # fmt: skip

    def fitting(self, columns: int) -> str:
        """Return the table if the terminal has enough columns, else the list."""
        wide = sum(WIDTHS.values()) + 2 * (len(WIDTHS) - 1)
        return str(self) if columns >= wide else self.listed(max(40, columns - 2))

    def _repr_html_(self) -> str:
        style = "text-align: left; vertical-align: top"
        heads = "".join(f'<th style="{style}">{text}</th>' for text in HEADS.values())
        rows = "".join(
            "<tr>"
            + "".join(f'<td style="{style}">{html.escape(getattr(each, name))}</td>'
                      for name in HEADS)
            + "</tr>"
            for each in self.findings
        )  # fmt: skip
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def table(findings: Sequence[Finding]) -> Table:
    """Return findings as a table.

    Raises:
        ValueError: if there is none, or a text of one is empty.
    """
    require(len(findings) > 0, "findings", "name a finding at least", list(findings))
    for each in findings:
        empty = [field.name for field in fields(each) if not getattr(each, field.name).strip()]
        require(not empty, "findings", "have all their texts", f"{each.what!r} without {empty}")
    return Table(tuple(findings))


def _row(texts: dict[str, str]) -> str:
    cells = {name: textwrap.wrap(texts[name], width) for name, width in WIDTHS.items()}
    height = max(1, *(len(lines) for lines in cells.values()))
    rows = [
        "  ".join((cells[name] + [""] * height)[at].ljust(WIDTHS[name]) for name in WIDTHS)
        for at in range(height)
    ]
    return "\n".join(row.rstrip() for row in rows)
