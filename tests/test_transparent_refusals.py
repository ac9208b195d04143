"""What cannot be made parallel safely is refused with the reason, on all ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import dlguide, left_by

from dlguide.cluster import script_lint

pytestmark = pytest.mark.timeout(200)

SCRIPTS = Path(__file__).parent / "transparent_scripts"


def run(script, *words, cwd=None):
    return dlguide("run", *words, script, timeout_s=180, cwd=cwd)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import mpi4py.MPI", "imports mpi4py"),
        ("from mpi4py import MPI", "imports mpi4py"),
        ("import numpy, horovod.tensorflow as hvd", "imports Horovod"),
        ("from dlguide import horovod", "imports dlguide.horovod"),
        ("import dlguide.horovod as hvd", "imports dlguide.horovod"),
        ("from torch import nn", "imports PyTorch"),
        ("s = tf.distribute.MirroredStrategy()", "`tf.distribute.MirroredStrategy`"),
        ("s = tf.distribute.experimental.ParameterServerStrategy(r)", "distributes by itself"),
        ("keras.distribution.set_distribution(d)", "`keras.distribution`"),
        ("rank = int(os.environ['PMI_RANK'])", "(PMI_RANK)"),
        ("rank = os.getenv('OMPI_COMM_WORLD_RANK', 0)", "(OMPI_COMM_WORLD_RANK)"),
        ("rank = os.environ.get('SLURM_PROCID')", "(SLURM_PROCID)"),
        ("if environ['WORLD_SIZE']: pass", "(WORLD_SIZE)"),
        ("os.environ['KERAS_BACKEND'] = 'jax'", "KERAS_BACKEND to 'jax'"),
        ("os.environ.setdefault('KERAS_BACKEND', 'torch')", "KERAS_BACKEND to 'torch'"),
        ("tf.train.Checkpoint(model=model).save(p)", "`tf.train.Checkpoint`"),
        ("w = tf.io.TFRecordWriter(path)", "`tf.io.TFRecordWriter`"),
        ("f = h5py.File(path, 'w')", "`h5py.File`"),
        ("f = tf.io.gfile.GFile(path, mode='wb')", "`tf.io.gfile.GFile`"),
        ("c = tf.train.Checkpoint(m=m); c.restore(a); c.write(b)", "`tf.train.Checkpoint`"),
        ("self.m = tf.train.CheckpointManager(c, p, 3); self.m.save()", "`tf.train.Checkpoint"),
        ("from keras import distribution", "`keras.distribution`"),
        ("import keras.distribution as d", "`keras.distribution`"),
        ("from tensorflow.distribute import MirroredStrategy", "`tf.distribute`"),
        ("import tensorflow.distribute as d", "`tf.distribute`"),
        ("if 'OMPI_COMM_WORLD_RANK' in os.environ: pass", "(OMPI_COMM_WORLD_RANK)"),
        ("e = os.environ; e.get('RANK')", "(RANK)"),
        ("from os import environ as e; e['LOCAL_RANK']", "(LOCAL_RANK)"),
        ("MPI = importlib.import_module('mpi4py.MPI')", "imports mpi4py"),
        ("hvd = __import__('horovod')", "imports Horovod"),
    ],
)
def test_text_that_forbids_it_is_found_with_its_line(line, said, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"def f():\n    pass\n\n{line}\n")
    found = script_lint.check(str(script))
    assert len(found) == 1
    assert found[0].startswith("line 4: ")
    assert said in found[0]


def test_text_that_only_looks_alike_is_let_pass(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import horovodish, torchvision_names\nos.environ['KERAS_BACKEND'] = 'tensorflow'\n"
        "os.environ['PMI_RANK_OF_MINE']\nd['RANK'] = 1\nprint(table['RANK'], os.environ['HOME'])\n"
        "class Strategy: pass\ns = planner.Strategy()\nh5py.File(path, 'r')\nh5py.File(path)\n"
        "tf.train.Checkpoint(m=m).restore(p)\nc = tf.train.Checkpoint(m=m)\nc.restore(p)\n"
        "m.save(p)\ntf.io.gfile.GFile(p).read()\ntf.io.gfile.GFile(p, 'rb').read()\n"
        "table.get('RANK')\n'RANK' in table\n'HOME' in os.environ\n__import__(name)\n"
    )
    assert script_lint.check(str(script)) == []


def test_a_refused_text_starts_no_rank_and_names_every_reason(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import horovod.keras\nimport torch\n")
    done = run(script, "--transparent")
    assert done.returncode != 0
    assert f"{script} cannot be made parallel:\n\n  line 1: imports Horovod" in done.stderr
    assert "\n  line 2: imports PyTorch" in done.stderr
    assert "Traceback" not in done.stderr
    script.write_text("x = (1,\n")
    assert "`script` must be a Python script" in run(script, "--transparent").stderr
    script.write_text("print(1)\n")
    assert "be given with `--transparent` only" in run(script, "--seed", 1).stderr


def test_what_shows_when_it_runs_is_refused_on_all_ranks():
    done = run(SCRIPTS / "forbidden.py", "--transparent", "--seed", 5, "-n", 2)
    assert done.returncode == 0, done.stderr
    source = (SCRIPTS / "forbidden.py").read_text().splitlines()
    expected = {
        "loop": "applies gradients in its own loop",
        "train_on_batch": "batch by batch with `train_on_batch`",
        "endless": "its data never end",
        "sum": "not a mean over the batch (reduction='sum')",
        "sum by hand": "is not a mean over the batch",
        "samples meet": "its loss contrast is not a mean over the batch",
        "checkpoint": "writes with `tf.train.Checkpoint`",
        "own loop": "its own training loop in `make_train_function`",
        "fixed batch": "built for batches of 8 samples only",
        "small batch": "its batch of 1 has not one sample for each of the 2 ranks",
        "other data": "the ranks do not get the same data (found in the first step)",
        "other order later": "the ranks do not get the same data (found after 6 steps)",
        "other validation data": "the ranks do not get the same data",
        "recurrent": "`in_a_loop` is in a loop or a branch",
        "penalized": "the gradient of a gradient through the batch normalization `twice`",
        "no rows": "its data hold no batches",
    }
    for name, said in expected.items():
        for rank in (0, 1):
            lines = [x for x in done.stderr.splitlines() if x.startswith(f"[{rank}] {name}: ")]
            assert len(lines) == 1, name
            found = re.match(r".*: refused line (\d+): (.*)", lines[0])
            assert found, lines[0]
            assert said in found[2]
            if name not in ("loop", "recurrent", "penalized"):
                assert f'"{name}": ' in source[int(found[1]) - 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import keras\nprint(keras.__version__)\n", "never trains with `fit`"),
        ("import sys\nsys.exit('no data here')\n", "left early with sys.exit('no data here')"),
        ("import os\nos._exit(0)\n", "ended before the work was done"),
    ],
)
def test_a_script_that_does_not_train_or_ends_itself_is_an_error(text, said, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(text)
    done = run(script, "--transparent", "-n", 2)
    assert done.returncode != 0
    assert said in done.stderr
    assert not left_by(done.pid)


def test_a_stop_that_one_rank_decides_stops_all():
    done = run(SCRIPTS / "stopping.py", "--transparent", "-n", "2", cwd=SCRIPTS)
    assert done.returncode == 0, done.stderr
    assert 0 < int(re.search(r"batches (\d+)", done.stdout)[1]) < 600
