"""`dlguide run --transparent`: an unmodified script for one process gives the same on ranks."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dlguide.data import datasets

pytestmark = pytest.mark.timeout(300)

SCRIPTS = Path(__file__).parent / "transparent_scripts"
NOISY = ("convnet", "own_step")  # dropout, whose masks are other ones on ranks


@pytest.fixture(scope="module")
def digits():
    """A part of MNIST as a user has it: one npz file."""
    mnist = datasets.load("mnist")

    def bytes_of(images):
        return (images[..., 0] * 255).round().astype(np.uint8)

    return {
        "x_train": bytes_of(mnist.train_images[:6000]),
        "y_train": mnist.train_labels[:6000],
        "x_test": bytes_of(mnist.test_images[:5000]),
        "y_test": mnist.test_labels[:5000],
    }


def python(folder, *words):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder, capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def transparent(folder, script, ranks, *words):
    options = ["--transparent", "--oversubscribe", "--seed", 5, "-n", ranks]
    return python(folder, "-m", "dlguide.cli", "run", *options, *words, script)


def told(printed, what):
    return float(re.search(rf"^{what}: (\S+)$", printed, re.M).group(1))


@pytest.mark.parametrize("name", [*NOISY, "functional", "pipeline", "checkpoints"])
def test_script_reaches_the_accuracy_of_the_serial_run(name, digits, tmp_path):
    runs = {}
    for kind in ("serial", "ranks"):
        folder = tmp_path / kind
        folder.mkdir()
        np.savez(folder / "mnist.npz", **digits)
        script = SCRIPTS / f"{name}.py"
        if kind == "serial":
            runs[kind] = python(folder, script)
        else:
            runs[kind] = transparent(folder, script, 2, "--report", "report.json")
    serial, ranks = (runs[kind].stdout for kind in ("serial", "ranks"))
    # What rank 0 prints is what one process prints, numbers and times aside, and nothing twice.
    blank = re.compile(r"[\d.]+(e-\d+)?(?:ms|s)?")
    assert blank.sub("#", ranks) == blank.sub("#", serial)
    accuracies = [told(each, "Test accuracy") for each in (serial, ranks)]
    assert accuracies[0] > 0.8
    print(name, "serial and ranks:", accuracies)
    assert abs(accuracies[0] - accuracies[1]) <= 0.005, accuracies
    losses = [told(each, "Test loss") for each in (serial, ranks)]
    assert losses[1] == pytest.approx(losses[0], rel=0.1 if name in NOISY else 0.03)
    report = json.loads((tmp_path / "ranks" / "report.json").read_text())
    assert report["ranks"] == 2
    fit = next(each for each in report["changes"] if each["call"] == "fit")
    source = (SCRIPTS / f"{name}.py").read_text().splitlines()
    assert ".fit(" in source[fit["line"] - 1] or "fit(" in source[fit["line"] - 2]
    if name == "checkpoints":
        check_files(tmp_path)


def check_files(folder):
    """Every file that one process writes is there once, whole, and nothing else."""
    serial, ranks = folder / "serial", folder / "ranks"
    names = [
        {str(path.relative_to(each)) for path in each.rglob("*")} - {"report.json"}
        for each in (serial, ranks)
    ]
    assert names[0] == names[1]
    histories = [json.loads((each / "history.json").read_text()) for each in (serial, ranks)]
    assert histories[0].keys() == histories[1].keys()
    for key in histories[0]:
        assert histories[1][key] == pytest.approx(histories[0][key], rel=0.02, abs=0.005)
    logs = [list(csv.DictReader((each / "log.csv").open())) for each in (serial, ranks)]
    assert [row["epoch"] for row in logs[0]] == [row["epoch"] for row in logs[1]]
    epochs = [float(row["loss"]) for row in logs[1]]
    assert epochs == pytest.approx(histories[1]["loss"], rel=1e-6)


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exact")
    done = python(folder, SCRIPTS / "exact.py")
    with np.load(folder / "exact.npz") as kept:
        return done.stdout, dict(kept)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_weights_and_histories_are_those_of_one_process(ranks, exact, tmp_path):
    # dlguide.horovod.transparent.step weighs gradients, dlguide.horovod.transparent.summing adds
    # up metrics, dlguide.horovod.transparent.patches puts both into Keras, and
    # dlguide.horovod.transparent.models looks at the model first: together they change nothing.
    printed, serial = exact
    done = transparent(tmp_path, SCRIPTS / "exact.py", ranks)
    with np.load(tmp_path / "exact.npz") as kept:
        assert kept.files == list(serial)
        for name, values in serial.items():
            np.testing.assert_allclose(kept[name], values, rtol=1e-9, atol=1e-11, err_msg=name)
    assert "Batch normalization (batch_normalization)" in done.stderr
    assert "Random layers (dropout)" in done.stderr
    # With batch normalization runs differ, but a rank without samples must not disturb it.
    moving = [np.array(text.split()[1:17], float) for text in (printed, done.stdout)]
    np.testing.assert_allclose(moving[1], moving[0], atol=0.2)
