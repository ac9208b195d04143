"""Every lesson has exercises of all kinds, and every exercise has its answers in the tests.

What is asked for is counted in the notebooks, and what is tested in the files
`test_exercises_nbNN.py`: in their tables, and in their test functions, one case for each set of
parameters.
"""

from __future__ import annotations

import importlib
import inspect
import math
import re
from types import ModuleType

import notebook_form as form
import pytest

from dlguide import exercises, notebooks
from dlguide.exercises import standing

LESSONS = {path.name[:2]: path for path in notebooks.find() if not notebooks.is_answers(path)}
HEADING = re.compile(r"^### (\d\d-\d) (.+?) (★{1,3})$", re.M)
ASKED = {f"{lesson}-{one}": lesson for lesson, ones in standing.there().items() for one in ones}
EXPLAINS = re.compile(r"\bexplain|\bwhy\b", re.I)


def text(lesson: str, answers: bool = False, kind: str = "") -> str:
    path = LESSONS[lesson]
    path = path.parent / "answers" / path.name if answers else path
    cells = form.load(path)["cells"]
    return "\n".join(form.source(cell) for cell in cells if kind in ("", cell["cell_type"]))


def exercise_texts(lesson: str) -> dict[str, str]:
    """What a lesson says in each of its exercises, by number; code included."""
    parts = re.split(r"^### (?=\d\d-\d )", text(lesson), flags=re.M)[1:]
    return {part[:4]: part for part in parts}


def test_every_lesson_has_exercises_and_every_exercise_a_lesson():
    assert sorted(standing.there()) == sorted(LESSONS)


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_has_three_to_five_exercises_from_one_star_to_three(lesson):
    found = HEADING.findall(text(lesson, kind="markdown"))
    assert 3 <= len(found) <= 5
    assert [number for number, *_ in found] == [n for n, book in ASKED.items() if book == lesson]
    stars = {each for *_, each in found}
    assert {"★", "★★★"} <= stars, stars


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_asks_for_a_prediction_a_reason_and_ranks(lesson):
    texts = exercise_texts(lesson)
    assert [number for number, each in texts.items() if re.search("predict", each, re.I)]
    assert [number for number, each in texts.items() if EXPLAINS.search(each)]
    if re.search(r"\bCluster\(", text(lesson, kind="code")):
        assert [number for number in texts if on_ranks(number)], "no exercise runs on the ranks"


def on_ranks(number: str) -> bool:
    """Tell whether an exercise runs on ranks: its check takes a cluster, or starts one."""
    function = exercises._find(number)[1]
    return "cluster" in inspect.signature(function).parameters or "ranks" in inspect.getsource(
        function
    )


@pytest.mark.parametrize("lesson", LESSONS)
def test_lesson_and_answers_check_the_same_exercises(lesson):
    mine = {number for number, book in ASKED.items() if book == lesson}
    for answers in (False, True):
        assert set(form.CHECK.findall(text(lesson, answers, "code"))) == mine


def given(number: str) -> ModuleType:
    return importlib.import_module(f"test_exercises_nb{ASKED[number]}")


def functions(number: str) -> list[tuple[str, int]]:
    """Source and cases of the test functions that name an exercise."""
    found = []
    for name, function in vars(given(number)).items():
        if not name.startswith("test_") or f'"{number}"' not in inspect.getsource(function):
            continue
        marks = [mark for mark in getattr(function, "pytestmark", ()) if mark.name == "parametrize"]
        cases = math.prod(len(list(mark.args[1])) for mark in marks if "ranks" not in mark.args[0])
        found.append((inspect.getsource(function), cases))
    return found


def rows(number: str, name: str) -> list:
    """The rows of a table of mistakes that belong to an exercise."""
    table = getattr(given(number), name, {})
    return [row for row in (table.values() if isinstance(table, dict) else table) if number in row]


@pytest.mark.parametrize("number", ASKED)
def test_exercise_has_a_model_answer(number):
    module = given(number)
    told = number in getattr(module, "RIGHT", {}) or number in getattr(module, "ANSWERS", {})
    ticked = rf'assert exercises\.check\("{number}"|ticked = exercises\.check\("{number}"'
    assert told or any(re.search(ticked, source) for source, _ in functions(number))


def told_by_parameters(number: str) -> list:
    """Give the rows with a hint that belong to an exercise, of parameters that name it."""
    functions = [each for name, each in vars(given(number)).items() if name.startswith("test_")]
    marks = [mark for each in functions for mark in getattr(each, "pytestmark", ())]
    marks = [mark for mark in marks if mark.name == "parametrize" and "hint" in mark.args[0]]
    return [
        row for mark in marks for row in mark.args[1] if isinstance(row, tuple) and number in row
    ]


def refused(number: str, source: str) -> int:
    """Count the calls of a check in a test function that are not those of a right answer."""
    calls = list(re.finditer(rf'(?:exercises\.check|refused)\("{number}"', source))
    ends = [*(each.start() for each in calls[1:]), len(source)][: len(calls)]
    count = 0
    for call, end in zip(calls, ends, strict=True):
        line = source[: call.start()].rpartition("\n")[2]
        after = source[call.start() : end]
        ticked = line.endswith("assert ") and "is False" not in after.partition("\n")[0]
        ticked |= bool(re.search(r"assert ticked(,|\n)", after)) and "else" not in after
        count += not ticked and "not answered yet" not in line + after
    return count


@pytest.mark.parametrize("number", ASKED)
def test_exercise_has_three_wrong_answers_with_their_hints(number):
    """They are counted here; whether each gets its hint those tests tell."""
    table = rows(number, "WRONG") or told_by_parameters(number)
    others = sum(cases * refused(number, source) for source, cases in functions(number))
    assert len(table) + others >= 3, f"{len(table)} + {others} wrong answers to {number}"
    hints = {next(part for part in reversed(row) if isinstance(part, str)) for row in table}
    assert len(hints) >= min(2, len(table)), "one hint for all mistakes"
