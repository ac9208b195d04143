"""`dlguide progress`: which exercises a learner has passed, or all learners of a course."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dlguide.checks import require
from dlguide.cli.app import app


@app.command()
def progress(
    folder: Annotated[
        Path | None, typer.Argument(help="Files of several learners, for the instructor.")
    ] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write your own into a file for the instructor.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="With --export: your name in the table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what you have passed, by notebook; with a folder, each learner of a course."""
    from dlguide.exercises import record, standing

    both = folder is not None and export is not None
    require(not both, "export", "be without a folder", str(export), "Give one of the two.")
    require(name is None or export is not None, "name", "come with --export", name)
    if folder is not None:
        _course(folder, as_json)
        return
    if export is not None:
        _export(export, name or getpass.getuser())
        return
    rows = standing.by_notebook(record.load())
    if as_json:
        print(json.dumps([vars(row) for row in rows], indent=1))
        return
    print(_table(_HEADINGS, [_cells(row) for row in rows]))
    done, there = sum(len(row.passed) for row in rows), sum(row.exercises for row in rows)
    print(f"{done} of {there} exercises passed. Kept in {record.path()}")
    if any(row.shown for row in rows):
        print("* after its solution was shown")


def _export(file: Path, learner: str) -> None:
    from dlguide.exercises import record
    from dlguide.folders import require_writable

    require(not file.is_dir(), "export", "be a file", str(file), "Such as ada.json.")
    require_writable(file.resolve().parent, "export")
    record.export(file, learner)
    print(f"Written as {learner}: {file}")


def _course(folder: Path, as_json: bool) -> None:
    from dlguide.exercises import standing

    course = standing.course(folder)
    if as_json:
        print(json.dumps(vars(course), indent=1))
    else:
        learners = sorted(course.passed.items())
        begun = [book for book in course.exercises if any(books[book] for _, books in learners)]
        body = [
            [who, *(f"{books[book]}/{course.exercises[book]}" for book in begun), _all(books)]
            for who, books in learners
        ]
        print(_table(["learner", *begun, "all"], body))
        print(f"{len(body)} learners; notebooks in which nobody has passed any are left out.")
        for word in course.damaged:
            print(f"left out: {word}")
    if course.damaged:
        raise typer.Exit(1)


_HEADINGS = ("notebook", "passed", "tried, not passed", "open")


def _cells(row: Any) -> list[str]:
    marks = [f"{one}*" if one in row.shown else one for one in row.passed]
    return [row.notebook, " ".join(marks), " ".join(row.tried), " ".join(row.open)]


def _all(books: dict[str, int]) -> str:
    return str(sum(books.values()))


def _table(headings: Any, body: list[list[str]]) -> str:
    """Lay out texts in columns, the first two spaces apart from the next."""
    rows = [list(headings), *body]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
