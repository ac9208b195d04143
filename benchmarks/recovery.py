"""Time from the death of a rank until the next step is done, in four ways to go on.

    python benchmarks/recovery.py

The same small TensorFlow training loses rank 1 of 2 at step 30: `restart` starts both ranks again
from a checkpoint; `elastic` goes on with one rank under `dlguide run --elastic`, in new processes;
`Horovod over Gloo` is Horovod's own elastic mode, which keeps the process that is left;
`restart, NumPy` is lesson 73's training, whose ranks load no TensorFlow: there the time ends where
the next step begins. Horovod gives up a host that lost a process, so here it sees two, two names of
this machine. Writes `data/measured/recovery.csv`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dlcourse import faults, measured
from dlguide.cluster import RankError, run_script

WAYS = ("restart, NumPy", "restart", "elastic", "Horovod over Gloo")
LIMIT_S = 60.0
TRAINING = """
import os, pickle, signal, sys, time
from pathlib import Path
import numpy as np
import tensorflow as tf

way, folder = sys.argv[1], Path(sys.argv[2])
w = tf.Variable(tf.zeros((784, 10)))
images = tf.random.stateless_uniform((64, 784), (1, 2))
if way == "Horovod over Gloo":
    import horovod.tensorflow as hvd
    hvd.init()
    state = hvd.elastic.TensorFlowState([w], step=0)
else:
    import dlguide.horovod as hvd
    hvd.init()
    state = hvd.elastic.State(step=0, w=w.numpy())
saved = folder / "saved"
if way == "restart" and saved.exists():
    state.step, state.w = pickle.loads(saved.read_bytes())

@tf.function
def gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(images @ w - 1.0))
    return tape.gradient(loss, w)

def train(state):
    if way != "Horovod over Gloo":
        w.assign(state.w)
    while state.step < 60:
        if hvd.rank() == 1 and state.step == 30 and not (folder / "died").exists():
            (folder / "died").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        w.assign_sub(0.1 * hvd.allreduce(gradient(), name="gradient"))
        state.step += 1
        if hvd.rank() == 0 and (folder / "died").exists() and not (folder / "again").exists():
            (folder / "again").write_text(f"{time.time()} {state.step} {hvd.size()}")
        if way != "Horovod over Gloo":
            state.w = w.numpy()
        if way == "restart" and hvd.rank() == 0:
            part = folder / "part"
            part.write_bytes(pickle.dumps((state.step, state.w)))
            os.replace(part, saved)
        elif way != "restart":
            state.commit()
        time.sleep(0.02)

(train if way == "restart" else hvd.elastic.run(train))(state)
"""


def start(way: str, script: Path, folder: Path) -> None:
    """Train to the end, however often ranks are started."""
    if way == "Horovod over Gloo":
        hosts = folder / "hosts.sh"
        hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
        hosts.chmod(0o755)
        words = ["-m", "horovod.runner.launch", "--gloo", "-np", "2", "--min-np", "1", "--max-np"]
        words += ["2", "--network-interfaces", "lo", "--host-discovery-script", str(hosts)]
        words += [sys.executable, str(script), way, str(folder)]
        log = (folder / "log").open("wb")
        code = {"HOROVOD_LOG_LEVEL": "error", "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(
            [sys.executable, *words], stdout=log, stderr=log, timeout=LIMIT_S,
            env=os.environ | code, check=False,
        )  # fmt: skip
        if done.returncode or not (folder / "again").exists():
            raise RuntimeError((folder / "log").read_text()[-3000:])
        return
    options = {"min_ranks": 1} if way == "elastic" else {}
    for _ in range(2):
        try:
            run_script(str(script), [way, str(folder)], 2, oversubscribe=True, **options)
            return
        except RankError as error:
            if error.kind != "died" or way == "elastic":
                raise


def row(way: str, turn: int) -> dict:
    """Lose a rank once, and return a row of the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if way == "restart, NumPy":
            run = faults.train(folder, [2.5, 5.0], every=50, seed=turn)
            found = {"seconds": run.restart_s[1], "ranks_after": run.events[-1].ranks}
        else:
            script = folder / "training.py"
            script.write_text(TRAINING)
            start(way, script, folder)
            died = float((folder / "died").read_text())
            again, step, ranks = (folder / "again").read_text().split()
            found = {"seconds": float(again) - died, "ranks_after": int(ranks)}
            assert int(step) > 29 or way == "restart", step
    return {"way": way, "turn": turn} | found | {"seconds": round(found["seconds"], 2)}


def main() -> None:
    """Measure in turns, and write the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--turns", type=int, default=3)
    options.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    chosen = options.parse_args()
    table = []
    for turn in range(chosen.turns):
        for way in chosen.ways:
            began = time.monotonic()
            table.append(row(way, turn))
            print(table[-1], f"({time.monotonic() - began:.0f} s)", flush=True)
            measured.write("recovery", table, range(chosen.turns))
    for way in chosen.ways:
        print(way, np.median([each["seconds"] for each in table if each["way"] == way]), "s")


if __name__ == "__main__":
    main()
