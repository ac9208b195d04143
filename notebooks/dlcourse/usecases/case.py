"""What all use cases have in common: findings beside the guide's, and a step to be timed."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from dlguide.errors import require
from dlguide.training.step_breakdown import StepWorker, TimedStep

__all__ = ["Finding", "StepWorker", "Table", "TimedStep", "table"]

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
    """One thing that the guide found and what was found here, in words with their numbers.

    Args:
        what: the thing, such as "speed-up of 8 GPUs".
        guide: what the guide says of it, with the unit.
        source: where: "guide 6.1, Table 4".
        ours: what was measured here; computed, never typed.
        why: why the two differ, or what that says.
    """

    what: str
    guide: str
    source: str
    ours: str
    why: str

    def as_dict(self) -> dict[str, str]:
        """Give the texts by name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Table:
    """Findings as a table: of text when printed, of HTML as the last line of a notebook's cell.

    Args:
        findings: one for each row.
    """

    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        lines = [_row(HEADS), _row({name: "-" * width for name, width in WIDTHS.items()})]
        lines += ["\n".join([_row(each.as_dict()), ""]) for each in self.findings]
        return "\n".join(lines).rstrip()

    def listed(self, width: int = 78) -> str:
        """Write one finding after the other, for a terminal too narrow for the table.

        Args:
            width: of a line (characters).

        Returns:
            str: a paragraph for each finding, headed by what it is about.
        """
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
        """Write the table where there is room for it, and a list where not.

        Args:
            columns: width of the terminal (characters).

        Returns:
            str: one of the two.
        """
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
    """Lay findings out as a table.

    Args:
        findings: at least one.

    Returns:
        Table: print it, or leave it as the last line of a notebook's cell.

    Raises:
        ValueError: when there is none, or a text of one is empty.
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
