"""Two versions of a program as one text with marked lines: what had to be changed."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

from dlguide.errors import require_count

GONE, NEW, KEPT, CUT = "-", "+", " ", "…"
# Light enough for black letters; the marks say the same without colour.
_COLOURS = {GONE: "#f9dccb", NEW: "#cfe6f5", KEPT: "transparent", CUT: "transparent"}


@dataclass(frozen=True)
class Difference:
    """Marked lines, shown in colours by a notebook and as plain text by print.

    Args:
        lines: of each line its mark ("-" gone, "+" new, " " kept, "…" some were left out) and its
            text.
    """

    lines: tuple[tuple[str, str], ...]

    def count(self, mark: str) -> int:
        """Count the lines with a mark, those that are empty or only a comment left out.

        Args:
            mark: "-", "+", " " or "…".

        Returns:
            int: number of lines.
        """
        return sum(
            one == mark and bool(text.strip()) and not text.strip().startswith("#")
            for one, text in self.lines
        )

    def __str__(self) -> str:
        return "\n".join(f"{mark} {text}".rstrip() for mark, text in self.lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<div style="background: {_COLOURS[mark]}; padding: 0 0.5em">'
            f"{html.escape(f'{mark} {text}'.rstrip()) or ' '}</div>"
            for mark, text in self.lines
        )
        style = "font-family: monospace; white-space: pre; line-height: 1.35; color: black"
        return f'<div style="{style}; background: white">{rows}</div>'


def difference(before: str, after: str, around: int = 1) -> Difference:
    """Compare two texts line by line.

    Leaves out lines that both have, but for a few around each change.

    Args:
        before: the first text.
        after: the second text.
        around: kept lines that are shown before and after a change (count).

    Returns:
        Difference: the lines that are gone, that are new, and some around them.

    Raises:
        ValueError: when `around` is below 0.

    >>> print(difference("a\\nb\\nc", "a\\nB\\nc"))
      a
    - b
    + B
      c
    """
    require_count(around, "around", least=0)
    old, new = before.splitlines(), after.splitlines()
    found: list[tuple[str, str]] = []
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    for number, (_, i1, i2, j1, j2) in enumerate(blocks):
        same = old[i1:i2] == new[j1:j2]
        if not same:
            found += [*_marked(GONE, old[i1:i2]), *_marked(NEW, new[j1:j2])]
            continue
        first = around if number else 0
        last = around if number < len(blocks) - 1 else 0
        if i2 - i1 <= first + last:
            found += _marked(KEPT, old[i1:i2])
        else:
            found += _marked(KEPT, old[i1 : i1 + first])
            found.append((CUT, ""))
            found += _marked(KEPT, old[i2 - last : i2])
    return Difference(tuple(found))


def _marked(mark: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(mark, line) for line in lines]
