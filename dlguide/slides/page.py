"""A deck as one HTML file that asks for nothing else: no server, no network, no second file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from dlguide.slides.stanzas import Slide

HERE = Path(__file__).resolve().parent
# Were something still to ask for a file, the browser would refuse it.
NOTHING_ELSE = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)
KEYS = "Arrow keys and Space turn pages · N notes · S speaker's window · F full screen"


def deck(title: str, lessons: Sequence[tuple[str, Sequence[Slide]]], told: Sequence[str]) -> str:
    """Write a deck: a first page with its lessons, then the pages of each.

    Args:
        title: of the part.
        lessons: (heading, slides) of each notebook.
        told: lines below the list, such as what is left out.

    Returns:
        str: the file's text.
    """
    first, items = 2, []
    for heading, slides in lessons:
        items.append(f'<li><a href="#{first}">{html.escape(heading)}</a></li>')
        first += len(slides)
    lines = "".join(f'<p class="run">{html.escape(line)}</p>' for line in (*told, KEYS))
    cover = Slide(
        "deck", html.escape(title), body=f'<ul class="plain">{"".join(items)}</ul>{lines}'
    )
    pages = [("", cover), *((heading, slide) for heading, slides in lessons for slide in slides)]
    body = "\n".join(
        _page(number, len(pages), heading, slide)
        for number, (heading, slide) in enumerate(pages, 1)
    )
    css, script = (HERE / name for name in ("deck.css", "deck.js"))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{NOTHING_ELSE}">
<title>{html.escape(title)}</title>
<style>
{css.read_text(encoding="utf-8")}</style>
</head>
<body>
{body}
<aside class="notes" id="notes"></aside>
<div id="clock"></div>
<script>
{script.read_text(encoding="utf-8")}</script>
</body>
</html>
"""


def _page(number: int, pages: int, lesson: str, slide: Slide) -> str:
    """One page; where something is asked, the answer comes with the next key."""
    later = " later" if slide.question else ""
    over = f'<p class="over">{slide.over}</p>' if slide.over else ""
    asked = f'<p class="question">{slide.question}</p>' if slide.question else ""
    found = f'<div class="finding{later}">{slide.finding}</div>' if slide.finding else ""
    return f"""<section class="slide {slide.kind}" id="page-{number}">
{over}<h2>{slide.headline}</h2>
{asked}<div class="both">
<div class="body{later}">{slide.body}</div>
{found}</div>
<footer><span>{html.escape(lesson)}</span><span>{number} / {pages}</span></footer>
<aside class="notes">{slide.notes}</aside>
</section>"""
