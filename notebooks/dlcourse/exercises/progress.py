"""What one learner has passed, or all learners of a course, by lesson."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlcourse import exercises
from dlcourse.exercises import record
from dlcourse.exercises.record import Tried
from dlguide.errors import require


@dataclass(frozen=True)
class Progress:
    """One lesson of one learner; exercises by their numbers within it.

    Args:
        shown: those of `passed` whose solution was shown before.
        tried: answered, and not correctly so far.
        open: not answered yet.
    """

    lesson: str
    passed: tuple[str, ...]
    shown: tuple[str, ...]
    tried: tuple[str, ...]
    open: tuple[str, ...]


@dataclass(frozen=True)
class Course:
    """All learners of a course.

    Args:
        exercises: lesson -> number of its exercises (count).
        passed: learner -> lesson -> exercises passed (count).
        damaged: files that could not be read, each a sentence.
    """

    exercises: dict[str, int]
    passed: dict[str, dict[str, int]]
    damaged: list[str]


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

    Raises:
        ValueError: when there is no such folder, or no record in it.
    """
    place = Path(folder)
    require(place.is_dir(), "folder", "be a folder", str(folder))
    files = [*sorted(place.glob("*.json")), *sorted(place.glob("*/progress.json"))]
    then = "Each learner writes one with `dlguide progress --export NAME.json`."
    require(bool(files), "folder", "hold records of learners", str(folder), then)
    known = {lesson: len(numbers) for lesson, numbers in _numbers().items()}
    every = set(exercises.exercises())
    learners: dict[str, dict[str, int]] = {}
    damaged = []
    for file in files:
        try:
            held = record.read(file)
        except (ValueError, OSError) as error:
            damaged.append(str(error))
            continue
        name = held.learner or (file.parent.name if file.name == "progress.json" else file.stem)
        name = f"{name} ({file.relative_to(place)})" if name in learners else name
        passed = [
            one for one, each in held.exercises.items() if each.passed_unix_s and one in every
        ]
        count = Counter(number.partition("-")[0] for number in passed)
        learners[name] = {lesson: count[lesson] for lesson in known}
    return Course(known, learners, damaged)
