"""Findings of a use case compared with the guide's, as a table; the files of results."""

from __future__ import annotations

import html
import json
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.files import require_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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

    def fitting(self, columns: int) -> str:
        """Return the table if the terminal has enough columns, else a paragraph per finding."""
        if columns >= sum(WIDTHS.values()) + 2 * (len(WIDTHS) - 1):
            return str(self)
        width = max(40, columns - 2)
        wrap = textwrap.TextWrapper(width, initial_indent="  ", subsequent_indent="    ").fill
        heads = [(name, head) for name, head in HEADS.items() if name != "what"]
        return "\n\n".join(
            "\n".join(
                [each.what, *(wrap(f"{head}: {getattr(each, name)}") for name, head in heads)]
            )
            for each in self.findings
        )

    def _repr_html_(self) -> str:
        style = 'style="text-align: left; vertical-align: top"'
        rows = [[html.escape(getattr(each, name)) for name in HEADS] for each in self.findings]
        heads = "".join(f"<th {style}>{text}</th>" for text in HEADS.values())
        body = "".join(
            f"<tr>{''.join(f'<td {style}>{text}</td>' for text in row)}</tr>" for row in rows
        )
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def table(findings: Sequence[Finding]) -> Table:
    """Return findings as a table; a ValueError if there is none, or a text of one is empty."""
    require(len(findings) > 0, "findings", "name a finding at least", list(findings))
    for each in findings:
        empty = [name for name, text in asdict(each).items() if not text.strip()]
        require(not empty, "findings", "have all their texts", f"{each.what!r} without {empty}")
    return Table(tuple(findings))


def _row(texts: Mapping[str, str]) -> str:
    cells = {name: textwrap.wrap(texts[name], width) for name, width in WIDTHS.items()}
    height = max(1, *map(len, cells.values()))
    rows = [
        "  ".join((cells[name] + [""] * height)[at].ljust(WIDTHS[name]) for name in WIDTHS)
        for at in range(height)
    ]
    return "\n".join(row.rstrip() for row in rows)


def first_of(outcomes: Sequence[Any]) -> Any:
    """Return the first rank's outcome; a ValueError without any."""
    require(len(outcomes) > 0, "outcomes", "hold one for each rank", list(outcomes))
    return outcomes[0]


def write(
    folder: str | os.PathLike, record: Any, figures: Mapping[str, Figure]
) -> tuple[Path, ...]:
    """Write the numbers as `outcome.json` and the figures by their file names; return the paths."""
    folder = Path(folder)
    require_writable(folder, "folder")
    (folder / "outcome.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, figure in figures.items():
        figure.savefig(folder / name)
    return folder / "outcome.json", *(folder / name for name in figures)
