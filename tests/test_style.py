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


def dotted(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def definitions(trees):
    """Functions and classes by module and name, and where imported names come from."""
    found, imported = {}, {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[module, node.name] = node
            elif isinstance(node, ast.ImportFrom):
                for name in node.names:
                    imported[module, name.asname or name.name] = (node.module, name.name)
    return found, imported


def public(trees):
    """Every function and class that an `__all__` names, where it is defined."""
    found, imported = definitions(trees)
    chosen = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                names = [c.value for c in ast.walk(node.value) if isinstance(c, ast.Constant)]
                for key in [(module, name) for name in names]:
                    while key not in found and key in imported:
                        key = imported.pop(key)
                    if key in found:
                        chosen[".".join(key)] = found[key]
    return chosen


def own_nodes(function):
    """What a function executes itself, without the functions inside it."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def missing_in_docstring(node):
    text = ast.get_docstring(node) or ""
    if not re.match(r"[A-Z`].*[.:)]$", text.partition("\n\n")[0], re.DOTALL):
        return ["a first sentence"]
    if isinstance(node, ast.ClassDef):
        return []
    nodes = list(own_nodes(node))
    returns = any(isinstance(each, ast.Return) and each.value is not None for each in nodes)
    checks = [getattr(each.func, "id", "") for each in nodes if isinstance(each, ast.Call)]
    raises = any(isinstance(each, ast.Raise) and each.exc is not None for each in nodes)
    raises |= any(name.startswith("require") for name in checks)
    named = re.match(r"Returns?\b|Yields?\b", text) or re.search(r"^(Returns|Yields):", text, re.M)
    lacking = ["Returns"] if returns and not named else []
    return lacking + (["Raises"] if raises and not re.search(r"^Raises:", text, re.M) else [])


def test_public_names_have_complete_docstrings():
    paths = (ROOT / "dlguide").rglob("*.py")
    everything = public({dotted(path): ast.parse(path.read_text()) for path in paths})
    assert len(everything) > 200
    lacking = {name: missing_in_docstring(node) for name, node in everything.items()}
    assert not {name: words for name, words in lacking.items() if words}


def test_incomplete_docstrings_are_found():
    inside = """
def whole(n):
    '''Return n.

    Raises:
        ValueError: if n is negative.
    '''
    require(n >= 0, "n", "be at least 0", n)
    return n
def half(n):
    '''Double n.'''
    if n < 0:
        raise ValueError(n)
    return 2 * n
def none(n):
    def inner():
        return n
def private():
    pass
"""
    outside = "from inside import half, none, whole\n__all__ = ['half', 'none', 'whole']"
    found = public({"inside": ast.parse(inside), "outside": ast.parse(outside)})
    assert {name: missing_in_docstring(node) for name, node in found.items()} == {
        "inside.half": ["Returns", "Raises"],
        "inside.none": ["a first sentence"],
        "inside.whole": [],
    }
