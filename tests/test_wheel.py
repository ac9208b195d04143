"""A wheel holds the library alone, works in an empty folder, and brings the published tables."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from hidden_packages import hide
from packaging.requirements import Requirement

from dlguide.errors import EXTRAS

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
    assert "`dlguide data fetch mnist`" in str(error), error
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


WITHOUT_EXTRAS = """
import numpy as np
from dlguide.cluster import Cluster
from dlguide.errors import MissingComponentError

def summed(comm):
    return float(comm.allreduce(np.arange(4.0) * (comm.rank + 1)).sum())

def trained(comm):
    from dlguide import fit
    fit("mlp")

with Cluster(ranks=2) as cluster:
    assert cluster.run(summed) == [18.0, 18.0]
    try:
        cluster.run(trained)
    except Exception as error:
        assert "pip install 'dlguide[tensorflow]'" in str(error), error

def build():
    from dlguide import models
    models.build("mlp")

def draw():
    from dlguide.plots.figures import figure
    figure()

def fetch():
    from dlguide.data import download
    download.fetch_file("http://localhost/file", "file")

def records():
    from dlguide.data import formats
    with formats.create("records", "tfrecord") as writer:
        writer.append(formats.Sample(b"data"))

def horovod():
    import dlguide.horovod

extras = {build: "tensorflow", draw: "plots", fetch: "data", records: "data"}
for use, extra in {**extras, horovod: "tensorflow"}.items():
    try:
        use()
    except MissingComponentError as error:
        assert str(error).endswith(f"`pip install 'dlguide[{extra}]'`."), error
    else:
        raise SystemExit(f"{use.__name__} works without its extra")
print("well")
"""


@pytest.fixture
def bare(installed, tmp_path):
    """Give a function that runs Python where no package of an extra can be imported."""
    return without(installed, tmp_path, *EXTRAS)


def without(installed, tmp_path, *packages):
    """Give a function that runs Python on the wheel's dlguide where packages are missing."""
    (tmp_path / "site").mkdir()
    env = hide(tmp_path / "site", *packages)
    env["PYTHONPATH"] = f"{tmp_path / 'site'}{os.pathsep}{installed.target}"

    def python(*arguments, **more):
        return run([sys.executable, "-P", *arguments], tmp_path, **env | more)

    return python


def test_ranks_start_without_extras_and_what_needs_one_says_its_command(bare, tmp_path):
    (tmp_path / "script.py").write_text(WITHOUT_EXTRAS)
    assert bare("script.py") == "well\n"
    assert "Usage" in bare("-m", "dlguide", "--help")


TRAINED = """
import keras
import numpy as np

import dlguide.distributed as dd

dd.init()
keras.utils.set_random_seed(dd.rank())  # other initial weights on each rank
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(dd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
inputs = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
shard = dd.shard(inputs, inputs.sum(1, keepdims=True), batch_size=8)
history = model.fit(shard, epochs=20, verbose=0, callbacks=[dd.callbacks.Broadcast()])
assert history.history["loss"][-1] < 0.01 * history.history["loss"][0]
print("rank", dd.rank(), "of", dd.size(), keras.backend.backend(), model.get_weights()[0].ravel())
"""
BACKENDS = ("jax", "tensorflow", "torch")


def needs(backend):
    how = {"torch": "PyTorch is an optional part: `make pytorch`"}
    absent = importlib.util.find_spec(backend) is None
    reason = how.get(backend, f"{backend} is not installed: `make {backend}`")
    return pytest.param(backend, marks=pytest.mark.skipif(absent, reason=reason))


@pytest.mark.parametrize("backend", [needs(each) for each in BACKENDS])
def test_two_ranks_train_on_one_backend_without_the_others_and_without_horovod(
    backend, installed, tmp_path
):
    others = [each for each in BACKENDS if each != backend]
    python = without(installed, tmp_path, "horovod", *others, "matplotlib", "pooch")
    (tmp_path / "train.py").write_text(TRAINED)
    out = python("-m", "dlguide", "run", "-n", "2", "train.py", KERAS_BACKEND=backend)
    found = dict(re.findall(r"rank (\d) of 2 (.*)", out))
    assert set(found) == {"0", "1"}
    assert found["0"] == found["1"]
    assert found["0"].startswith(f"{backend} [")


@pytest.mark.parametrize("backend", BACKENDS)
def test_backend_that_is_not_installed_is_named_with_its_command(backend, installed, tmp_path):
    python = without(installed, tmp_path, backend, "horovod")
    code = (
        "from dlguide import distributed, errors\n"
        "try:\n    distributed.init()\n"
        "except errors.MissingComponentError as error:\n    print(error)"
    )
    said = f"This needs {backend}, which is not installed: `pip install 'dlguide[{backend}]'`.\n"
    assert python("-c", code, KERAS_BACKEND=backend) == said


def test_required_packages_are_few_and_none_of_an_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {Requirement(line).name for line in project["dependencies"]}
    assert len(needed) <= 14
    extras = project["optional-dependencies"]
    brought = {extra: {Requirement(line).name for line in extras[extra]} for extra in extras}
    for module, extra in EXTRAS.items():
        name = module.replace("google.", "").replace("_crc32c", "-crc32c")
        assert name in brought[extra] - needed
    for backend in BACKENDS:  # `dlguide.distributed` trains with one extra
        assert "keras" in brought[backend]


def test_predict_reads_measured_points(installed, tmp_path):
    points = "1:210,2:398,4:780"
    command = ("-m", "dlguide", "predict", "--points", points, "--workers", "64")
    out = installed(*command, cwd=tmp_path)
    assert "64" in out
    assert (tmp_path / "build" / "prediction.png").stat().st_size > 1000
