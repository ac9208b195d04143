"""The programs of notebook 51: they train, and what is finished is announced, not trained again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from lanes import long

from dlguide import commands
from dlguide.training import checkpoint

FOLDER = Path(__file__).resolve().parents[1] / "notebooks" / "programs"
STEPS = 60
pytestmark = pytest.mark.timeout(400)


def start(program, ranks, folder, steps=STEPS):
    words = ["--steps", steps, "--checkpoint", folder / "kept", "--record", folder / "record.json"]
    command = [sys.executable, "-m", "dlguide", "run", "--ranks", ranks, FOLDER / program]
    done = commands.run([*command, *words], timeout_s=180)
    assert done.ok, done.tail()
    return json.loads((folder / "record.json").read_text()), done.output


@pytest.mark.parametrize(("program", "ranks"), [("cnn_mnist.py", 1), ("cnn_mnist_hvd.py", 2)])
def test_program_trains_once_and_announces_a_finished_training(program, ranks, tmp_path):
    first, output = start(program, ranks, tmp_path)
    assert "FINISHED" not in output
    assert (first["ranks"], first["steps"]) == (ranks, STEPS // ranks)
    assert first["accuracy"] > 0.4  # guessing gives 0.1
    # one rank finds it finished too, whatever number of ranks has trained
    again, output = start(program, 1, tmp_path)
    assert output.count("FINISHED: nothing is trained") == 1
    assert f"{50 * STEPS} of {50 * STEPS} images are done" in output
    assert (again["steps"], again["images_per_s"]) == (0, None)
    # a rank that kept its random weights would spoil the mean of all ranks
    assert again["accuracy"] == pytest.approx(first["accuracy"], abs=1e-3)


FEW = """
import runpy, sys
from dlguide.data import datasets

few = datasets.load().first(600, 100)
datasets.load = lambda: few
sys.argv = [{program!r}, *sys.argv[1:]]
runpy.run_path({program!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "ranks"), [("cnn_mnist_hvd.py", 2), *long(("cnn_mnist.py", 1))]
)
def test_steps_beyond_the_end_of_the_images_are_taken(program, ranks, tmp_path):
    script = tmp_path / "few.py"
    script.write_text(FEW.format(program=str(FOLDER / program)))
    record, _ = start(script, ranks, tmp_path, steps=16 * ranks)  # 12 / ranks of them in an epoch
    assert record["steps"] == 16
    kept = checkpoint.latest(tmp_path / "kept")
    arrays = checkpoint.read(kept)[1]
    assert checkpoint.read(kept)[0].step == 16 * ranks * 50
    assert any(array.shape == () and int(array) == 16 for array in arrays)  # its own count
