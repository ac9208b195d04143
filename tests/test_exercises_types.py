"""An answer of the wrong type is refused by every exercise: nothing is raised, nothing hangs."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from dlguide import exercises
from dlguide.exercises import standing


class Odd:
    """Something that cannot be compared, counted, called or shown."""

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    def __len__(self):
        raise RuntimeError("no length")

    def __repr__(self):
        raise RuntimeError("no text")

    __hash__ = None


WRONG_TYPES = {
    "text": "a word",
    "number": -7.25,
    "not finite": float("nan"),
    "list": [],
    "nested": [[1], [2, 3]],
    "dictionary": {"a": 1},
    "array": np.zeros((2, 0, 3)),
    "bytes": b"\xff",
    "class": Odd,
    "odd": Odd(),
    "function of nothing": lambda: 1,
    "function that gives nothing": lambda *arguments, **named: None,
    "function that gives text": lambda *arguments, **named: "a word",
    "function that gives odd things": lambda *arguments, **named: Odd(),
    "generator": (number for number in range(3)),
    "complex": 1j,
}


def alone(number):
    """Tell whether an exercise takes one answer and no cluster."""
    return len(inspect.signature(exercises._find(number)[1]).parameters) == 1


NUMBERS = [f"{book}-{one}" for book, numbers in standing.there().items() for one in numbers]


@pytest.mark.parametrize("number", [number for number in NUMBERS if alone(number)])
def test_wrong_types_are_refused(number, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path))
    for name, answer in WRONG_TYPES.items():
        assert exercises.check(number, answer) is False, name
        shown = capsys.readouterr().out
        assert shown.startswith((f"✘ Exercise {number}: ", f"… Exercise {number} is not")), name
        assert len(shown) < 6000, name
