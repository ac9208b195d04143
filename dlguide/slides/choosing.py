"""Which parts of a section become slides: one rule for all lessons.

A slide is a figure with the question before it and the finding after it; a heading without a
figure has the numbers of one cell; its first display formula and its tables have a slide each.
What does not fit on a slide stands in its notes, so that nothing of the lesson is lost. Two tags
of a cell overrule this: `slide` wants one, `no-slide` none.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from dlguide.slides import outputs, prose
from dlguide.slides.stanzas import HEIGHT, WIDTH, Cell, Group, Slide, notes

TEXT_MOST = 240  # characters of a question or a finding: three lines
CODE_LINES, PRINTED_LINES, BOTH_LINES, COLUMNS = 14, 14, 18, 104
TABLE_ROWS, TABLE_CHARACTERS = 10, 1900
CAPTION_LINES = 3  # of what a cell printed below its figure
TALL = 1.7  # width / height below which words stand beside a picture, not below
POINTS = 5
RUN_IN = re.compile(r"\*\*[^*]+[.:?!]\*\*")

Item = prose.Block | Cell


def section(group: Group) -> list[Slide]:
    """Choose the slides below one heading; each piece of it is in the notes of exactly one.

    Args:
        group: the heading and what stands below it.

    Returns:
        list[Slide]: at least one, unless nothing stands there.
    """
    items = group.items
    chosen = _chosen(items)
    formula = next((i for i, item in enumerate(items) if _kind(item) == "formula"), None)
    made: list[tuple[int, Slide]] = []
    for index, item in enumerate(items):
        if isinstance(item, Cell) and index in chosen:
            made.append((index, _of_cell(group, index)))
        elif (_kind(item) == "table" and _rows(item) <= TABLE_ROWS) or index == formula:
            made.append((index, _of_block(group, index)))
    if not made:
        points = _points(items)
        made = [(0, _slide(group, "points", points))] if points else []
    # a slide's notes end behind the first words after it, which say what was seen
    ends = [min(index + 2, after) for (index, _), (after, _) in itertools.pairwise(made)]
    begins = [0, *ends]
    ends.append(len(items))
    return [
        Slide(**{**vars(slide), "notes": notes(items[begin:end])})
        for (_, slide), begin, end in zip(made, begins, ends, strict=False)
    ]


def _kind(item: Item) -> str:
    return "" if isinstance(item, Cell) else item.kind


def _rows(item: Item) -> int:
    return item.source.count("\n") - 1


def _slide(group: Group, kind: str, body: str, question: str = "", finding: str = "") -> Slide:
    over = "" if group.heading == group.section else prose.inline_html(group.section)
    headline = prose.inline_html(group.heading)
    asked = prose.inline_html(question) if question else ""
    return Slide(kind, headline, over, asked, body, prose.to_html(finding) if finding else "")


def _chosen(items: list[Item]) -> set[int]:
    """The cells that are shown: all with a figure; where there is none, one with numbers."""
    cells = {
        index: item
        for index, item in enumerate(items)
        if isinstance(item, Cell) and "no-slide" not in item.tags
    }
    wanted = {i for i, cell in cells.items() if cell.left.pictures or "slide" in cell.tags}
    if wanted:
        return wanted
    worth = {
        index: 2 * bool(_question(items, index)) + bool(_finding(items, index))
        for index, cell in cells.items()
        if _fits(cell.left)
    }
    return {max(worth, key=lambda index: (worth[index], -index))} if worth else set()


def _fits(left: outputs.Outputs) -> bool:
    """Whether a page holds the tables of a cell, or where it has none what it printed."""
    if left.tables:
        rows = sum(table.count("<tr") - 1 for table in left.tables)
        characters = len(re.sub(r"<[^>]*>|\s+(?=\s)", "", "".join(left.tables)))
        return rows <= TABLE_ROWS and characters <= TABLE_CHARACTERS
    lines, columns = outputs.size_of(left.text)
    return bool(left.text.strip()) and lines <= PRINTED_LINES and columns <= COLUMNS


# --- what stands around a cell -----------------------------------------------------------------


def _before(items: list[Item], index: int) -> Iterator[prose.Block]:
    """The prose between a cell and the code before it, the nearest first."""
    for item in reversed(items[:index]):
        if isinstance(item, Cell):
            return
        yield item


def _question(items: list[Item], index: int) -> str:
    for block in _before(items, index):
        asked = prose.question(block.source, TEXT_MOST) if block.kind == "paragraph" else ""
        if asked:
            return asked
    return ""


def _finding(items: list[Item], index: int) -> str:
    """The first words after a cell, without those that lead on to the next one."""
    block = items[index + 1] if index + 1 < len(items) else None
    if isinstance(block, prose.Block) and block.kind == "list":
        points = re.split(r"\n(?=[-*+] )", block.source)[:4]
        return "\n".join(f"- {_point(point, TEXT_MOST // 3)}" for point in points)
    # a paragraph that begins with a heading of its own is about something else
    if (
        isinstance(block, prose.Block)
        and block.kind == "paragraph"
        and not RUN_IN.match(block.source)
    ):
        told = itertools.takewhile(_stands_alone, prose.sentences(block.source))
        return prose.shorten(" ".join(told), TEXT_MOST)
    return ""


def _stands_alone(sentence: str) -> bool:
    ends = re.search(r"[.?!][\"*)]*$", sentence)
    return bool(ends) and not prose.PREDICT.search(sentence)


def _point(item: str, most: int) -> str:
    return prose.shorten(prose.ITEM.sub("", item), most)


# --- bodies ------------------------------------------------------------------------------------


def _of_cell(group: Group, index: int) -> Slide:
    cell = group.items[index]
    question, finding = _question(group.items, index), _finding(group.items, index)
    left = cell.left
    if left.pictures:
        pictures = "".join(f'<div class="picture">{each}</div>' for each in left.pictures)
        body = f'<div class="pictures">{pictures}</div>'
        wide = sum(outputs.aspect(each) for each in left.pictures)
        if finding and 0 < wide < TALL:
            return _slide(group, "figure tall", body, question, finding)
        if left.text and outputs.size_of(left.text)[0] <= CAPTION_LINES:
            body += outputs.block_html(left.text, "printed", WIDTH, 90, 17)
        return _slide(group, "figure", body, question, finding)
    if left.tables:
        return _slide(group, "table", "".join(left.tables), question, finding)
    lines, _ = outputs.size_of(left.text)
    code, _ = outputs.size_of(cell.source)
    body = ""
    if not left.text or (code <= CODE_LINES and code + lines <= BOTH_LINES):
        share = HEIGHT * code / (code + lines) if left.text else HEIGHT
        body = outputs.block_html(cell.source, "code", WIDTH, share)
    if left.text:
        share = HEIGHT * lines / (code + lines) if body else HEIGHT
        body += outputs.block_html(left.text, "printed", WIDTH, share)
    return _slide(group, "numbers", body, question, finding)


def _of_block(group: Group, index: int) -> Slide:
    """A formula or a table, with the words before it."""
    block = group.items[index]
    lead = next((each for each in _before(group.items, index) if each.kind == "paragraph"), None)
    told = prose.sentences(lead.source)[-3:] if lead else []
    while len(told) > 1 and len(" ".join(told)) > TEXT_MOST:
        told = told[1:]
    body = prose.to_html(" ".join(told)) + prose.to_html(block.source)
    finding = _finding(group.items, index) if block.kind == "formula" else ""
    return _slide(group, block.kind, body, "", finding)


def _points(items: list[Item]) -> str:
    """The items of the first list, the first words of each paragraph, or all of the only one."""
    blocks = [item for item in items if isinstance(item, prose.Block)]
    listed = next((block for block in blocks if block.kind == "list"), None)
    if listed is not None:
        points = re.split(r"\n+(?=[-*+] |\d+[.)] )", listed.source)
    else:
        points = [block.source for block in blocks if block.kind == "paragraph"]
        points = prose.sentences(points[0]) if len(points) == 1 else points
    told = [f"- {_point(point, TEXT_MOST // 2)}" for point in points[:POINTS]]
    return prose.to_html("\n".join(told)) if told else ""
