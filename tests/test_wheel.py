"""A wheel holds the library alone, works in an empty folder, and brings the published tables."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
MINE = {"PYTHONNOUSERSITE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
HIDDEN = ("PYTHONPATH", "DLGUIDE_DATA", "DLGUIDE_WHEELHOUSE")


def run(command, cwd, **env):
    env = {key: value for key, value in os.environ.items() if key not in HIDDEN} | MINE | env
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build from a copy: an old build/ of the clone must not get into it."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for name in ("dlguide", "data/published"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", out)
    run([*PIP, "wheel", *options, tree], tree)
    return next(out.glob("dlguide-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Give a function that runs Python on the wheel's dlguide, in an empty folder."""
    target = tmp_path_factory.mktemp("site")
    run([*PIP, "install", "--no-deps", "--no-index", "-q", "--target", target, wheel], target)

    def python(*arguments, cwd, **env):
        return run([sys.executable, "-P", *arguments], cwd, PYTHONPATH=str(target), **env)

    python.target = target
    return python


def test_it_holds_the_library_and_the_published_tables_only(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"dlguide", next(top for top in tops if top.endswith(".dist-info"))}
    tables = {Path(name).name for name in names if "/published/" in name}
    assert tables == {path.name for path in (ROOT / "data" / "published").iterdir()}
    files = {name for name in names if name.startswith("dlguide/") and "/published/" not in name}
    there = (path for path in (ROOT / "dlguide").rglob("*.*") if "__pycache__" not in path.parts)
    assert files == {str(path.relative_to(ROOT)) for path in there if path.is_file()}
    assert not [name for name in names if "mnist" in name.lower() and not name.endswith(".py")]


OWN_ARRAYS = """
import sys
from pathlib import Path
import numpy as np
import dlguide
from dlguide import published, training
from dlguide.data import datasets
from dlguide.errors import MissingComponentError
assert Path(dlguide.__file__).is_relative_to(sys.argv[1]), dlguide.__file__
assert published.load("throughput")
assert not [name for name in ("tensorflow", "mpi4py", "matplotlib") if name in sys.modules]
try:
    datasets.load("mnist")
except MissingComponentError as error:
    assert "DLGUIDE_DATA" in str(error), error
else:
    raise SystemExit("MNIST was found")

import keras
random = np.random.default_rng(0)
labels = random.integers(0, 2, 600).astype(np.int32)
images = random.random((600, 8, 8, 1), np.float32) + labels[:, None, None, None]
mine = datasets.Dataset("mine", images[:500], labels[:500], images[500:], labels[500:], 2)
layers = keras.layers
net = lambda: keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(2)])
result = training.fit(net, mine, epochs=3)
print("accuracy", result.test_accuracy[-1])
"""


def test_a_researcher_trains_on_arrays_of_their_own(installed, tmp_path):
    assert "accuracy" in installed("-c", OWN_ARRAYS, installed.target, cwd=tmp_path)


def test_predict_reads_measured_points(installed, tmp_path):
    points = "1:210,2:398,4:780"
    command = ("-m", "dlguide.cli", "predict", "--points", points, "--workers", "64")
    out = installed(*command, cwd=tmp_path)
    assert "64" in out
    assert (tmp_path / "build" / "prediction.png").stat().st_size > 1000
