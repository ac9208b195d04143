"""What tests/conftest.py promises: ranks only with a marker, no skip without a listed reason."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import conftest
import pytest

TESTS = Path(__file__).parent
MAKEFILE = TESTS.parent / "Makefile"
LISTED = "this system allows no network namespace"


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


STARTS = """
from dlguide.cluster import Cluster

def test_starts():
    Cluster(ranks=1)
"""


def test_ranks_without_a_marker_fail_before_they_start(tmp_path):
    status, output = run(tmp_path, STARTS)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "test_starts starts a Cluster and has none of the markers ranks, alone" in output


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
        (ALLOWED, 0, [f"::test_a: {LISTED} (allowed: ", "1 passed, 1 skipped, 1 xfailed"], ()),
        (UNLISTED, 1, [f"{each} (NOT LISTED" for each in ("no time", "later", "no server")], ()),
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


def test_every_file_that_runs_a_lesson_is_in_a_part():
    """The other parts leave out what is marked `notebook`."""
    (named,) = re.findall(r"^LESSONS := .*test_,(.*)\)$", MAKEFILE.read_text(), re.MULTILINE)
    marked = {
        path.name.removeprefix("test_")
        for path in TESTS.rglob("test_*.py")
        if "@pytest.mark.notebook" in path.read_text(encoding="utf-8") and path != Path(__file__)
    }
    assert marked == set(named.split())
