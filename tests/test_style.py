"""What no linter checks: layers, files that name outside places, tests that assert nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = re.compile(
    r"pypi\.\w|pythonhosted|conda\.anaconda|registry\.npm|index-url|\.\./(shared|seeds)|/work/|/root/"
)
TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".ipynb", ".csv", ".cfg", ""}
# What a test may call instead of an assert statement.
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


def asserts(node, known):
    for child in ast.walk(node):
        if isinstance(child, ast.Assert):
            return True
        if isinstance(child, ast.Call):
            called = getattr(child.func, "attr", getattr(child.func, "id", ""))
            if ASSERTS.match(called) or {called, ast.unparse(child.func)} & known:
                return True
        # code for another process asserts there
        if isinstance(child, ast.Constant) and re.search(r"^\s*assert ", str(child.value), re.M):
            return True
        # a program that must end well
        if isinstance(child, ast.keyword) and ast.unparse(child) == "check=True":
            return True
    return False


def asserting(source, helpers=()):
    """Return the names of the functions that assert something, and of all functions."""
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    known = set(helpers)
    while more := {name for name, node in functions.items() if asserts(node, known)} - known:
        known |= more
    return known & set(functions), set(functions)


def test_every_test_asserts_something():
    paths = list((ROOT / "tests").rglob("*.py"))
    helpers = {
        f"{path.stem}.{name}"
        for path in paths
        if not path.name.startswith("test_")
        for name in asserting(path.read_text())[0]
    }
    found = []
    for path in (path for path in paths if path.name.startswith("test_")):
        known, functions = asserting(path.read_text(), helpers)
        found += [f"{path.name}: {name}" for name in functions - known if name[:5] == "test_"]
    assert not found
