"""What a learner tried and passed is kept in one small file, whatever happens to it.

Tests dlguide.exercises.record, standing, solutions and `dlguide progress` (dlguide.cli.progress).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from types import ModuleType

import nbformat
import pytest

from dlguide import cli, exercises
from dlguide.checks import MissingComponentError
from dlguide.exercises import record, solutions, standing
from dlguide.exercises.record import Tried

FIRST_HINT = "✘ Exercise 99-1: Expected: the mean. Came: 6.0. Sum or mean?\n"


def sum_of(numbers):
    return float(sum(numbers))


@pytest.fixture(autouse=True)
def notebook(monkeypatch, tmp_path):
    """Give the notebook number 99, with three exercises, to somebody who has tried none."""
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DLGUIDE_STRICT_EXERCISES", raising=False)
    module = ModuleType("dlguide.exercises.nb99")

    def exercise_99_1(mean):
        exercises.expect_close(mean([1, 2, 3]), 2.0, "the mean", "Sum or mean?")

    def exercise_99_2(answer):
        exercises.expect(answer == "B", "a letter", answer)

    def exercise_99_3(answer):
        exercises.expect_close(answer, [1.0, 2.0, 3.0], "three numbers")

    module.exercise_99_1, module.exercise_99_2 = exercise_99_1, exercise_99_2
    module.exercise_99_3 = exercise_99_3
    monkeypatch.setattr(exercises, "_module", {"99": module}.__getitem__)
    return module


# --- hints ---------------------------------------------------------------------------------------


def test_the_second_wrong_answer_gets_the_failing_call_and_no_solution(capsys):
    exercises.check("99-1", sum_of)
    assert capsys.readouterr().out == FIRST_HINT
    exercises.check("99.1", sum_of)
    shown = capsys.readouterr().out
    assert shown.startswith(FIRST_HINT)
    assert "A closer look: sum_of([1, 2, 3]) gave 6.0. Yours is too large" in shown
    assert 'dlguide.exercises.solution("99-1")' in shown
    assert "2.0" not in shown


def test_each_exercise_counts_its_own_wrong_answers(capsys):
    exercises.check("99-1", sum_of)
    exercises.check("99-2", "A")
    assert "closer" not in capsys.readouterr().out
    assert record.load() == {"99-1": Tried(1), "99-2": Tried(1)}


def test_an_answer_that_is_missing_is_no_try(capsys):
    exercises.check("99-1", None)
    exercises.check("99-1", lambda numbers: exercises.answered(...))
    assert record.load() == {}
    assert "closer" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([2.0, 4.0, 6.0], "3 of 3 numbers differ; the first at index 0 is too large. All are off"),
        ([1.0, 2.0, 2.0], "1 of 3 numbers differ; the first at index 2 is too small."),
        ([3.0, 1.0, 2.0], "They are the right numbers in another order."),
        ([1.0, float("nan"), 3.0], "1 of your numbers are not finite."),
    ],
)
def test_numbers_are_told_how_they_differ(answer, words, capsys):
    for _ in range(2):
        assert not exercises.check("99-3", answer)
    assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("came", "right", "words"),
    [
        (2.1, 2.0, "too large, by less than 10 %"),
        (1.0, 2.0, "too small, by less than 2.5 times"),
        (20.0, 2.0, "too large, by a few times"),
        (2000.0, 2.0, "too large, by orders of magnitude"),
        (-2.0, 2.0, "too small, and of the other sign"),
        (0.0, 2.0, "too small."),
    ],
)
def test_one_number_is_told_roughly_how_far_it_is(came, right, words):
    import numpy as np

    assert words in exercises.hints.difference(np.asarray(came), np.asarray(right), 1e-3)


def test_a_value_that_cannot_show_itself_is_named_by_its_kind():
    class Mute:
        def __repr__(self):
            raise RuntimeError("no")

    shown = exercises.hints.brief(Mute())
    assert "Mute" in shown
    assert len(exercises.hints.brief({number: "x" * 1000 for number in range(1000)})) < 150


def test_a_function_that_is_watched_stays_what_it_is():
    calls = exercises.hints.Calls()
    watched = calls.watched(sum_of)
    assert (watched([1, 2]), watched.__name__, watched.__wrapped__) == (3.0, "sum_of", sum_of)
    assert calls.last == "sum_of([1, 2]) gave 3.0."
    assert calls.watched(len) is len
    assert calls.watched(Tried) is Tried


def test_the_call_that_raised_is_named(capsys):
    for _ in range(2):
        exercises.check("99-1", lambda numbers: numbers["first"])
    shown = capsys.readouterr().out
    assert "your answer raised TypeError" in shown
    assert "your function([1, 2, 3]) did not return." in shown


def test_an_exception_that_cannot_say_what_it_is_stops_nothing(capsys):
    class Odd(Exception):
        def __str__(self):
            raise KeyError("x")

    def answer(numbers):
        raise Odd

    assert not exercises.check("99-1", answer)
    assert "your answer raised Odd: and its text KeyError" in capsys.readouterr().out


# --- the record ----------------------------------------------------------------------------------


def test_what_is_passed_stays_passed(capsys):
    exercises.check("99-2", "A")
    exercises.check("99-2", "B")
    first = record.load()["99-2"]
    exercises.check("99-2", "B")
    exercises.check("99-2", "A")
    after = record.load()["99-2"]
    assert (after.wrong, after.passed_unix_s) == (2, first.passed_unix_s)
    assert first.passed_unix_s > 1e9


def test_the_run_of_the_answers_keeps_nothing(monkeypatch, capsys):
    monkeypatch.setenv("DLGUIDE_STRICT_EXERCISES", "1")
    exercises.check("99-2", "B")
    with pytest.raises(AssertionError):
        exercises.check("99-2", "A")
    assert not record.path().exists()


DAMAGED = {
    "empty": "",
    "half": '{"format": 1, "exercises": {"99-',
    "list": "[1, 2]",
    "another format": '{"format": 2, "exercises": {}}',
    "no exercises": '{"format": 1}',
    "no counts": '{"format": 1, "exercises": {"99-1": {"wrong": "two"}}}',
    "other fields": '{"format": 1, "exercises": {"99-1": {"right": 2}}}',
    "no time": '{"format": 1, "exercises": {"99-1": {"passed_unix_s": "noon"}}}',
    "binary": "\udcff",
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_told_put_aside_and_begun_anew(text, capsys):
    record.path().parent.mkdir(parents=True)
    record.path().write_text(text, errors="surrogateescape")
    with pytest.warns(RuntimeWarning, match="is no record of exercises.*begins anew"):
        assert exercises.check("99-2", "B")
    assert set(record.load()) == {"99-2"}
    aside = record.path().with_suffix(".damaged")
    assert aside.read_text(errors="surrogateescape") == text


def test_a_cache_that_cannot_be_written_stops_no_check(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DLGUIDE_CACHE", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="What you have solved is not kept"):
        assert exercises.check("99-2", "B")
    with pytest.warns(RuntimeWarning, match="Set DLGUIDE_CACHE"):
        assert not exercises.check("99-2", "A")
    assert "✔ Exercise 99-2 is right" in capsys.readouterr().out


def test_several_at_once_lose_nothing(monkeypatch):
    monkeypatch.setattr(record, "LOCK_S", 60.0)  # on a busy machine they wait for each other
    # the lock is of the open file, so that threads meet as processes do
    threads = [
        threading.Thread(target=lambda: [record.wrong("99-1") for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert record.load()["99-1"].wrong == 40
    assert {file.name for file in record.path().parent.iterdir()} == {
        "progress.json",
        "progress.lock",
    }


# --- solutions -----------------------------------------------------------------------------------


def answers(folder):
    """Write a notebook of answers to 99."""
    (folder / "answers").mkdir(parents=True)
    new = nbformat.v4
    cells = [
        new.new_markdown_cell("# 99 Answers"),
        new.new_code_cell("import math"),
        new.new_markdown_cell("## 99-1 The mean ★\n\nDivide."),
        new.new_code_cell("mean = sum"),
        new.new_markdown_cell("### More on it"),
        new.new_markdown_cell("## 99-10 Another"),
        new.new_code_cell("other = 1"),
    ]
    nbformat.write(
        new.new_notebook(cells=cells),
        folder / "answers" / "99_means.ipynb",
        version=nbformat.NO_CONVERT,
    )


def test_a_solution_is_the_section_of_its_exercise(tmp_path):
    answers(tmp_path)
    assert solutions.find("99-1", tmp_path) == (
        "## 99-1 The mean ★\n\nDivide.\n\n```python\nmean = sum\n```\n\n### More on it"
    )
    assert solutions.find("99-10", tmp_path).endswith("other = 1\n```")


def test_a_solution_that_is_not_there_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(MissingComponentError, match=r"has no answers to notebook 99.*clone"):
        solutions.find("99-1", tmp_path)
    answers(tmp_path)
    with pytest.raises(MissingComponentError, match=r"99_means\.ipynb has no section 99-2"):
        solutions.find("99-2", tmp_path)


def test_a_solution_is_shown_after_a_try_and_that_is_kept(monkeypatch, capsys):
    monkeypatch.setattr(solutions, "find", lambda number: f"solved {number}")
    exercises.solution("99.2")
    assert capsys.readouterr().out == (
        "Try exercise 99-2 first: its solution is shown after one answer of yours.\n"
    )
    exercises.check("99-2", "A")
    exercises.solution("99.2")
    assert capsys.readouterr().out.endswith("solved 99-2\n")
    assert record.load()["99-2"] == Tried(wrong=1, shown=True)


def test_whoever_passed_first_has_not_needed_the_solution(monkeypatch, capsys):
    monkeypatch.setattr(solutions, "find", lambda number: f"solved {number}")
    exercises.check("99-2", "B")
    exercises.solution("99-2")
    assert "solved 99-2" in capsys.readouterr().out
    assert not record.load()["99-2"].shown


@pytest.mark.parametrize("number", ["99-4", "99-", 3])
def test_a_solution_of_no_exercise_is_refused(number):
    with pytest.raises(ValueError, match="`number` must be"):
        exercises.solution(number)


EVERY = [f"{book}-{one}" for book, numbers in standing.there().items() for one in numbers]


def test_every_exercise_is_found_without_loading_it(monkeypatch):
    monkeypatch.undo()
    found = {name: exercises._find(name)[0] for name in ("20.4", "00-1", "72-4")}
    assert set(found.values()) <= set(EVERY)
    assert len(EVERY) > 100


WRITTEN = {path.name[:2] for path in solutions.notebooks.find() if path.parent.name == "answers"}


@pytest.mark.parametrize("number", [one for one in EVERY if one[:2] in WRITTEN])
def test_every_exercise_has_a_solution_that_ends_in_its_check(number):
    assert f'check("{number}"' in solutions.find(number)


# --- dlguide progress ----------------------------------------------------------------------------


@pytest.fixture
def dlguide(monkeypatch, capsys):
    """Give a function that runs a command line and returns exit status and all that is said."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["dlguide", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capsys.readouterr()
        if isinstance(left.value.code, str):
            return 1, left.value.code
        return left.value.code or 0, shown.out + shown.err

    return run


@pytest.fixture
def two_notebooks(monkeypatch):
    monkeypatch.setattr(standing, "there", lambda: {"98": ("1",), "99": ("1", "2", "3", "10")})


def test_progress_shows_passed_tried_and_open_by_notebook(dlguide, two_notebooks):
    record.wrong("99-1")
    record.wrong("99-3")
    record.shown("99-3")
    record.passed("99-3")
    record.passed("99-10")
    status, shown = dlguide("progress")
    assert status == 0
    assert shown.splitlines()[:3] == [
        "notebook  passed  tried, not passed  open",
        "98                                   1",
        "99        3* 10   1                  2",
    ]
    assert f"2 of 5 exercises passed. Kept in {record.path()}" in shown
    assert "* after its solution was shown" in shown
    _, shown = dlguide("progress", "--json")
    assert json.loads(shown)[1] == {
        "notebook": "99", "passed": ["3", "10"], "shown": ["3"], "tried": ["1"], "open": ["2"],
    }  # fmt: skip


def test_a_folder_of_learners_becomes_a_table(dlguide, two_notebooks, tmp_path):
    course = tmp_path / "course"
    course.mkdir()
    record.passed("99-1")
    assert dlguide("progress", "--export", course / "a.json", "--name", "Ada")[0] == 0
    record.passed("99-2")
    assert dlguide("progress", "--export", course / "b.json", "--name", "Bo")[0] == 0
    (course / "Cy").mkdir()
    (course / "Cy" / "progress.json").write_bytes(record.path().read_bytes())
    status, shown = dlguide("progress", course)
    assert status == 0
    assert shown.splitlines() == [
        "learner  99   all",
        "Ada      1/4  1",
        "Bo       2/4  2",
        "Cy       2/4  2",
        "3 learners; notebooks in which nobody has passed any are left out.",
    ]


def test_two_learners_of_one_name_are_both_in_the_table(two_notebooks, tmp_path):
    for file in ("a.json", "b.json"):
        record.passed("99-1" if file == "a.json" else "99-2")
        record.export(tmp_path / file, "Ada")
    assert standing.course(tmp_path).passed == {
        "Ada": {"98": 0, "99": 1},
        "Ada (b.json)": {"98": 0, "99": 2},
    }


def test_a_damaged_file_of_a_learner_is_named_and_the_others_are_shown(
    dlguide, two_notebooks, tmp_path
):
    record.passed("99-1")
    record.export(tmp_path / "ada.json", "Ada")
    (tmp_path / "bo.json").write_text("{")
    status, shown = dlguide("progress", tmp_path)
    assert status == 1
    assert "Ada      1/4  1" in shown
    assert "left out: " in shown
    assert "bo.json is no record of exercises" in shown
    assert (tmp_path / "bo.json").read_text() == "{"


def test_exercises_that_do_not_exist_are_not_counted(two_notebooks, tmp_path):
    record.passed("99-77")
    record.passed("55-1")
    record.export(tmp_path / "ada.json", "Ada")
    assert standing.course(tmp_path).passed == {"Ada": {"98": 0, "99": 0}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{tmp}/none"], "`folder` must be a folder"),
        (["{tmp}/empty"], "Each learner writes one with `dlguide progress --export NAME.json`."),
        (["{tmp}/empty", "--export", "{tmp}/a.json"], "`export` must be without a folder"),
        (["--name", "Ada"], "`name` must come with --export"),
        (["--export", "{tmp}/empty"], "`export` must be a file"),
        (["--export", "/dev/null/a.json"], "`export` must be a folder this process can write to"),
    ],
)
def test_progress_says_what_is_wrong(dlguide, tmp_path, words, said):
    (tmp_path / "empty").mkdir()
    status, shown = dlguide("progress", *(word.format(tmp=tmp_path) for word in words))
    assert status == 1
    assert said in shown


def test_export_without_a_name_takes_the_users(dlguide, tmp_path, monkeypatch):
    monkeypatch.setenv("LOGNAME", "grace")
    assert dlguide("progress", "--export", tmp_path / "g.json")[0] == 0
    assert record.read(tmp_path / "g.json")[0] == "grace"


def test_the_package_can_be_imported_without_what_checks_load():
    code = "import sys, dlguide.exercises; print(int('tensorflow' in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=dict(os.environ),
        check=True,
    )
    assert done.stdout == "0\n"
