"""Each exercise ticks its model answer, names the usual mistakes, and waits for an empty answer.

The answers stand in the files `test_exercises_nbNN.py`: `RIGHT` by number, `WRONG` by mistake
with number, answer and hint, and `EMPTY` where what the notebook gives is no empty function. What
an exercise needs more than that, such as ranks, is tested in those files.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from exercise_parts import parts

from dlguide import exercises

FILES = sorted(Path(__file__).parent.glob("test_exercises_nb*.py"))
GIVEN = [importlib.import_module(file.stem) for file in FILES]


def gathered(name):
    return {key: each for given in GIVEN for key, each in getattr(given, name, {}).items()}


RIGHT, EMPTY = gathered("RIGHT"), gathered("EMPTY")
WRONG = [
    pytest.param(*case, id=f"{case[0]} {mistake}")
    for given in GIVEN
    if hasattr(given, "RIGHT")
    for mistake, case in given.WRONG.items()
]


@pytest.mark.parametrize("number", RIGHT)
def test_right_answer_is_ticked(number, capsys):
    ticked = exercises.check(number, *parts(RIGHT[number]))
    out = capsys.readouterr().out
    assert ticked, out
    assert out.startswith(f"✔ Exercise {number} is right.")


@pytest.mark.parametrize(("number", "answer", "hint"), WRONG)
def test_wrong_answer_gets_its_hint(number, answer, hint, capsys):
    assert not exercises.check(number, *parts(answer))
    out = capsys.readouterr().out
    assert out.startswith(f"✘ Exercise {number}: Expected")
    assert hint.lower() in out.lower()


@pytest.mark.parametrize("number", RIGHT)
def test_empty_answer_is_not_answered_yet(number, capsys):
    for empty in EMPTY.get(number, [lambda *arguments: ...]):
        assert not exercises.check(number, *parts(empty))
        assert capsys.readouterr().out == f"… Exercise {number} is not answered yet.\n"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_exercise_of_a_notebook_is_tested(file):
    number = file.stem.removeprefix("test_exercises_nb")
    module = importlib.import_module(f"dlguide.exercises.nb{number}")
    there = [name for name in vars(module) if name.startswith(f"exercise_{number}_")]
    text = file.read_text()
    assert there
    assert [name for name in there if f'"{name[9:].replace("_", "-")}"' not in text] == []
