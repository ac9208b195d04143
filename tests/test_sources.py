"""The ledger of the sources, docs/sources.md: complete, and each place that it names exists."""

from __future__ import annotations

import ast
import json
import re
from functools import cache

import pytest

from dlcourse import NOTEBOOKS, ROOT, exercises

PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8")
HEAD = "| source row | where it runs or is taught | what is missing |"
MISSING = re.compile(r"(not taught, because|to come back:|missing:) \S+ \S")
PACKAGES = {"dlguide": ROOT, "dlcourse": NOTEBOOKS}

# What the sources have: rows at least, and the numbers of their figures and tables.
SOURCES = {
    "PRACE guide": (50, 28, 13),
    "Nyholm's thesis": (25, 30, 15),
    "Survey": (17, 8, 5),
    "Workshop of 2019": (29, 0, 0),
    "Tutorial of 2017": (17, 0, 0),
}
LISTS = {
    "The systems": [str(number) for number in range(1, 27)],
    "Findings": [f"A{number}" for number in range(1, 21)],
    "Further concepts and experiments": [f"B{number}" for number in range(1, 38)],
    "Contradictions and traps": [f"C{number}" for number in range(1, 54)],
}


def rows(section: str) -> list[tuple[str, str, str]]:
    """The rows of a section's table: what the source has, places, what is missing."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    table = text.partition(f"{HEAD}\n|---|---|---|\n")[2].partition("\n\n")[0]
    return [split(line) for line in table.splitlines()]


def split(line: str) -> tuple[str, str, str]:
    """The three columns of a line."""
    columns = re.fullmatch(r"\| (.+?) \| (.+?) \| (.+?) \|", line)
    assert columns, f"not a row of three columns: {line}"
    return columns.groups()


@cache
def cells(lesson: str) -> frozenset[str]:
    """The ids of a lesson's cells."""
    found = frozenset()
    for path in NOTEBOOKS.glob(f"{lesson}_*.ipynb"):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        found |= {cell["id"] for cell in notebook["cells"]}
    return found


@cache
def names(module: str) -> frozenset[str] | None:
    """The names that a module's text defines or imports; None where there is no such module."""
    parts = module.split(".")
    path = PACKAGES[parts[0]].joinpath(*parts)
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return None
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return frozenset(found)


def exists(place: str) -> bool:
    """Whether there is such a cell, exercise, file, module or name."""
    if found := re.fullmatch(r"(\d\d)#([\w-]+)", place):
        return found[2] in cells(found[1])
    if found := re.fullmatch(r"(\d\d)-\d+", place):
        return place in exercises.exercises(found[1])
    if re.fullmatch(r"(dlguide|dlcourse)(\.\w+)+", place):
        package, _, name = place.rpartition(".")
        return names(place) is not None or name in (names(package) or ())
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)*", place) is not None and (ROOT / place).is_file()


def faults(row: tuple[str, str, str]) -> list[str]:
    """What is wrong with a row, each with its words and the place."""
    words, where, missing = row
    found = [f"{words}: there is no `{place}`" for place in re.findall(r"`([^`]+)`", where)
             if not exists(place)]  # fmt: skip
    if not re.fullmatch(r"-|`[^`]+`(, `[^`]+`)*", where):
        found.append(f"{words}: places stand in backticks, with commas between: {where}")
    if where == missing == "-":
        found.append(f"{words}: neither a place nor a reason")
    if missing != "-" and not MISSING.match(missing):
        found.append(f"{words}: `not taught, because`, `to come back:` or `missing:` comes first")
    return found


def numbers(kind: str, text: str) -> set[int]:
    """The numbers of figures or tables that a text names: "Figures 2 to 5 and 7"."""
    found: set[int] = set()
    for listed in re.findall(rf"{kind}s? (\d+(?:(?:, | and | to )\d+)*)", text):
        parts = re.split(r"(, | and | to )", listed)
        found.add(int(parts[0]))
        for between, number in zip(parts[1::2], parts[2::2], strict=True):
            first = max(found) + 1 if between == " to " else int(number)
            found |= set(range(first, int(number) + 1))
    return found


@pytest.mark.parametrize("section", [*SOURCES, *LISTS])
def test_each_place_exists_and_each_gap_has_a_reason(section):
    found = [fault for row in rows(section) for fault in faults(row)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_is_complete(source):
    least, figures, tables = SOURCES[source]
    words = [row[0] for row in rows(source)]
    assert len(words) >= least
    assert len(set(words)) == len(words)
    assert numbers("Figure", " ".join(words)) == set(range(1, figures + 1))
    assert numbers("Table", " ".join(words)) == set(range(1, tables + 1))


@pytest.mark.parametrize("section", LISTS)
def test_a_list_is_complete_and_in_order(section):
    words = [row[0].partition(" ") for row in rows(section)]
    assert [number for number, _, _ in words] == LISTS[section]
    assert all(len(about.split()) >= 1 for _, _, about in words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("| A1 x | `21#ring-large-never-written` | - |", "no `21#ring-large-never-written`"),
        ("| A1 x | `21#ring-source`, `12-99` | - |", "no `12-99`"),
        ("| A1 x | `dlguide.training.no_fit` | - |", "no `dlguide.training.no_fit`"),
        ("| A1 x | `data/published` | - |", "no `data/published`"),
        ("| A1 x | lesson 21 | - |", "in backticks"),
        ("| A1 x | - | - |", "neither"),
        ("| A1 x | - | later |", "comes first"),
    ],
)
def test_a_broken_row_is_reported(line, words):
    (fault,) = faults(split(line))
    assert words in fault
    assert fault.startswith("A1 x")
