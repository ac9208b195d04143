"""Answers of several parts in the tables of the files `test_exercises_nbNN.py`."""

from __future__ import annotations

from typing import Any


class Parts(tuple[Any, ...]):
    """What a notebook gives to `check` behind the exercise's number, when it is more than one."""


def parts(answer: Any) -> tuple[Any, ...]:
    """Give what `check` is called with: an answer's parts, or the answer alone."""
    return answer if isinstance(answer, Parts) else (answer,)
