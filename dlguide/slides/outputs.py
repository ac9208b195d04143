"""What a cell has left behind: its picture, its table, the text that it printed, as HTML."""

from __future__ import annotations

import base64
import html
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SCRIPTS = re.compile(r"<script\b.*?</script>", re.S | re.I)
WIDTH = re.compile(r"""(<img\b[^>]*?)\s(?:width|height)=["']?\d+["']?""")
PICTURE = re.compile(r"<img\b|<svg\b", re.I)


@dataclass(frozen=True)
class Outputs:
    """What one cell printed and showed.

    Args:
        text: what it printed on standard output and ended with, without colours.
        pictures: each figure, as HTML whose data stands in it.
        tables: each table, as HTML.
        error: name and words of what it raised; empty when it raised nothing.
    """

    text: str = ""
    pictures: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    error: str = ""


def of(cell: Mapping[str, Any]) -> Outputs:
    """Read the outputs of an executed cell; errors' standard output of others is left out.

    Args:
        cell: a code cell, as nbformat reads it.

    Returns:
        Outputs: what is fit to be shown.
    """
    texts: list[str] = []
    pictures: list[str] = []
    tables: list[str] = []
    error = ""
    for output in cell.get("outputs", ()):
        kind = output["output_type"]
        if kind == "stream":
            texts += [_joined(output["text"])] if output["name"] == "stdout" else []
        elif kind == "error":
            error = f"{output['ename']}: {output['evalue']}"
        else:
            _sort(output["data"], texts, pictures, tables)
    text = ANSI.sub("", "".join(texts))
    # A carriage return goes back to the beginning of the line: what it overwrites was not seen.
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return Outputs("\n".join(lines).strip("\n"), tuple(pictures), tuple(tables), error)


def _sort(
    data: Mapping[str, Any], texts: list[str], pictures: list[str], tables: list[str]
) -> None:
    """Put the richest form of one output where it belongs; highlighted source is none of them."""
    markup = SCRIPTS.sub("", _joined(data.get("text/html", "")))
    words = html.escape(_joined(data.get("text/plain", "a picture")), quote=True)
    if PICTURE.search(markup):
        pictures.append(WIDTH.sub(r"\1", markup))
    elif "<table" in markup:
        tables.append(markup)
    elif "image/svg+xml" in data:
        svg = base64.b64encode(_joined(data["image/svg+xml"]).encode()).decode()
        pictures.append(f'<img alt="{words}" src="data:image/svg+xml;base64,{svg}"/>')
    elif "image/png" in data:
        png = _joined(data["image/png"]).replace("\n", "")
        pictures.append(f'<img alt="{words}" src="data:image/png;base64,{png}"/>')
    elif "text/plain" in data and not markup:
        texts.append(_joined(data["text/plain"]) + "\n")


def aspect(picture: str) -> float:
    """Read how wide a picture is, in its own heights.

    Args:
        picture: HTML with a PNG in it.

    Returns:
        float: width / height; 0.0 where it holds no PNG.
    """
    match = re.search(r"image/png;base64,([A-Za-z0-9+/]{32})", picture)
    if match is None:
        return 0.0
    # A PNG begins with 16 bytes that are always alike, then width and height.
    width, height = struct.unpack(">II", base64.b64decode(match[1])[16:24])
    return width / height if height else 0.0


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)


def code_html(source: str) -> str:
    """Colour Python by its words.

    Args:
        source: the text of a cell.

    Returns:
        str: spans with Pygments' short classes, without an element around them.
    """
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    return highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip("\n")


def size_of(text: str) -> tuple[int, int]:
    """Count lines, and the characters of the longest one.

    Args:
        text: what stands in letters of equal width.

    Returns:
        tuple: (lines, columns).
    """
    lines = text.split("\n")
    return len(lines), max(len(line) for line in lines)


def block_html(text: str, kind: str, width: float, height: float, largest: float = 23.0) -> str:
    """Set text in letters of equal width, as large as its longest line and its lines allow.

    Args:
        text: code or what was printed.
        kind: "code", which is coloured, or "printed".
        width: of the place (px).
        height: of the place (px).
        largest: size of the letters at most (px).

    Returns:
        str: a `<pre>` with its size.
    """
    lines, columns = size_of(text)
    # A letter of equal width is 0.6 times as wide as high; 24 px are the block's own edges.
    size = min(largest, (width - 24) / (0.61 * columns or 1), (height - 24) / (1.32 * lines))
    inner = code_html(text) if kind == "code" else html.escape(text)
    return f'<pre class="{kind}" style="font-size:{size:.1f}px">{inner}</pre>'
