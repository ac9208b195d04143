"""`dlguide doctor --workshop`: each way a lesson can begin is told, and nothing is left behind."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from typer.testing import CliRunner

from dlguide import notebooks
from dlguide.cli.app import app
from dlguide.doctor import family, journal, timetables, workshop, workshop_report
from dlguide.doctor.workshop import Lesson

ROOT = Path(__file__).resolve().parents[1]
LESSONS = [path for path in notebooks.find() if not notebooks.is_answers(path)]


def write(folder: Path, *code: str, name: str = "90_trial", stated: str = "about 4 s") -> Path:
    cells = [nbformat.v4.new_markdown_cell(f"# 90 Trial\n\n**Run time** {stated} on 2 cores.")]
    cells += [nbformat.v4.new_code_cell(text) for text in code]
    path = folder / f"{name}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def alive(sign: str) -> list[list[str]]:
    """Processes with these words in their command line."""
    found = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    return [words for words in found if words and sign in " ".join(words)]


# --- one lesson --------------------------------------------------------------------------------


def test_lesson_that_ends_is_whole_with_its_time_and_memory(tmp_path):
    code = "held = bytearray(300_000_000); held[::4096] = b'x' * len(held[::4096])"
    lesson = workshop.begin(write(tmp_path, code, "import time; time.sleep(3)", ""), 120)
    assert (lesson.state, lesson.error, lesson.ok) == ("whole", "", True)
    assert (lesson.done, lesson.cells, lesson.stated_s) == (2, 2, 4.0)
    assert 3 <= lesson.seconds <= 120
    assert 300e6 < lesson.memory_bytes < 900e6


def test_lesson_that_is_stopped_tells_how_far_it_was_and_leaves_nothing(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    name = f"slow-{time.time_ns()}"
    code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 617 # {name}'])"
    path = write(tmp_path, "import os, tempfile; x = 1", "y = tempfile.mkdtemp()", code, "z = 1")
    lesson = workshop.begin(path, 30)
    assert (lesson.state, lesson.done, lesson.cells) == ("minute", 2, 4)
    assert lesson.ok
    assert not alive(name)
    assert not alive(str(tmp_path))
    assert not list(temporary.iterdir())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["90_trial.ipynb", "temporary"]


@pytest.mark.parametrize(
    ("code", "error", "mend"),
    [
        ("raise KeyError('second')", "KeyError: 'second'", "dlguide doctor"),
        ("import tensorflow_of_mars", "No module named 'tensorflow_of_mars'", "make setup"),
        ("import os; os._exit(1)", "the kernel died", "dlguide doctor  # memory"),
    ],
)
def test_lesson_that_fails_tells_its_cell_the_error_and_the_mend(tmp_path, code, error, mend):
    lesson = workshop.begin(write(tmp_path, "x = 1", code, "y = 2"), 120)
    assert (lesson.state, lesson.done, lesson.cells, lesson.ok) == ("fail", 1, 3, False)
    assert error in lesson.error
    assert lesson.mend == mend
    assert "FAIL  in cell 2 of 3" in workshop_report.line(lesson, [lesson])


def test_lesson_in_which_no_cell_ends_in_time_fails(tmp_path):
    lesson = workshop.begin(write(tmp_path, "import time; time.sleep(618)"), 8)
    assert lesson.state == "fail"
    assert lesson.error == "no cell ended within 8 s"
    assert lesson.mend


def test_lesson_without_its_package_is_skipped_with_the_command(tmp_path, monkeypatch):
    path = write(tmp_path, "1/0")
    monkeypatch.setattr(notebooks, "missing", lambda path: "torch is not installed: `make pytorch`")
    lesson = workshop.begin(path, 60)
    assert (lesson.state, lesson.error) == ("skip", "torch is not installed")
    assert lesson.mend == "make pytorch"
    assert lesson.ok


def test_lesson_begins_as_for_a_learner_with_the_network_cut(tmp_path):
    code = """
import os, socket
assert os.environ["DLGUIDE_STRICT_EXERCISES"] == "0"
assert not os.listdir(os.environ["DLGUIDE_CACHE"])
assert os.environ["DLGUIDE_NETWORK_CUT"] == "0" or [
    name for _, name in socket.if_nameindex() if name != "lo"] == []
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=5).close()
"""
    lesson = workshop.begin(write(tmp_path, code), 120)
    assert lesson.state == "whole", lesson.error
    assert lesson.network_cut == bool(notebooks.network_cutter())


def test_file_that_is_no_notebook_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`path` must be a notebook"):
        workshop.begin(tmp_path / "none.ipynb")
    with pytest.raises(ValueError, match="`limit_s` must be a positive number"):
        workshop.begin(write(tmp_path, "x = 1"), 0)


def test_journal_keeps_what_was_before_a_line_that_was_cut(tmp_path):
    path = tmp_path / "journal"
    path.write_text('{"cells": 5}\n{"done": 1}\n{"done": 2}\n{"do')
    assert workshop._read(path) == (2, 5, "")
    assert workshop._read(tmp_path / "none") == (0, 0, "")
    fresh = tmp_path / "fresh"
    assert journal.main([str(write(tmp_path, "x = 1", "1/0")), str(fresh)]) == 1
    assert workshop._read(fresh) == (1, 2, "ZeroDivisionError: division by zero")


# --- memory ------------------------------------------------------------------------------------


def test_shared_pages_count_once_and_gone_processes_nothing():
    hold = "import os, time; x = b'x' * 200_000_000\nos.fork(); time.sleep(100)"
    parent = subprocess.Popen([sys.executable, "-c", hold])
    try:
        deadline = time.monotonic() + 30
        while not (pids := psutil.Process(parent.pid).children()) and time.monotonic() < deadline:
            time.sleep(0.1)
        both = family.memory_bytes([parent.pid, pids[0].pid])
        assert 200e6 < both < 300e6
    finally:
        for process in psutil.Process(parent.pid).children():
            process.kill()
        parent.kill()
        parent.wait()
    assert family.memory_bytes([parent.pid]) == 0


# --- what is told ------------------------------------------------------------------------------

WHOLE = Lesson("00_a", "whole", 5, 5, 80.0, 40.0, 2_000_000_000, True)
MINUTE = Lesson("01_b", "minute", 3, 9, 60.0, 50.0, 1_000_000_000, True)
SKIP = Lesson("53_c", "skip", stated_s=50.0, error="torch is not installed", mend="make pytorch")
FAIL = Lesson("20_d", "fail", 1, 9, 9.0, 60.0, 0, True, "KeyError: 'x'", "dlguide doctor")


def test_estimate_is_the_stated_time_times_the_pace_of_lessons_that_ended():
    assert workshop.pace([WHOLE, MINUTE, FAIL, SKIP]) == 2.0
    assert workshop.pace([MINUTE]) is None
    assert workshop.estimate_s(WHOLE, 2.0) == 80.0
    assert workshop.estimate_s(MINUTE, 2.0) == 100.0
    assert workshop.estimate_s(MINUTE, 0.5) == 60.0
    assert workshop.estimate_s(MINUTE, None) is None


def test_lines_tell_what_works_and_how_long_it_takes():
    seen = [WHOLE, MINUTE, FAIL, SKIP]
    assert workshop_report.line(WHOLE, seen).split() == [
        *("00_a", "ok", "to", "its", "end", "80", "s", "80", "s", "2.0", "GB")
    ]
    assert "cell 3 of 9" in workshop_report.line(MINUTE, seen)
    assert "~100 s" in workshop_report.line(MINUTE, seen)
    assert " ? " in workshop_report.line(MINUTE, [MINUTE])
    assert workshop_report.line(FAIL, seen).splitlines()[-1].strip() == "mend: dlguide doctor"
    assert workshop_report.line(SKIP, seen).splitlines()[-1].strip() == "mend: make pytorch"


def test_totals_tell_learners_and_whether_the_timetables_fit():
    text = workshop_report.totals([WHOLE, MINUTE, FAIL, SKIP], 9_000_000_000, 8)
    assert "2 of 4 lessons work, 1 fail, 1 skipped." in text
    assert "takes 2.00 times" in text
    assert "carries 4 by its cores, 4 by its memory" in text
    assert "half a day: does not fit (20 does not run)" in text
    assert "could not be cut" not in text
    assert "The network could not be cut" in workshop_report.totals(
        [Lesson("00_a", "whole", 5, 5, 80.0, 40.0)], 10**9, 2
    )


def test_json_holds_the_same():
    told = json.loads(workshop_report.as_json([WHOLE, MINUTE], 9_000_000_000, 8))
    assert [each["estimate_s"] for each in told["lessons"]] == [80.0, 100.0]
    assert told["pace"] == 2.0
    assert told["learners"] == {"by_memory": 4, "by_cores": 4, "memory_bytes": 2_000_000_000}
    assert set(told["timetables"]) == set(timetables.PLANS)


# --- timetables --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_every_lesson_states_its_run_time(path):
    assert 10 <= workshop.stated_s(path) <= 90


def test_minutes_follow_the_rule(tmp_path):
    words = " ".join(["word"] * 389)
    path = write(tmp_path, "x = 1", "y = 1")
    notebook = nbformat.read(path, 4)
    for text in ("### 1 Count ★", "### 2 ★★", f"### 3 Guess ★★\n{words}", "### 4 At home ★★★"):
        notebook.cells.append(nbformat.v4.new_markdown_cell(text))
    nbformat.write(notebook, path)
    prose = sum(len(c.source.split()) for c in notebook.cells if c.cell_type == "markdown")
    assert prose <= 600 - 180  # 2 to 2.1 minutes, 2 cells, exercises of 3 and 6, 30 s to run
    assert timetables.minutes(path, 30) == 15
    assert timetables.minutes(path, 30 + 5 * 60) == 20


@pytest.mark.parametrize("plan", timetables.PLANS)
def test_timetables_fit_at_the_stated_run_times_and_fit_their_day(plan):
    run_s = {path.stem[:2]: workshop.stated_s(path) for path in LESSONS}
    assert timetables.fit(plan, run_s) == ("fits", [])
    sessions = timetables.PLANS[plan]
    assert all(session.minutes <= 125 for session in sessions)
    days = [*timetables.DAY_BEGINS.get(plan, (0,)), len(sessions)]
    for first, end in itertools.pairwise(days):
        day = sessions[first:end]
        assert sum(each.minutes + each.then for each in day) <= 8.5 * 60
        assert day[-1].then == 0


def test_timetables_say_what_does_not_fit():
    run_s = {path.stem[:2]: workshop.stated_s(path) for path in LESSONS}
    verdict, why = timetables.fit("half a day", {**run_s, "20": 3000.0})
    assert verdict == "does not fit"
    assert len(why) == 1
    assert why[0].startswith("Data parallelism needs 1")
    assert why[0].endswith(" of 120 min")
    assert timetables.fit("half a day", {**run_s, "51": None})[1] == ["51 does not run"]
    assert timetables.fit("half a day", {"00": 40.0})[0] == "unknown"


# --- the command -------------------------------------------------------------------------------


def test_command_prints_the_table_and_fails_with_a_lesson(tmp_path):
    good, bad = write(tmp_path, "x = 1"), write(tmp_path, "1/0", name="91_bad")
    runner = CliRunner()
    words = ["doctor", "--workshop", str(good), str(bad)]
    done = runner.invoke(app, words)
    assert done.exit_code == 1
    assert re.search(r"90_trial +ok +to its end", done.output)
    assert re.search(r"91_bad +FAIL  in cell 1 of 1", done.output)
    assert "ZeroDivisionError: division by zero" in done.output
    assert "1 of 2 lessons work, 1 fail" in done.output
    told = runner.invoke(app, ["doctor", "--workshop", "--json", str(good)])
    assert told.exit_code == 0
    assert json.loads(told.output)["lessons"][0]["state"] == "whole"


def test_command_refuses_wrong_words():
    runner = CliRunner()
    assert "come with --workshop" in str(runner.invoke(app, ["doctor", "00"]).exception)
    assert "must be notebooks: 00_start_here" in str(
        runner.invoke(app, ["doctor", "--workshop", "99"]).exception
    )


def test_answers_are_no_lessons():
    assert workshop.lessons() == LESSONS
    assert [path.stem[:2] for path in workshop.lessons(["20"])] == ["20"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command_leaves_nothing(tmp_path, number):
    name = f"stop-{time.time_ns()}"
    code = f"import subprocess; subprocess.run(['sh', '-c', 'sleep 619 # {name}'])"
    command = [sys.executable, "-m", "dlguide.cli", "doctor", "--workshop", write(tmp_path, code)]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(command, env=os.environ | {"TMPDIR": str(temporary)})
    try:
        deadline = time.monotonic() + 120
        while not alive(name) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert alive(name)
        process.send_signal(number)
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait()
    assert not alive(name)
    assert not list(temporary.iterdir())
