"""What learners have passed and how far their guesses were off, by lesson; a page for each."""

from __future__ import annotations

import html
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlcourse import exercises, guesses
from dlcourse.exercises import record
from dlcourse.exercises.record import Guess, Record, Tried
from dlguide.errors import require
from dlguide.files import atomic_write

BINS = (1.1, 1.25, 1.5, 2.0, 4.0, math.inf)  # factors by which guesses are off


@dataclass(frozen=True)
class Progress:
    """One lesson of one learner; exercises by their numbers within it."""

    lesson: str
    passed: tuple[str, ...]
    shown: tuple[str, ...]  # those of `passed` whose solution was shown before
    tried: tuple[str, ...]  # answered, and not correctly so far
    open: tuple[str, ...]  # not answered yet


@dataclass(frozen=True)
class Course:
    """All learners of a course."""

    exercises: dict[str, int]  # lesson -> number of its exercises
    passed: dict[str, dict[str, int]]  # learner -> lesson -> exercises passed
    records: dict[str, Record]  # learner -> what is kept of them
    damaged: list[str]  # files that could not be read, each a sentence


def by_lesson(tried: Mapping[str, Tried]) -> list[Progress]:
    """How far a learner is in each lesson."""
    rows = []
    for lesson, numbers in _numbers().items():
        known = {one: tried.get(f"{lesson}-{one}") for one in numbers}
        passed = tuple(one for one, each in known.items() if each and each.passed_unix_s)
        shown = tuple(one for one in passed if known[one].shown)
        failed = tuple(one for one, each in known.items() if each and one not in passed)
        rest = tuple(one for one, each in known.items() if each is None)
        rows.append(Progress(lesson, passed, shown, failed, rest))
    return rows


def _numbers() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number in exercises.exercises():
        lesson, _, one = number.partition("-")
        found.setdefault(lesson, []).append(one)
    return found


def course(folder: str | os.PathLike[str]) -> Course:
    """Read the records of all learners in a folder.

    These are files that `dlguide progress --export` wrote, or copies of the learners' own in
    folders named after them. Two learners of one name are listed with their files.
    """
    place = Path(folder)
    require(place.is_dir(), "folder", "be a folder", str(folder))
    files = [*sorted(place.glob("*.json")), *sorted(place.glob("*/progress.json"))]
    then = "Each learner writes one with `dlguide progress --export NAME.json`."
    require(bool(files), "folder", "hold records of learners", str(folder), then)
    known = {lesson: len(numbers) for lesson, numbers in _numbers().items()}
    every = set(exercises.exercises())
    learners: dict[str, dict[str, int]] = {}
    records, damaged = {}, []
    for file in files:
        try:
            held = record.read(file)
        except (ValueError, OSError) as error:
            damaged.append(str(error))
            continue
        name = held.learner or (file.parent.name if file.name == "progress.json" else file.stem)
        name = f"{name} ({file.relative_to(place)})" if name in learners else name
        records[name] = held
        passed = [
            one for one, each in held.exercises.items() if each.passed_unix_s and one in every
        ]
        count = Counter(number.partition("-")[0] for number in passed)
        learners[name] = {lesson: count[lesson] for lesson in known}
    return Course(known, learners, records, damaged)


def calibration(guessed: Mapping[str, Guess]) -> str:
    """By what factors the measured guesses were off, as a small plot of text; "" without any."""
    by_lesson = guesses.calibration(guessed)
    factors = [factor for each in by_lesson.values() for factor in each]
    if not factors:
        return ""
    lines = [f"{len(factors)} guesses measured, off by a factor of"]
    below = 1.0
    for limit in BINS:
        count = sum(below <= factor < limit for factor in factors)
        count += math.inf in factors and limit == math.inf and factors.count(math.inf)
        name = f"{below:g} to {limit:g}" if limit < math.inf else f"{below:g} or more"
        lines.append(f"  {name:<12} {'█' * count} {count}")
        below = limit
    lines.append(
        "median by lesson: "
        + ", ".join(f"{lesson} {statistics.median(each):.2g}" for lesson, each in by_lesson.items())
    )
    return "\n".join(lines)


def write_page(file: str | os.PathLike[str], learner: str, held: Record) -> None:
    """Write what one learner has passed and guessed as one HTML page, readable without network."""
    with atomic_write(file) as stream:
        stream.write(_page(learner, held))


def write_pages(folder: str | os.PathLike[str], learners: Mapping[str, Record]) -> list[Path]:
    """Write a page for each learner into a folder; return the files."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for learner, held in learners.items():
        stem = re.sub(r"[^\w.-]+", "_", learner).strip("._") or "learner"
        same = sum(file.name.startswith(stem) for file in files)
        files.append(place / f"{stem}{f'-{same + 1}' if same else ''}.html")
        write_page(files[-1], learner, held)
    return files


def _page(learner: str, held: Record) -> str:
    rows = []
    for row in by_lesson(held.exercises):
        cells = (row.lesson, " ".join(row.passed), " ".join(row.tried), " ".join(row.open))
        rows.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    scores = [
        f"<td>{html.escape(number)}</td><td>{each.score:.2f}</td>"
        for number, each in sorted(held.exercises.items())
        if each.score is not None
    ]
    compared = []
    for name, each in sorted(held.guesses.items()):
        points = [("guess", each.guess), ("model", each.model), ("measured", each.measured)]
        drawn = [(label, value) for label, value in points if value is not None]
        spread = (drawn[-1][1],) * 2
        title = f"<td>{html.escape(name)}<br>{html.escape(each.unit)}</td>"
        compared.append(f"{title}<td>{guesses.dots(drawn, spread)}</td>")
    body = [
        f"<h1>{html.escape(learner)}</h1>",
        "<h2>Exercises</h2>",
        _rows(("lesson", "passed", "tried, not passed", "open"), rows),
        "<h2>Open tasks, as shares of the limit</h2>",
        _rows(("exercise", "score"), scores),
        "<h2>Guesses</h2>",
        f"<pre>{html.escape(calibration(held.guesses) or 'No guess has been measured yet.')}</pre>",
        _rows(("guess", ""), compared),
    ]
    style = "body{font:15px sans-serif;margin:2em} td,th{padding:.2em 1em;text-align:left}"
    head = f"<meta charset='utf-8'><title>{html.escape(learner)}</title><style>{style}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{''.join(body)}</body></html>"


def _rows(headings: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
