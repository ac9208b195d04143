"""The prose of a notebook: taken apart into blocks and sentences, and turned into HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import dataclass

from dlguide.slides.formulas import mathml

FORMULA = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|\$\$(?P<display>.+?)\$\$|(?<![\\$])\$(?P<inline>[^$\s](?:[^$]*[^$\s])?)\$",
    re.S,
)
# A full stop ends a sentence where a capital, a digit or a mark of its own follows.
END = re.compile(r"""(?<=[.?!])(?P<close>["*)]*)\s+(?=["*(`\ue000A-Z0-9])""")
SHORT = re.compile(r"\b(al|e\.g|i\.e|vs|no|Fig|Eq|Sec|cf|Mr|Dr|St)\.$")
HELD = re.compile("\ue000(\\d+)\ue001")
ITEM = re.compile(r"^(?:[-*+]|\d+[.)])\s+")
PREDICT = re.compile(r"\bPredict\b")


@dataclass(frozen=True)
class Block:
    """A piece of prose between blank lines.

    Args:
        kind: heading, paragraph, list, table, fence, formula or quote.
        source: its Markdown; of a heading the words only.
        level: of a heading, 1 to 6; else 0.
    """

    kind: str
    source: str
    level: int = 0


def blocks(source: str) -> list[Block]:
    """Take the Markdown of a cell apart.

    Args:
        source: the cell's text.

    Returns:
        list[Block]: its pieces, in order.

    >>> [(each.kind, each.source) for each in blocks("## A plan\\n\\nDo it.\\n\\n- one\\n- two")]
    [('heading', 'A plan'), ('paragraph', 'Do it.'), ('list', '- one\\n- two')]
    """
    found: list[Block] = []
    for piece in _pieces(source.strip("\n").split("\n")):
        heading = re.match(r"^(#{1,6})\s+(.*)$", piece)
        if heading:
            found.append(Block("heading", heading[2].strip(), len(heading[1])))
        else:
            found.append(Block(_kind(piece), piece))
    return found


def _pieces(lines: list[str]) -> list[str]:
    """Lines that belong together; a fence keeps its blank lines, a heading is one line."""
    found: list[list[str]] = [[]]
    fence = ""
    for line in lines:
        mark = re.match(r"^\s*(```+|~~~+)", line)
        if fence:
            found[-1].append(line)
            if mark and mark[1].startswith(fence):
                fence = ""
                found.append([])
        elif mark:
            fence = mark[1]
            found.append([line])
        elif not line.strip():
            found.append([])
        elif re.match(r"^#{1,6}\s", line):
            found += [[line], []]
        else:
            found[-1].append(line)
    joined = ["\n".join(each) for each in found if each]
    whole: list[str] = []
    for piece in joined:  # the items of a list may have blank lines between them
        follows = bool(whole) and _kind(whole[-1]) == "list" and not piece.startswith("#")
        if follows and (ITEM.match(piece) or piece.startswith("  ")):
            whole[-1] += "\n\n" + piece
        else:
            whole.append(piece)
    return whole


def _kind(piece: str) -> str:
    if re.match(r"^\s*(```|~~~)", piece):
        return "fence"
    if piece.startswith("$$"):
        return "formula"
    if piece.startswith("|"):
        return "table"
    if piece.startswith(">"):
        return "quote"
    return "list" if ITEM.match(piece) else "paragraph"


def _held(source: str) -> tuple[str, list[re.Match[str]]]:
    """The text with its formulas and code taken out, which nothing must split or emphasise."""
    matches: list[re.Match[str]] = []

    def hold(match: re.Match[str]) -> str:
        matches.append(match)
        return f"\ue000{len(matches) - 1}\ue001"

    return FORMULA.sub(hold, source), matches


def _put_back(text: str, matches: list[re.Match[str]], how: Callable[[re.Match[str]], str]) -> str:
    return HELD.sub(lambda match: how(matches[int(match[1])]), text)


def to_html(source: str) -> str:
    """Turn Markdown into HTML, with its formulas as MathML and its links as plain words.

    A link leads to another notebook, which a slide cannot open.

    Args:
        source: Markdown, as the notebooks write it.

    Returns:
        str: HTML.

    Raises:
        ValueError: when a formula is not in the LaTeX that slides know.
    """
    import mistune

    held, matches = "", []
    for number, part in enumerate(re.split(r"(^```.*?^```\s*$)", source, flags=re.S | re.M)):
        if number % 2:
            held += part
            continue
        text, found = _held(part)
        shift = len(matches)
        held += HELD.sub(lambda match, s=shift: f"\ue000{int(match[1]) + s}\ue001", text)
        matches += found
    markdown = mistune.create_markdown(plugins=["table", "strikethrough"])
    plain = re.sub(r"</?a\b[^>]*>", "", str(markdown(held)))

    def drawn(match: re.Match[str]) -> str:
        if match["code"]:
            ticks = len(match["ticks"])
            return f"<code>{html.escape(match['code'][ticks:-ticks].strip())}</code>"
        return mathml(match["display"] or match["inline"], bool(match["display"]))

    return _put_back(plain, matches, drawn)


def inline_html(source: str) -> str:
    """Turn a line of Markdown into HTML without a paragraph around it.

    Args:
        source: words such as those of a heading.

    Returns:
        str: HTML.
    """
    return re.sub(r"^<p>(.*)</p>$", r"\1", to_html(source).strip(), flags=re.S)


def sentences(source: str) -> list[str]:
    """Split a paragraph into its sentences; no emphasis, formula or code is cut in two.

    Args:
        source: the Markdown of a paragraph.

    Returns:
        list[str]: the sentences, as Markdown on one line each.

    >>> sentences("It is *so*. He et al. say 3.5! **Why?** See `a. B`.")
    ['It is *so*.', 'He et al. say 3.5!', '**Why?**', 'See `a. B`.']
    """
    held, matches = _held(" ".join(source.split()))
    found: list[str] = []
    begin = 0
    for match in END.finditer(held):
        piece = held[begin : match.end("close")]
        whole = piece.count("**") % 2 == 0 and piece.replace("**", "").count("*") % 2 == 0
        opened = piece.count("(") > piece.count(")")
        if whole and not opened and not SHORT.search(piece):
            found.append(piece)
            begin = match.end()
    found += [held[begin:]] if held[begin:] else []
    return [_put_back(each, matches, lambda match: match[0]) for each in found]


def shorten(source: str, most: int) -> str:
    """Take the first sentences of a paragraph, as many as fit; one in any case.

    Args:
        source: the Markdown of a paragraph.
        most: how long it may be (characters).

    Returns:
        str: whole sentences.
    """
    taken = ""
    for sentence in sentences(source):
        longer = f"{taken} {sentence}".strip()
        if taken and len(longer) > most:
            break
        taken = longer
    return taken


def question(source: str, most: int) -> str:
    """Find what a paragraph asks the reader to predict.

    Args:
        source: the Markdown of a paragraph.
        most: how long it may be (characters).

    Returns:
        str: from the sentence with the word "Predict" on, whole sentences; "" where there is none.
    """
    each = sentences(source)
    begin = next((index for index, one in enumerate(each) if PREDICT.search(one)), None)
    if begin is None:
        return ""
    rest = each[begin:]
    # "**Predict.** Which one ...?" is one thought in two sentences.
    if len(rest) > 1 and len(rest[0]) < 30:
        rest[:2] = [f"{rest[0]} {rest[1]}"]
    return shorten(" ".join(rest), most)
