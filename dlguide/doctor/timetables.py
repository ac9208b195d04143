"""Timetables for half a day, one day and two days, and how many minutes a lesson needs.

The minutes are an estimate by rule, from what a notebook holds; nobody has taught it with a watch
in the hand. Only the run time is measured.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlguide import notebooks

WORDS_PER_MINUTE = 200  # prose with formulas in it, read or told
MINUTES_A_CELL = 0.5  # predict, press Shift+Enter, look; its run time comes on top
# By stars, one of each; the others are for the quick and for home.
EXERCISE_MINUTES = {1: 3, 2: 6}
STEP_MINUTES = 5  # all is rounded up to this
_STARS = re.compile(r"^### [^\n]*?(★+)", re.M)
RULE = (
    f"words / {WORDS_PER_MINUTE} + {MINUTES_A_CELL:g} for each cell with code + "
    f"{EXERCISE_MINUTES[1]} for an exercise of ★ + {EXERCISE_MINUTES[2]} for one of ★★ "
    f"(the others for the quick, and for home) + the run time, rounded up to {STEP_MINUTES}"
)


@dataclass(frozen=True)
class Session:
    """What is done between two breaks.

    Args:
        title: what it is about.
        minutes: how long it lasts (min).
        lessons: numbers of notebooks, in order.
        deck: the part whose slides open it; empty for none.
        talk: minutes for that, and for welcome or farewell (min).
        then: the break after it (min).
    """

    title: str
    minutes: int
    lessons: tuple[str, ...]
    deck: str = ""
    talk: int = 0
    then: int = 0


HALF_DAY = (
    Session("Ranks", 100, ("00", "01"), "", 10, 20),
    Session("Data parallelism", 120, ("20", "51"), "parallelism", 10),
)
ONE_DAY = (
    Session("Ranks", 100, ("00", "01"), "", 10, 15),
    Session("Data parallelism", 115, ("20", "51"), "parallelism", 10, 60),
    Session("What slows it down", 105, ("31", "41"), "hardware", 10, 15),
    Session("How far it goes", 70, ("70",), "scaling", 10),
)
TWO_DAYS = (
    Session("Ranks", 100, ("00", "01"), "", 10, 15),
    Session("Data parallelism", 115, ("20", "51"), "parallelism", 10, 60),
    Session("Fewer bytes, larger batches", 110, ("24", "25"), "", 10, 15),
    Session("What goes wrong", 65, ("26",), "", 10),
    Session("The machine", 105, ("30", "31"), "hardware", 10, 15),
    Session("Data on its way", 115, ("41", "42"), "io", 10, 60),
    Session("How far it goes", 115, ("70", "72"), "scaling", 10, 15),
    Session("A case, and your own code", 80, ("81",), "usecases", 10),
)
PLANS: Mapping[str, tuple[Session, ...]] = {
    "half a day": HALF_DAY,
    "one day": ONE_DAY,
    "two days": TWO_DAYS,
}
DAY_BEGINS = {"two days": (0, 4)}  # sessions with which a day begins; elsewhere the first


def lesson(number: str, folder: str | os.PathLike[str] | None = None) -> Path:
    """Find a lesson by its number.

    Args:
        number: two digits.
        folder: where the notebooks lie; None takes those of the repository.

    Returns:
        Path: the notebook; its answers are not meant.

    Raises:
        ValueError: when there is none.
    """
    chosen = notebooks.choose([number], folder)
    return next(path for path in chosen if not notebooks.is_answers(path))


def minutes(path: str | os.PathLike[str], run_s: float) -> int:
    """Estimate how long a lesson takes in class, by RULE.

    Args:
        path: the notebook.
        run_s: how long its cells run (s).

    Returns:
        int: minutes, with the exercises that are done in class.
    """
    cells = json.loads(Path(path).read_text(encoding="utf-8"))["cells"]
    prose = [_text(cell) for cell in cells if cell["cell_type"] == "markdown"]
    code = sum(cell["cell_type"] == "code" for cell in cells)
    stars = {len(found) for text in prose for found in _STARS.findall(text)}
    total = sum(len(text.split()) for text in prose) / WORDS_PER_MINUTE
    total += MINUTES_A_CELL * code + run_s / 60
    total += sum(EXERCISE_MINUTES.get(count, 0) for count in stars)
    return STEP_MINUTES * math.ceil(total / STEP_MINUTES)


def _text(cell: Mapping) -> str:
    return "".join(cell["source"])


def needed(session: Session, run_s: Mapping[str, float]) -> int:
    """Add up what a session needs.

    Args:
        session: one of a plan.
        run_s: run time of each of its lessons, by number (s).

    Returns:
        int: minutes, its talk included.
    """
    return session.talk + sum(minutes(lesson(each), run_s[each]) for each in session.lessons)


def fit(plan: str, run_s: Mapping[str, float | None]) -> tuple[str, list[str]]:
    """Hold a plan against the run times of a machine.

    Args:
        plan: one of PLANS.
        run_s: run time of lessons, by number (s); None where a lesson does not run.

    Returns:
        tuple: "fits", "does not fit" or "unknown", and the reasons.
    """
    sessions = PLANS[plan]
    numbers = [number for session in sessions for number in session.lessons]
    broken = [number for number in numbers if number in run_s and run_s[number] is None]
    open_ = [number for number in numbers if number not in run_s]
    late = []
    for session in sessions:
        known = {each: run_s.get(each) for each in session.lessons}
        if any(value is None for value in known.values()):
            continue
        takes = needed(session, {each: value or 0.0 for each, value in known.items()})
        if takes > session.minutes:
            late.append(f"{session.title} needs {takes} of {session.minutes} min")
    why = [f"{number} does not run" for number in broken] + late
    if why:
        return "does not fit", why
    return ("unknown", [f"not tried: {', '.join(open_)}"]) if open_ else ("fits", [])
