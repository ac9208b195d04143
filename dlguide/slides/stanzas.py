"""An executed notebook taken apart at its headings, and what becomes of it: slides."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dlguide.slides import outputs, prose

WIDTH, HEIGHT = 1160.0, 420.0  # px of a page for what it shows, between headline and finding


@dataclass(frozen=True)
class Slide:
    """One page.

    Args:
        kind: title, goals, figure, figure tall, numbers, formula, table, points, summary or
            exercises.
        headline: HTML.
        over: the section above the headline, HTML; empty for a section itself.
        question: what to predict, HTML, shown before the rest.
        body: figure, code, table or list, HTML.
        finding: what was seen, HTML.
        notes: for the speaker, HTML.
    """

    kind: str
    headline: str
    over: str = ""
    question: str = ""
    body: str = ""
    finding: str = ""
    notes: str = ""


@dataclass(frozen=True)
class Cell:
    """A code cell that ran: its source, what it left, and its tags."""

    source: str
    left: outputs.Outputs
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Group:
    """A heading, the section it belongs to, and what stands below it up to the next heading."""

    heading: str
    section: str
    items: list[prose.Block | Cell] = field(default_factory=list)


def groups(notebook: Mapping[str, Any]) -> list[Group]:
    """Take an executed notebook apart at its headings of the first three levels.

    Args:
        notebook: as nbformat reads it.

    Returns:
        list[Group]: in order, the title first.
    """
    found: list[Group] = []
    section = ""
    for cell in notebook["cells"]:
        text = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces: list[prose.Block | Cell] = [*prose.blocks(text)]
        elif cell["cell_type"] == "code":
            tags = tuple(cell.get("metadata", {}).get("tags", ()))
            pieces = [Cell(text, outputs.of(cell), tags)]
        else:
            continue
        for piece in pieces:
            if isinstance(piece, prose.Block) and 1 <= piece.level <= 3:
                section = piece.source if piece.level <= 2 else section
                found.append(Group(piece.source, section))
            elif found:
                found[-1].items.append(piece)
    return found


def notes(items: Iterable[prose.Block | Cell]) -> str:
    """Set for the speaker what stands in the notebook: prose, code, and what it printed.

    Args:
        items: pieces of a notebook.

    Returns:
        str: HTML.
    """
    parts = []
    for item in items:
        if isinstance(item, prose.Block):
            parts.append(prose.to_html(item.source))
            continue
        parts.append(f'<pre class="code">{outputs.code_html(item.source)}</pre>')
        if item.left.text:
            parts.append(f'<pre class="printed">{html.escape(item.left.text)}</pre>')
    return "".join(parts)
