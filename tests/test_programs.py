"""The programs of notebook 51: they train, and what is finished is announced, not trained again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dlguide import commands

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "programs"
STEPS = 60
pytestmark = pytest.mark.timeout(400)


def start(program, ranks, folder):
    words = ["--steps", STEPS, "--checkpoint", folder / "kept", "--record", folder / "told.json"]
    command = [sys.executable, "-m", "dlguide.cli", "run", "--ranks", ranks, FOLDER / program]
    done = commands.run([*command, *words], timeout_s=180)
    assert done.ok, done.tail()
    return json.loads((folder / "told.json").read_text()), done.output


@pytest.mark.parametrize(("program", "ranks"), [("cnn_mnist.py", 1), ("cnn_mnist_hvd.py", 2)])
def test_program_trains_once_and_announces_a_finished_training(program, ranks, tmp_path):
    first, output = start(program, ranks, tmp_path)
    assert "FINISHED" not in output
    assert (first["ranks"], first["steps"]) == (ranks, STEPS // ranks)
    assert first["accuracy"] > 0.4  # guessing gives 0.1
    assert first["images_per_s"] > 0
    again, output = start(program, ranks, tmp_path)
    assert output.count("FINISHED: nothing is trained") == 1
    assert f"{STEPS // ranks} of {STEPS // ranks} steps are done" in output
    assert (again["steps"], again["images_per_s"]) == (0, None)
    # a rank that kept its random weights would spoil the mean of all ranks
    assert again["accuracy"] == pytest.approx(first["accuracy"], abs=1e-3)


def test_horovod_program_differs_by_few_lines():
    from dlguide.diagrams import difference

    found = difference(*((FOLDER / f"cnn_mnist{end}.py").read_text() for end in ("", "_hvd")))
    assert 8 <= found.count("+") <= 25
    new = "\n".join(text for mark, text in found.lines if mark == "+")
    words = ("hvd.init()", "hvd.rank() == 0", "// hvd.size()", "* hvd.size()")
    for word in (*words, "hvd.DistributedOptimizer(", "hvd.broadcast_variables("):
        assert word in new
