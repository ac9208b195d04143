"""House style: the package keeps every rule that a program can check, and every rule bites."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import house_style as house
import pytest

MODULES = house.modules()
KNOWN = {module.name for module in MODULES}
TESTS = {path.name: path.read_text() for path in (house.ROOT / "tests").glob("test_*.py")}


def none(complaints, rule):
    """Fail with the rule and all that breaks it."""
    assert not complaints, "\n".join([rule, *complaints])


GOOD = '''"""A module."""

from dlguide.checks import require

LIMITS = {"ranks": 4}


def share(nbytes, ranks=1):
    """Divide an array among ranks.

    Args:
        nbytes: size of the array (bytes).
        ranks: number of ranks (count).

    Returns:
        float: bytes on each rank.
    """
    require(ranks > 0, "ranks", "be positive", ranks)
    return nbytes / ranks


def _private(anything):
    import tensorflow as tf

    return tf.constant(anything)
'''


@pytest.mark.parametrize("rule", house.RULES, ids=lambda rule: rule.__name__)
def test_modules_keep_rule(rule):
    found = [f"{module.name}: {line}" for module in MODULES for line in rule(module)]
    none(found, rule.__doc__)


def test_modules_import_only_from_floors_below():
    found = [f"{each.name}: {line}" for each in MODULES for line in house.floors(each, KNOWN)]
    none(found, "A room imports only from floors below it.")


def test_modules_load_nothing_heavy():
    found = [
        f"{each.name}: {line}" for each in MODULES for line in house.heavy_imports(each, KNOWN)
    ]
    none(found, "Importing is light.")


def test_package_has_no_cycles():
    none(house.cycles(MODULES), "No module imports itself through others.")


def test_modules_are_named_in_a_test_file():
    works = [m for m in MODULES if m.room and ("def " in m.source or "class " in m.source)]
    unnamed = [module.name for module in works if not house.named_in(module, TESTS)]
    none(unnamed, "Every module is named in a tests/test_*.py.")


def test_doctests_of_modules_pass():
    code = (
        "import doctest, importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    result = doctest.testmod(importlib.import_module(name))\n"
        "    if result.failed or not result.attempted: print('FAILED', name, result)\n"
    )
    names = [module.name for module in MODULES if ">>>" in module.source]
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        cwd=house.ROOT, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_files_name_nothing_outside_the_repository():
    found = [f"{path}: {line}" for path in house.files() for line in house.elsewhere(path)]
    none(found, "The repository stands alone.")


def test_every_test_asserts_and_every_skip_has_a_reason():
    found = [f"{name}: {line}" for name in TESTS for line in house.empty_tests(TESTS[name])]
    none(found, "A test promises something and holds it.")


def test_every_rule_accepts_a_good_module():
    module = house.Module("dlguide.data.shards", GOOD)
    complaints = [line for rule in house.RULES for line in rule(module)]
    complaints += house.floors(module, KNOWN) + house.heavy_imports(module, KNOWN)
    assert complaints == []


DOC = '"""A module."""\n'
BAD = {
    "relative": (house.relative_imports, "from . import x", "relative"),
    "module docstring": (house.docstrings, "x = 1", "no docstring"),
    "function docstring": (house.docstrings, DOC + "def f():\n    return 1", "f: has no docstring"),
    "class docstring": (house.docstrings, DOC + "class A:\n    x = 1", "A: has no docstring"),
    "method docstring": (
        house.docstrings,
        DOC + 'class A:\n    """A thing."""\n    def f(self):\n        return 1',
        "A.f: has no docstring",
    ),
    "full stop": (house.docstrings, DOC + 'def f():\n    """Do it"""', "full stop"),
    "missing Args": (house.docstrings, DOC + 'def f(x):\n    """Do it."""', "no Args for x"),
    "drifted Args": (
        house.docstrings,
        DOC + 'def f(x, y):\n    """Do it.\n\n    Args:\n        x: one.\n        z: two.\n    """',
        "(x, z), the signature (x, y)",
    ),
    "swapped Args": (
        house.docstrings,
        DOC + 'def f(x, y):\n    """Do it.\n\n    Args:\n        y: one.\n        x: two.\n    """',
        "(y, x), the signature (x, y)",
    ),
    "fields": (
        house.docstrings,
        DOC + 'class A:\n    """A.\n\n    Args:\n        x: one.\n    """\n    y: int',
        "(x), the signature (y)",
    ),
    "missing Returns": (
        house.docstrings,
        DOC + 'def f(x):\n    """Do it.\n\n    Args:\n        x: one.\n    """\n    return x',
        "no Returns",
    ),
    "too long": (house.length, "x = 1\n" * 301, "301 lines"),
    "second version": (house.names, "def ring_v2(): pass", "ring_v2"),
    "fast": (house.names, "def ring_fast(): pass", "ring_fast"),
    "units": (house.names, "def f(size_mb): pass", "size_mb"),
    "ranks": (house.names, "def f(world_size): pass", "world_size"),
    "later": (house.leftovers, "x = 1  # TO" + "DO: more", "left for later"),
    "stub": (house.leftovers, "def f():\n    raise NotImplementedError", "a stub"),
    "stub by class": (house.leftovers, "raise NotImplementedError()", "a stub"),
    "print": (house.leftovers, "print('here')", "prints"),
    "breakpoint": (house.leftovers, "breakpoint()", "breakpoint"),
    "cores": (house.cores, "import os\nx = os.cpu_count()", "may use"),
    "cores by name": (house.cores, "from psutil import cpu_count\nx = cpu_count()", "may use"),
    "global": (house.changing_globals, "def f():\n    global x", "global x"),
    "cache": (house.changing_globals, "_cache = {}", "_cache"),
    "annotated cache": (house.changing_globals, "_cache: dict = dict()", "_cache"),
    "thawed": (house.frozen, "@dataclass\nclass A: pass", "not frozen"),
    "half frozen": (house.frozen, "@dataclass(frozen=False)\nclass A: pass", "not frozen"),
    "swallowed": (house.swallowed, "try:\n    x\nexcept Exception:\n    pass", "every error"),
}


@pytest.mark.parametrize(("rule", "source", "complaint"), BAD.values(), ids=BAD)
def test_rule_bites(rule, source, complaint):
    lines = rule(house.Module("dlguide.data.shards", source))
    assert any(complaint in line for line in lines), lines


def test_command_needs_no_args_section_but_a_docstring():
    for decorator in ("@app.command()", '@app.command("install")'):
        source = f'{DOC}{decorator}\ndef f(x):\n    """Do it."""'
        assert house.docstrings(house.Module("dlguide.cli", source)) == []
        source = f"{DOC}{decorator}\ndef f(x):\n    return 1"
        assert house.docstrings(house.Module("dlguide.cli", source)) == ["f: has no docstring"]


def test_module_called_utils_is_refused():
    assert house.names(house.Module("dlguide.utils", DOC))


@pytest.mark.parametrize(
    ("name", "source", "complaint"),
    [
        ("dlguide.machine.threads", "from dlguide.training import fit", "must not import training"),
        ("dlguide.machine.threads", "import dlguide.data.datasets", "must not import data"),
        ("dlguide.checks", "def f():\n    import dlguide.nets", "must not import nets"),
        ("dlguide.nets", "from dlguide import measure", "must not import measure"),
        ("dlguide.nets", "import importlib\nimportlib.import_module('dlguide.cli')", "import cli"),
        ("dlguide.nets", "import dlguide", "hides"),
        ("dlguide.attic", "", "on no floor"),
    ],
)
def test_floor_rule_bites(name, source, complaint):
    known = KNOWN | {"dlguide.measure", "dlguide.training.fit"}
    lines = house.floors(house.Module(name, source), known)
    assert any(complaint in line for line in lines), lines


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf",
        "from mpi4py import MPI",
        "try:\n    import matplotlib.pyplot\nexcept ImportError:\n    pass",
        "class A:\n    import keras",
        "import dlguide.horovod as hvd",
    ],
)
def test_heavy_import_rule_bites(source):
    assert house.heavy_imports(house.Module("dlguide.training.fit", source), KNOWN)


def test_heavy_import_is_welcome_in_a_function_and_for_types():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import keras\n"
    source += "def f():\n    import keras"
    assert not house.heavy_imports(house.Module("dlguide.training.fit", source), KNOWN)


def test_cycle_rule_bites_through_a_function():
    first = house.Module("dlguide.data.a", "import dlguide.data.b")
    second = house.Module("dlguide.data.b", "def f():\n    from dlguide.data import a")
    assert house.cycles([first, second]) == ["dlguide.data.a -> dlguide.data.b -> dlguide.data.a"]


@pytest.mark.parametrize("text", ["see ../sha" + "red/x", "/ro" + "ot/x", "https://py" + "pi.org"])
def test_outside_rule_bites(text, tmp_path):
    path = Path(tmp_path / "file.md")
    path.write_text(f"first\n{text}\n")
    assert house.elsewhere(path)[0].startswith("line 2")


def test_test_file_rule_bites():
    source = "def test_a():\n    f()\n\n\ndef test_b():\n    assert 1\n"
    assert house.empty_tests(source) == ["line 1: test_a asserts nothing"]
    assert house.empty_tests("import pytest\n\n@pytest.mark.skip\ndef f(): pass") != []
    module = house.Module("dlguide.attic.box", "def f(): pass")
    assert not house.named_in(module, {"test_house.py": "import dlguide.attic"})
    assert house.named_in(module, {"test_house.py": "from dlguide.attic import box"})
