"""Exercises say what is wrong, stop nobody who learns, and stop the run of the answers."""

import sys
from types import ModuleType

import numpy as np
import pytest

from dlguide import exercises


@pytest.fixture(autouse=True)
def notebook(monkeypatch, tmp_path):
    """Give the notebook number 99, with two exercises, to somebody who has tried none."""
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    module = ModuleType("dlguide.exercises.nb99")

    def exercise_99_1(steps):
        exercises.expect(steps == 300, "the steps of two ranks", steps, "Which batch is global?")
        return "Half the steps of one process."

    def exercise_99_2(mean, numbers):
        exercises.expect_close(mean(numbers), np.mean(numbers), "the mean of the numbers")

    module.exercise_99_1, module.exercise_99_2 = exercise_99_1, exercise_99_2
    monkeypatch.setattr(exercises, "_module", {"99": module}.__getitem__)
    monkeypatch.delenv("DLGUIDE_STRICT_EXERCISES", raising=False)
    return module


def test_a_right_answer_is_ticked_with_what_it_means(capsys):
    assert exercises.check("99-1", 300) is True
    assert capsys.readouterr().out == "✔ Exercise 99-1 is right. Half the steps of one process.\n"
    assert exercises.check("99.2", np.mean, [1, 2]) is True
    assert capsys.readouterr().out == "✔ Exercise 99-2 is right.\n"


def test_a_wrong_answer_is_told_what_is_expected_what_came_and_a_hint(capsys):
    assert exercises.check("99-1", 600) is False
    assert capsys.readouterr().out == (
        "✘ Exercise 99-1: Expected: the steps of two ranks. Came: 600. Which batch is global?\n"
    )


@pytest.mark.parametrize("answer", [(), (None,), (...,), (np.mean, ...)])
def test_a_missing_answer_stops_nobody_who_learns(capsys, answer):
    assert exercises.check("99-2", *answer) is False
    assert capsys.readouterr().out == "… Exercise 99-2 is not answered yet.\n"


def test_a_function_that_raises_is_a_wrong_answer(capsys):
    def mean(numbers):
        raise KeyError("oops")

    assert exercises.check("99-2", mean, [1]) is False
    assert "✘ Exercise 99-2: your answer raised KeyError: 'oops'" in capsys.readouterr().out


def test_a_wrong_number_of_answers_is_a_wrong_answer(capsys):
    assert exercises.check("99-1", 300, 4) is False
    assert "raised TypeError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "answer", "text"),
    [
        ("99-1", (600,), "Expected: the steps of two ranks"),
        ("99-1", (), "not answered yet"),
        ("99-2", (len, [1, 5]), "Expected: the mean"),
        ("99-2", (None, [1]), "not answered yet"),
        ("99-2", (lambda numbers: 1 / 0, [1]), "raised ZeroDivisionError"),
    ],
)
def test_the_run_of_the_answers_stops_at_what_is_missing_or_wrong(
    monkeypatch, number, answer, text
):
    monkeypatch.setenv("DLGUIDE_STRICT_EXERCISES", "1")
    with pytest.raises(AssertionError, match=text):
        exercises.check(number, *answer)


def test_the_run_of_the_answers_goes_on_after_a_right_one(monkeypatch):
    monkeypatch.setenv("DLGUIDE_STRICT_EXERCISES", "1")
    assert exercises.check("99-1", 300) is True


@pytest.mark.parametrize("number", ["991", "99", 99, None, "99-1b", "9-1", "99:1", "99.1.2"])
def test_a_number_must_name_notebook_and_exercise(number):
    with pytest.raises(ValueError, match='`number` must be notebook and exercise, such as "20-1"'):
        exercises.check(number, 1)


def test_an_unknown_exercise_lists_those_of_the_notebook():
    with pytest.raises(ValueError, match=r"`number` must be one of 99-1, 99-2, got '99-3'"):
        exercises.check("99-3", 1)


def test_a_notebook_without_exercises_is_refused(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ValueError, match="`number` must belong to a notebook with exercises"):
        exercises.check("97-1", 1)


def test_checks_are_found_by_name_in_the_module_of_their_notebook(monkeypatch, tmp_path, capsys):
    monkeypatch.undo()
    (tmp_path / "nb98.py").write_text("def exercise_98_1(answer):\n    return 'found'\n")
    monkeypatch.setattr(exercises, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "dlguide.exercises.nb98", raising=False)
    try:
        assert exercises.check("98-1", 1) is True
    finally:
        sys.modules.pop("dlguide.exercises.nb98", None)
    assert "✔ Exercise 98-1 is right. found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "value"),
    [(1.0005, 1.0), ([1, 2], np.array([1.0, 2.001])), (0, 0.0), (np.float32(3), 3), (0.0009, 0)],
)
def test_near_numbers_are_near(answer, value):
    assert exercises.expect_close(answer, value, "it") is None


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (1.002, 1.0),
        (float("nan"), 1.0),
        (float("inf"), 1.0),
        ([1, 2], 1.5),
        ([[1.0]], [1.0]),
        ("one", 1.0),
        (len, 1.0),
        ([1, [2]], [1, 2]),
        (0.002, 0),
        (-1, 1),
    ],
)
def test_other_numbers_shapes_and_kinds_are_not_near(answer, value):
    with pytest.raises(exercises.WrongAnswer, match="Expected: it"):
        exercises.expect_close(answer, value, "it")


def test_a_long_value_is_cut_short():
    with pytest.raises(exercises.WrongAnswer) as caught:
        exercises.expect(False, "it", list(range(10000)))
    assert len(str(caught.value)) < 400
