"""Where one learner stands, or a whole course: what is passed, tried and open, by notebook."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlguide.checks import require
from dlguide.exercises import record
from dlguide.exercises.record import Tried


@dataclass(frozen=True)
class Standing:
    """One notebook of one learner; exercises by their numbers within it.

    Args:
        notebook: its number.
        passed: answered rightly.
        shown: those of them whose solution the learner had shown before.
        tried: answered, and not rightly so far.
        open: not answered yet.
    """

    notebook: str
    passed: tuple[str, ...]
    shown: tuple[str, ...]
    tried: tuple[str, ...]
    open: tuple[str, ...]

    @property
    def exercises(self) -> int:
        """How many the notebook has (count)."""
        return len(self.passed) + len(self.tried) + len(self.open)


@dataclass(frozen=True)
class Course:
    """All learners of a course.

    Args:
        exercises: for each notebook how many it has (count).
        passed: for each learner, by notebook, how many of them are passed (count).
        damaged: what is wrong with files that could not be read, each a sentence.
    """

    exercises: dict[str, int]
    passed: dict[str, dict[str, int]]
    damaged: list[str]


def there() -> dict[str, tuple[str, ...]]:
    """List the exercises that there are, without loading their checks.

    Returns:
        dict: for each notebook the numbers of its exercises.
    """
    found = {}
    for file in sorted(Path(__file__).parent.glob("nb[0-9][0-9].py")):
        text = file.read_text(encoding="utf-8")
        numbers = re.findall(rf"^def exercise_{file.stem[2:]}_(\d+)\(", text, re.MULTILINE)
        found[file.stem[2:]] = tuple(sorted(numbers, key=int))
    return found


def by_notebook(tried: Mapping[str, Tried]) -> list[Standing]:
    """Sort the exercises of each notebook by how far a learner is.

    Args:
        tried: as `record.load` gives it.

    Returns:
        list: one for each notebook.
    """
    rows = []
    for notebook, numbers in there().items():
        known = {one: tried.get(f"{notebook}-{one}") for one in numbers}
        passed = tuple(one for one, each in known.items() if each and each.passed_unix_s)
        shown = tuple(one for one in passed if known[one].shown)
        rest = tuple(one for one, each in known.items() if each and one not in passed)
        still = tuple(one for one, each in known.items() if each is None)
        rows.append(Standing(notebook, passed, shown, rest, still))
    return rows


def course(folder: str | os.PathLike[str]) -> Course:
    """Read the files of all learners in a folder.

    These are files that `dlguide progress --export` wrote, or copies of the learners' own in
    folders that bear their names. Two files of the same name are told apart by their paths.

    Args:
        folder: with files NAME.json, or NAME/progress.json.

    Returns:
        Course: of all that could be read; what could not is named in it.

    Raises:
        ValueError: when there is no such folder, or no file in it.
    """
    place = Path(folder)
    require(place.is_dir(), "folder", "be a folder", str(folder))
    files = [*sorted(place.glob("*.json")), *sorted(place.glob("*/progress.json"))]
    then = "Each learner writes one with `dlguide progress --export NAME.json`."
    require(bool(files), "folder", "hold files of learners", str(folder), then)
    known = there()
    learners: dict[str, dict[str, int]] = {}
    damaged = []
    for file in files:
        try:
            name, tried = record.read(file)
        except (ValueError, OSError) as error:
            damaged.append(str(error))
            continue
        name = name or (file.parent.name if file.name == "progress.json" else file.stem)
        name = f"{name} ({file.relative_to(place)})" if name in learners else name
        done = [number.partition("-") for number, each in tried.items() if each.passed_unix_s]
        count = Counter(book for book, _, one in done if one in known.get(book, ()))
        learners[name] = {book: count[book] for book in known}
    return Course({book: len(numbers) for book, numbers in known.items()}, learners, damaged)
