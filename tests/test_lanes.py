"""Lanes, their budget, what runs when in CI; no skip without a listed reason."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import conftest
import lanes
import psutil
import pytest

TESTS = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("parts", TESTS.parent / ".ci" / "parts.py")
parts = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(parts)
LISTED = "this system allows no network namespace"
TINY = """[lanes]
unit = {test = true, limit_s = 10, workers = 2}
ranks3 = {limit_s = 100, workers = 1}
lessons-1 = {limit_s = 100, workers = 1}
lessons-2 = {limit_s = 100, workers = 1}
whole = {limit_s = 100, workers = 1}

[files]
"test_a.py" = {unit = 9.0, ranks3 = 30.0}
"test_b.py" = {unit = 11.0}
"course/test_c.py" = {lessons-2 = 50.0}
"""


@pytest.fixture
def budget(tmp_path):
    path = tmp_path / "budget.toml"
    path.write_text(TINY)
    return path


def test_a_lane_takes_its_files_seconds_over_its_workers(budget):
    known, files = lanes.load(budget)
    assert known["unit"].seconds == 10.0
    assert known["ranks3"].files == {"test_a.py": 30.0}
    assert lanes.choose(["lessons", "ranks3", "lessons-1"], known) == [
        "lessons-1", "lessons-2", "ranks3",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match=r"PART must be one of unit, .* got 'lesson'"):
        lanes.choose(["lesson"], known)
    lanes.record(budget, {"test_a.py": {"unit": 3.04}})
    assert lanes.load(budget)[1]["test_a.py"] == {"unit": 3.0, "ranks3": 30.0}
    assert lanes.load(budget)[1]["test_b.py"] == files["test_b.py"]
    budget.write_text(TINY.replace("lessons-2 = 50.0", "lessons-2 = 0.0"))  # not recorded yet
    assert lanes.load(budget)[0]["lessons-2"].seconds == 100


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("limit_s = 10,", "limit_s = 9,", "lane unit takes 10 s of 9 s"),
        ("{unit = 11.0}", "{uint = 11.0}", r"test_b.py is in unknown lanes \['uint'\]"),
    ],
)
def test_a_lane_beyond_its_limit_and_an_unknown_lane_are_refused(
    old, new, message, budget, monkeypatch
):
    monkeypatch.delenv(lanes.RECORD, raising=False)  # while the record is renewed, none is too long
    budget.write_text(TINY.replace(old, new))
    with pytest.raises(pytest.UsageError, match=message):
        lanes.load(budget)


def item(name, *marks):
    found = [SimpleNamespace(args=each) for each in marks]
    return SimpleNamespace(
        path=TESTS / name, nodeid=name, get_closest_marker=lambda _: next(iter(found), None)
    )


def test_a_test_is_in_its_files_first_lane_or_in_the_one_that_its_mark_names(budget):
    _, files = lanes.load(budget)
    assert conftest.lane_of(item("test_a.py"), files, ["unit"]) == "unit"
    assert conftest.lane_of(item("test_a.py", ()), files, ["unit"]) == "ranks3"
    for mark in ((), ("lessons-2",)):
        assert conftest.lane_of(item("course/test_c.py", mark), files, ["unit"]) == "lessons-2"
    with pytest.raises(pytest.UsageError, match=r"tests/test_new.py is not listed"):
        conftest.lane_of(item("test_new.py"), files, ["unit"])
    for name, mark in (("test_b.py", ()), ("test_a.py", ("whole",))):
        with pytest.raises(pytest.UsageError, match="is marked `long` for lane"):
            conftest.lane_of(item(name, mark), files, ["unit"])


def test_programs_that_start_ranks_are_seen_below_other_programs(tmp_path):
    program = shutil.copy(shutil.which("sleep"), tmp_path / "mpiexec.hydra")
    process = subprocess.Popen(["sh", "-c", f"{program} 30; true"], start_new_session=True)
    try:
        while not (found := conftest.rank_programs()):
            assert process.poll() is None
        assert process.pid not in found
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def result(failed=(), other=(), status=1):
    return lanes.Result("unit", 1.0, status, list(failed), list(other))


@pytest.mark.parametrize(
    ("first", "second", "listed", "ok"),
    [
        (result(["a"]), result(status=0), "", True),
        (result(["a"]), result(["a"]), "", False),
        (result(["a"], ["b: unlisted skip"]), result(["a"]), "", False),
        (result(["a"]), result(status=0), "a", False),
        (result(["a", "b", "c", "d"]), result(status=0), "", False),
        (result(["a"], status=3), result(status=0), "", False),
    ],
    ids=["passes alone", "fails again", "other fault", "second time", "many", "broken run"],
)
def test_a_second_try_forgives_nothing_but_the_failed_test(
    first, second, listed, ok, budget, tmp_path, monkeypatch
):
    outcomes = [first, second]
    monkeypatch.setattr(lanes, "run", lambda *_, **__: outcomes.pop(0))
    monkeypatch.setattr(lanes, "UNSTEADY", tmp_path / "unsteady.md")
    if listed:
        lanes.enter([listed], "once before")
    found = lanes.run_lane(lanes.load(budget)[0]["unit"])
    assert found.ok is ok
    assert ("a" in lanes.listed()) == (ok or bool(listed))


def test_every_place_that_a_change_may_touch_leads_to_a_part_that_exists():
    known, _ = lanes.load()
    assert all(lanes.choose(names, known) for _, names in parts.TOUCHES)


def run(folder, source, *words):
    """Run pytest with the suite's conftest on one file; return its exit status and output."""
    (folder / "test_tiny.py").write_text(f"import pytest\n{source}")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--rootdir", folder]
    done = subprocess.run(
        [*map(str, command), "-c", str(TESTS.parent / "pyproject.toml"), *words, "test_tiny.py"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


ALLOWED = f"""
def test_a(): pytest.skip("{LISTED}")

@pytest.mark.xfail
def test_b(): assert False
"""
UNLISTED = """
def test_a(): pytest.skip("no time")

@pytest.mark.skip("later")
def test_b(): pass

@pytest.fixture
def server(): pytest.skip("no server")

def test_c(server): pass
"""
MODULE = "pytest.importorskip('no_such_package')"


@pytest.mark.parametrize(
    ("source", "status", "printed", "words"),
    [
        (ALLOWED, 0, [f"{LISTED}: ", "(allowed: ", "1 passed, 1 skipped, 1 xfailed"], ()),
        (UNLISTED, 1, ["no time: ", "later: ", "no server: ", "(NOT LISTED"], ()),
        (MODULE, 1, ["could not import 'no_such", "(NOT LISTED"], ("-n", "2")),
    ],
    ids=["allowed", "unlisted", "a module, xdist"],
)
def test_a_skip_is_printed_and_fails_unless_listed(source, status, printed, words, tmp_path):
    found, output = run(tmp_path, f"{source}\n\ndef test_passes(): pass\n", *words)
    assert found == status, output
    for each in printed:
        assert each in output


def reasons(path):
    """The constant reasons in one file for which a test of it may be skipped."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not (isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("skip")):
            continue
        named = [each.value for each in node.keywords if each.arg == "reason"]
        for each in named or node.args[:1]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


def test_every_reason_to_skip_is_listed():
    """Where all optional parts are installed, nothing is skipped: no run shows a missing entry."""
    unlisted = [
        f"{path.relative_to(TESTS)}: {reason}"
        for path in sorted(TESTS.rglob("*.py"))
        for reason in reasons(path)
        if not any(re.fullmatch(pattern, reason) for pattern in conftest.ALLOWED_SKIPS)
    ]
    assert unlisted == []


WAITS = """
import subprocess, sys
def test_waits():
    open("started", "w").close()
    subprocess.run(["sleep", "98765"])
"""
ENDED = """
import signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import lanes
import psutil
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
lanes.run("x", ["-p", "no:cacheprovider", "-n", "2", "test_waits.py"], folder=Path.cwd())
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_program_alone_ends_what_the_tests_have_started(tmp_path, number):
    (tmp_path / "test_waits.py").write_text(WAITS)
    code = ENDED.format(tests=str(TESTS))
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, preexec_fn=heed)
    deadline = time.monotonic() + 60
    while not (tmp_path / "started").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) != 0
    left = [p for p in psutil.process_iter() if p.is_running() and in_folder(p, tmp_path)]
    assert not left


def heed():
    signal.signal(signal.SIGINT, signal.default_int_handler)


def in_folder(process, folder):
    with suppress(psutil.Error):
        return process.cwd() == str(folder)
    return False
