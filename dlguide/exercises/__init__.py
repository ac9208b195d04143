"""Exercises that check themselves, in the learner's notebook and in the answers' run.

A notebook asks with `exercises.check("20-1", answer)`. The check is the function `exercise_20_1`
of the module `dlguide.exercises.nb20`; it takes the answer and calls `expect` or `expect_close`.
What it returns, if anything, is printed after the tick: a sentence on what the result means.

    def exercise_20_1(steps):
        expect(steps == 300, "60000 samples / (2 ranks x batch 100)", steps, "Which batch?")
        return "Half the steps of one process, each with twice the samples."

A wrong answer stops nothing in the learner's notebook: it gets a hint, and from the second time
on a stronger one; `solution("20-1")` shows the solved exercise. An answer that does not end, fills
the memory or prints without end is stopped, see `dlguide.exercises.watching`. What was tried and
passed is kept for `dlguide progress` in the user's cache, and sent nowhere.

With DLGUIDE_STRICT_EXERCISES=1, which the run of the answers sets, a wrong answer raises, and
nothing is kept.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from types import ModuleType
from typing import Any

from dlguide.checks import require, require_known
from dlguide.exercises import hints, record
from dlguide.exercises.frames import Stopped
from dlguide.exercises.watching import LIMIT_S, Watch, limit
from dlguide.measure import launched

__all__ = [
    "NotAnswered",
    "WrongAnswer",
    "answered",
    "check",
    "expect",
    "expect_close",
    "expect_function",
    "limit",
    "near",
    "solution",
]
MOST_WORDS = 5000  # characters of what an exception says


class WrongAnswer(AssertionError):
    """An answer is not what the exercise asks for; the text says what is expected and a hint.

    Attributes:
        closer: what is said besides, from the second wrong answer on; a sentence or nothing.
    """

    closer = ""


class NotAnswered(WrongAnswer):
    """The answer is still the empty function that the notebook gives: it returns `...`."""


def expect(condition: Any, expected: str, came: Any, hint: str = "") -> None:
    """Inside a check: go on when the condition holds, otherwise say what is wrong.

    Args:
        condition: what must hold, anything with a truth value.
        expected: what is asked for, in words that do not give the answer away.
        came: what came.
        hint: where to look next, a sentence.

    Raises:
        WrongAnswer: when the condition does not hold.
    """
    if not condition:
        shown = came if isinstance(came, str) else repr(came)
        shown = shown if len(shown) <= 300 else f"{shown[:300]} ..."
        raise WrongAnswer(f"Expected: {expected}. Came: {shown}. {hint}".rstrip())


def expect_function(answer: Any) -> None:
    """Inside a check: go on when the answer can be called.

    Args:
        answer: what the learner gave.

    Raises:
        WrongAnswer: when it is no function.
    """
    expect(callable(answer), "a function", answer, "Write it with `def`.")


def answered(came: Any) -> Any:
    """Inside a check: give back what the learner's function returned, when it is an answer.

    Args:
        came: what it returned.

    Returns:
        Any: the same.

    Raises:
        NotAnswered: when it is `...`, as in the notebook.
    """
    if came is Ellipsis:
        raise NotAnswered
    return came


def expect_close(
    answer: Any, value: Any, expected: str, hint: str = "", relative: float = 1e-3
) -> None:
    """Inside a check: the answer must be a number or array near a value.

    Near means |answer - value| <= relative * max |value|, in equal shapes; for a value of 0
    everywhere |answer| <= relative.

    Args:
        answer: what came, a number or an array.
        value: what is right, of the same shape.
        expected: what is asked for, in words.
        hint: where to look next, a sentence.
        relative: allowed distance relative to the largest value.

    Raises:
        WrongAnswer: when it is no number, has another shape, is not finite or not near.
    """
    import numpy as np

    try:
        numbers, right = np.asarray(answer, float), np.asarray(value, float)
    except (TypeError, ValueError):
        expect(False, f"{expected} (a number)", answer, hint)
    shape = f"{expected} (shape {right.shape})"
    expect(numbers.shape == right.shape, shape, f"shape {numbers.shape}", hint)
    try:
        expect(near(numbers, right, relative), expected, answer, hint)
    except WrongAnswer as error:
        error.closer = hints.difference(numbers, right, relative)
        raise


def near(came: Any, value: Any, relative: float = 1e-6) -> bool:
    """Inside a check: tell whether an answer is near a value, to find the hint that fits it.

    Args:
        came: what came, of any type.
        value: a number or an array.
        relative: allowed distance relative to the largest value, or itself for 0 everywhere.

    Returns:
        bool: True for numbers of the value's shape that are near it, False for all else.
    """
    import numpy as np

    try:
        numbers, right = np.asarray(came, float), np.asarray(value, float)
    except (TypeError, ValueError):
        return False
    allowed = relative * (np.abs(right).max(initial=0.0) or 1.0)
    return numbers.shape == right.shape and bool(np.all(np.abs(numbers - right) <= allowed))


def check(number: str, answer: Any = None, *more: Any) -> bool:
    """Check the answer to an exercise and print the verdict.

    The check ends within 10 s, whatever the answer does, unless the exercise is known to take
    longer or a call of C code never comes back. Below `%%px` every rank checks its own answer;
    nothing is exchanged between them, and rank 0's verdict is the one that is kept.

    Args:
        number: the exercise as the notebook names it, such as "20-1" or "20.1".
        answer: the learner's value or function; None or ... is "not answered yet".
        more: further parts of the answer, where the exercise asks for several.

    Returns:
        bool: whether the answer is right.

    Raises:
        ValueError: when there is no such exercise; the message lists those of the notebook.
        AssertionError: with DLGUIDE_STRICT_EXERCISES=1, when the answer is missing or wrong.
    """
    number, function = _find(number)
    strict = os.environ.get("DLGUIDE_STRICT_EXERCISES") == "1"
    calls = hints.Calls()
    parts = (answer, *more)
    if any(part is None or part is Ellipsis for part in parts):
        return _refuse(number, f"Exercise {number} is not answered yet.", "…", strict)
    if not any(hasattr(part, "run_on") for part in parts):  # a cluster sends it to its ranks
        parts = tuple(calls.watched(part) for part in parts)
    watch = Watch(getattr(function, "limit_s", LIMIT_S), launched()[1] > 1)
    try:
        remark = watch.run(function, *parts)
    except NotAnswered:
        return _refuse(number, f"Exercise {number} is not answered yet.", "…", strict)
    except WrongAnswer as error:
        return _refuse(number, f"Exercise {number}: {error}", "✘", strict, (calls, error.closer))
    except Stopped as stopped:
        text = f"Exercise {number}: your answer {stopped}."
        return _refuse(number, text, "✘", strict, (calls, ""))
    except Exception as error:
        # a learner's function may raise anything; the notebook goes on
        text = f"Exercise {number}: your answer raised {_words(error)}"
        return _refuse(number, text, "✘", strict, (calls, ""), error)
    if not strict and launched()[0] == 0:
        record.passed(number)
    print(f"✔ Exercise {number} is right{_on_rank()}. {remark or ''}".rstrip())
    return True


def solution(number: str) -> None:
    """Print the solved exercise, out of the notebook of answers, after a try of one's own.

    Args:
        number: the exercise, such as "20-1" or "20.1".

    Raises:
        ValueError: when there is no such exercise.
        MissingComponentError: when the notebooks of answers are not there.
    """
    from dlguide.exercises import solutions

    number, _ = _find(number)
    tried = record.load().get(number)
    if tried is None:
        print(f"Try exercise {number} first: its solution is shown after one answer of yours.")
        return
    print(solutions.find(number))
    record.shown(number)


def _on_rank() -> str:
    rank, ranks = launched()
    return f" on rank {rank}" if ranks > 1 else ""


def _words(error: Exception) -> str:
    """Write down an exception, even one that cannot say what it is."""
    try:
        said = str(error)
    except Exception as another:
        said = f"and its text {type(another).__name__}"
    said = said if len(said) <= MOST_WORDS else f"{said[:MOST_WORDS]} ..."
    return f"{type(error).__name__}: {said}"


def _refuse(
    number: str,
    text: str,
    mark: str,
    strict: bool,
    found: tuple[hints.Calls, str] | None = None,
    cause: Exception | None = None,
) -> bool:
    if strict:
        raise AssertionError(text) from cause
    print(f"{mark} {text}")
    if found is not None and launched()[0] == 0:
        calls, said = found
        more = hints.closer(calls.last, said, record.wrong(number), number)
        if more:
            print(more)
    return False


def _find(number: str) -> tuple[str, Any]:
    parts = re.fullmatch(r"(\d\d)[-.](\d+)", number) if isinstance(number, str) else None
    require(bool(parts), "number", 'be notebook and exercise, such as "20-1"', number)
    module = _module(parts[1])
    known = {
        f"{parts[1]}-{name.rpartition('_')[2]}": function
        for name, function in vars(module).items()
        if name.startswith(f"exercise_{parts[1]}_")
    }
    number = require_known(f"{parts[1]}-{parts[2]}", known, "number")
    return number, known[number]


def _module(notebook: str) -> ModuleType:
    name = f"{__name__}.nb{notebook}"
    there = importlib.util.find_spec(name) is not None
    require(there, "number", "belong to a notebook with exercises", notebook)
    return importlib.import_module(name)
