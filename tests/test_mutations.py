"""The faults of tools/mutations.csv are at their places, and the tests that catch them exist."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import lanes
import pytest

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("mutations", ROOT / "tools" / "mutations.py")
mutations = sys.modules["mutations"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mutations)
FAULTS = mutations.read()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_is_at_its_place_and_the_test_that_catches_it_exists(fault):
    path = mutations.module_path(ROOT, fault.function.partition(":")[0])
    assert mutations.mutated(path.read_text(), fault) != path.read_text()
    if fault.verdict != "caught":
        assert fault.note
        return
    file, _, test = fault.test.partition("::")
    known, files = lanes.load()
    entry = files[file.removeprefix("tests/")]
    if not test:  # pytest does not even start with the fault
        assert known[next(iter(entry))].test
        return
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()
    assert fault.lane in entry
    assert known[fault.lane].test or fault.function.startswith("dlcourse")


@pytest.mark.parametrize(
    ("old", "new", "nth", "after"),
    [
        ("a + b", "a - b", "", "return 2 * (a - b) + f(a, 2)"),
        ("2", "3", "1", "return 2 * (a + b) + f(a, 3)"),
        ("return 2 * (a + b) + f(a, 2)", "", "", "pass"),
    ],
)
def test_a_piece_of_the_syntax_tree_is_replaced(old, new, nth, after):
    source = "def g(a, b):\n    return 2 * (a + b) + f(a, 2)"
    fault = mutations.Fault("x", "", "module:g", old, new, nth)
    assert mutations.mutated(source, fault).splitlines()[1].strip() == after
