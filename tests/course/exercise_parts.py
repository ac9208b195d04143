"""What the tests of the exercises share: every answer that is asked for, and its clusters."""

from __future__ import annotations

import copy

import pytest

from dlcourse import exercises
from dlcourse.components import lack
from dlcourse.exercises.compare import same
from dlcourse.exercises.engine import Exercise, NotAnswered, WrongAnswer

WITH_DAAL = ("60-1 part 1", "60-4") if lack("daal4py") else ()  # not on ARM64
ALL = {
    name: part
    for number, parts in exercises.exercises().items()
    for place, part in enumerate(parts)
    if (name := f"{number}{f' part {place}' if len(parts) > 1 else ''}") not in WITH_DAAL
}
ON_RANKS = {name: part for name, part in ALL.items() if part.ranks}
HERE = {name: part for name, part in ALL.items() if not part.ranks}
TENSORFLOW = ("12-3", "41-4")  # which takes longer than all others together
OPEN = {name: part for name, part in ALL.items() if getattr(part, "score", None)}
CLOSED = {
    name: part
    for name, part in HERE.items()
    if name not in OPEN and not name.startswith(TENSORFLOW)
}


def wrong_answers(parts):
    """(part, hint, answer) of each wrong answer, as parameters of a test.

    The letters are left out: their hints are read from the table that a test would compare with.
    """
    return [
        pytest.param(part, hint, answer, id=f"{name}-{place}")
        for name, part in parts.items()
        if isinstance(part, Exercise)
        for place, (hint, answer) in enumerate(part.wrong_answers())
    ]


def also_right(parts):
    """(part, answer) of each other correct answer, as parameters of a test."""
    return [
        pytest.param(part, answer, id=f"{name}-{getattr(answer, '__name__', place)}")
        for name, part in parts.items()
        for place, answer in enumerate(getattr(part, "also_right", ()))
    ]


def assert_hint(part, hint, answer, clusters=None):
    """The answer is wrong, and the hint is its own."""
    with pytest.raises(WrongAnswer) as caught:
        part.judge(answer, clusters)
    assert not isinstance(caught.value, NotAnswered)
    assert str(caught.value).endswith(hint)


def assert_unanswered(part):
    """What the notebook leaves open is not answered yet, and no ranks are started for it."""
    right = part.right_answer()
    empty = (lambda *arguments: ...) if callable(right) else ...
    if isinstance(right, dict):
        empty = dict.fromkeys(right, ...)
    with pytest.raises(NotAnswered):
        part.judge(empty)


def assert_type_is_refused(part):
    """An answer of another type is refused with words, and no ranks are started for it."""
    with pytest.raises(WrongAnswer, match="Expected: a"):
        part.judge(3.5 if callable(part.right_answer()) else object())


def first_mistake(part, ranks):
    """The hint and answer of the first mistake that an exercise shows on so many ranks."""
    view = part.view or list
    for hint, answer in part.wrong_answers():
        cases = [list(inputs) for inputs in part.cases(ranks)]
        right = [view(part.serial(copy.deepcopy(inputs))) for inputs in cases]
        came = [view(answer.mistake(copy.deepcopy(inputs))) for inputs in cases]
        if not all(map(same, came, right, [part.relative] * len(cases))):
            return hint, answer
    raise AssertionError(f"{ranks} ranks hide all mistakes")
