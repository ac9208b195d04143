"""Failures, kills and resumes many times over, for what goes wrong once in fifty times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dlguide import commands

pytestmark = pytest.mark.long
FOLDER = Path(__file__).parents[1] / "benchmarks"
LIMIT_S = 1500


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize(
    ("script", "times"),
    [("soak.py", 5), ("checkpoint_kills.py", 100), ("kill_and_resume.py", 12)],
)
def test_nothing_goes_wrong_however_often(script, times):
    command = [sys.executable, FOLDER / script, "--times", times]
    done = commands.run(command, LIMIT_S)
    print(done.output)
    assert done.ok, done.output
