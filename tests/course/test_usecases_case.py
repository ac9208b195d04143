"""Findings as tables: every text is there, nothing is cut, nothing becomes HTML by itself.

Tests dlcourse.usecases.report.
"""

from __future__ import annotations

import re

from dlcourse.usecases import report

LONG = report.Finding(
    "speed-up of 8 GPUs over one",
    "2.8 times, 35 % of 8",
    "guide 6.1, Table 4",
    f"{1.7312:.2f} times on 2 ranks",
    "The nets have 212 M parameters: a step moves 848 MB, which takes longer than computing.",
)
SHORT = report.Finding("a < b", "1", "guide", "2", "chance & noise")


def test_table_as_text_holds_every_word_of_every_finding_in_its_column():
    lines = str(report.table([LONG, SHORT])).splitlines()
    edges = [match.start() for match in re.finditer(r"-+", lines[1])]
    names = list(report.HEADS)
    blank = lines.index("")
    for rows, finding in ((lines[2:blank], LONG), (lines[blank + 1 :], SHORT)):
        for name, begin, end in zip(names, edges, [*edges[1:], None], strict=True):
            text = " ".join(row[begin:end].strip() for row in rows).strip()
            assert text == getattr(finding, name)
    assert max(map(len, lines)) <= sum(report.WIDTHS.values()) + 2 * len(report.WIDTHS)


def test_narrow_terminal_gets_a_list_with_every_word():
    wide = len(str(report.table([LONG])).splitlines()[1])
    assert report.table([LONG]).fitting(wide) == str(report.table([LONG]))
    narrow = report.table([LONG, SHORT]).fitting(wide - 1)
    assert max(map(len, narrow.splitlines())) <= wide - 3
    listed = report.table([LONG, SHORT]).fitting(62)
    assert max(map(len, listed.splitlines())) <= 60
    for finding, block in zip((LONG, SHORT), listed.split("\n\n"), strict=True):
        words = " ".join(block.split())
        for name, head in report.HEADS.items():
            text = getattr(finding, name)
            assert (text if name == "what" else f"{head}: {text}") in words
