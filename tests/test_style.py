"""What no linter checks: layers, files that name outside places, tests that assert nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(
    r"pypi\.\w|pythonhosted|conda\.anaconda|registry\.npm|index-url|\.\./(shared|seeds)|/work/|/root/"
)
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".ipynb", ".csv", ".cfg", ""}
# What a test may call in place of an assert statement.
ASSERTS = re.compile(r"^(assert_\w+|raises|fail|warns)$")


def tracked():
    """The repository's own files: tracked ones, and new ones that git does not ignore."""
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for line in listed.splitlines() if (path := ROOT / line).is_file()]


def outside(text):
    return [line for line in text.splitlines() if OUTSIDE.search(line)]


def test_subpackages_import_only_from_lower_layers():
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def test_no_file_names_a_registry_or_a_place_outside_the_repository():
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in tracked()
        if path.suffix in TEXT and path != Path(__file__)
        for line in outside(path.read_text(errors="replace"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["see ../sha" + "red/x", "/ro" + "ot/x", "https://py" + "pi.org"])
def test_outside_places_are_found(text):
    assert outside(f"first\n{text}\n") == [text]


def asserts(node, known):
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            return True
        if isinstance(child, ast.Call):
            called = getattr(child.func, "attr", getattr(child.func, "id", ""))
            if ASSERTS.match(called) or called in known:
                return True
        # code for another process asserts there
        if isinstance(child, ast.Constant) and re.search(r"^\s*assert ", str(child.value), re.M):
            return True
        if isinstance(child, ast.keyword) and child.arg == "check":
            return True
    return False


def without_assert(source):
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    known: set[str] = set()
    while more := {name for name, node in functions.items() if asserts(node, known)} - known:
        known |= more
    return [name for name in functions if name.startswith("test_") and name not in known]


def test_every_test_asserts_something():
    found = {
        path.name: names
        for path in (ROOT / "tests").rglob("test_*.py")
        if (names := without_assert(path.read_text()))
    }
    assert not found


def test_a_test_without_an_assertion_is_found():
    source = "def test_a():\n    f()\n\n\ndef test_b():\n    assert 1\n"
    assert without_assert(source) == ["test_a"]
