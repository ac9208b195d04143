"""The slides of one executed notebook: title, goals, sections, summary, exercises."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from dlguide.slides import choosing, outputs, prose
from dlguide.slides.stanzas import HEIGHT, WIDTH, Cell, Group, Slide, groups, notes

APART = ("Goals", "Summary", "Exercises")


def heading(notebook: Mapping[str, Any]) -> str:
    """Return the title of a notebook, such as "21 Collectives".

    Args:
        notebook: as nbformat reads it.

    Returns:
        str: the first heading, without Markdown's marks.
    """
    each = groups(notebook)
    return re.sub(r"[`*]", "", each[0].heading) if each else ""


def slides(notebook: Mapping[str, Any], run: str) -> list[Slide]:
    """Choose the slides of an executed notebook.

    Args:
        notebook: as nbformat reads it.
        run: where and when it was executed, one line.

    Returns:
        list[Slide]: title, goals, the sections, summary, exercises.
    """
    each = groups(notebook)
    found = [_title(each[0], run)] if each else []
    for group in each[1:]:
        if group.heading == "Goals":
            found.append(_goals(group))
        elif group.heading == "Summary":
            found.append(_summary(group))
        elif group.section not in APART:
            found += choosing.section(group)
    tasks = [group for group in each if group.section == "Exercises"]
    return [*found, _exercises(tasks)] if tasks else found


def _title(group: Group, run: str) -> Slide:
    told = [item for item in group.items if isinstance(item, prose.Block)]
    lead = prose.shorten(told[0].source, 330) if told else ""
    body = f'<p class="lead">{prose.inline_html(lead)}</p><p class="run">{html.escape(run)}</p>'
    return Slide("title", prose.inline_html(group.heading), body=body, notes=notes(group.items))


def _goals(group: Group) -> Slide:
    listed = [item for item in group.items if getattr(item, "kind", "") == "list"]
    body = prose.to_html(listed[0].source) if listed else ""
    return Slide("goals", "Goals", body=body, notes=notes(group.items))


def _summary(group: Group) -> Slide:
    """What was printed as a list becomes one; a line that goes on is joined to its point."""
    printed = "\n".join(item.left.text for item in group.items if isinstance(item, Cell))
    points: list[str] = []
    for line in printed.splitlines():
        if line.startswith(("- ", "* ")):
            points.append(line[2:].strip())
        elif line.strip() and points:
            points[-1] += " " + line.strip()
    if points and not _shaped(printed):
        items = "".join(f"<li>{html.escape(point)}</li>" for point in points)
        body = f"<ul>{items}</ul>"
    elif printed:
        body = outputs.block_html(printed, "printed", WIDTH, HEIGHT)
    else:
        listed = [item for item in group.items if getattr(item, "kind", "") == "list"]
        body = prose.to_html(listed[0].source) if listed else ""
    return Slide("summary", "Summary", body=body, notes=notes(group.items))


def _shaped(printed: str) -> bool:
    """Whether columns stand below each other, which a list would destroy."""
    return len(re.findall(r"^  +.*\S {3,}\S", printed, re.M)) > 2


def _exercises(tasks: list[Group]) -> Slide:
    names = [group.heading for group in tasks if group.heading != "Exercises"]
    items = "".join(f"<li>{prose.inline_html(name)}</li>" for name in names)
    told = "".join(
        f"<h4>{prose.inline_html(group.heading)}</h4>{notes(group.items)}" for group in tasks
    )
    return Slide("exercises", "Exercises", body=f'<ul class="plain">{items}</ul>', notes=told)
