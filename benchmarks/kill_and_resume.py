"""Kill trainings at random moments, resume them, and compare with the uninterrupted one.

    python benchmarks/kill_and_resume.py --times 50

Half of the trials run on 1 rank, half on 2. The net has dropout and batch normalisation, the data
are shuffled, Adam's rate warms up and falls, and a checkpoint is written every second step. After
a random step a random rank gets SIGKILL, up to 20 ms later, so also while a checkpoint is written;
then the training is resumed from what is left. Weights, moving averages, optimizer, losses and
accuracies must equal those of the uninterrupted training bit by bit.

`--keras` does the same, on one rank, with Keras' own `fit` and `BackupAndRestore`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

# Read when TensorFlow and MPI are loaded.
os.environ |= {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "UCX_TLS": "sm,self"}
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}

import keras

from dlguide.cluster import processes
from dlguide.data import datasets
from dlguide.training import CheckpointConfig, fit, schedules
from dlguide.training.divergence import DivergenceMonitor

EPOCHS, BATCH, SAMPLES, EVERY = 2, 10, 201, 2
MNIST = datasets.load("mnist").first(SAMPLES, 200)


def net(seed):
    layers, start = keras.layers, keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(8, 3, strides=3, kernel_initializer=start),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.5, seed=seed),
            layers.Dense(10, kernel_initializer=start),
        ]
    )


def digest(model, optimizer):
    sha = hashlib.sha256()
    for variable in (*model.variables, *optimizer.variables):
        sha.update(variable.numpy().tobytes())
    return sha.hexdigest()


def train(folder):
    """Train with `fit`; give all that came out."""
    made = {}

    def build():
        made["net"] = net(1)
        return made["net"]

    def adam(rate):
        made["adam"] = keras.optimizers.Adam(rate)
        return made["adam"]

    rates = schedules.warmup("gradual", 0.02, 1, start=0.001)
    run = fit(
        build,
        MNIST,
        epochs=EPOCHS,
        batch_per_rank=BATCH,
        optimizer=adam,
        learning_rate=rates.over(schedules.linear(0.02, EPOCHS)),
        checkpoint=folder and CheckpointConfig(folder=folder, every_steps=EVERY),
        on_result=lambda **numbers: None,
    )
    came = [run.loss[-1], run.test_accuracy[-1]]
    return [digest(made["net"], made["adam"]), *came, len(run.step_s)]


def train_keras(folder):
    """Train with Keras' own loop and backup; give all that came out."""
    keras.utils.set_random_seed(1)
    model = net(1)
    rate = keras.optimizers.schedules.CosineDecay(0.001, 40, warmup_target=0.02, warmup_steps=20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    steps = []
    after = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after_step())
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(0))
    backup = keras.callbacks.BackupAndRestore(folder or tempfile.mkdtemp(), save_freq=EVERY)
    history = model.fit(
        MNIST.train_images, MNIST.train_labels, BATCH, EPOCHS, verbose=0,
        callbacks=[count, backup, after],
    )  # fmt: skip
    return [digest(model, model.optimizer), history.history["loss"][-1], 0.0, len(steps)]


def after_step():
    """Replaced in a process that is going to be killed."""


def die_after(step, delay_s):
    """Kill this process a moment after a step."""
    plain, done = DivergenceMonitor.after, []

    def count(*_, **__):
        done.append(0)
        if len(done) == step:
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def after(self, *args, **kwargs):
        count()
        plain(self, *args, **kwargs)

    DivergenceMonitor.after = after
    globals()["after_step"] = count


# What the launcher starts as a rank: it sends this program all that makes it one, waits until
# its work is done, and ends as it did.
RANK = """
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
own = {name: value for name, value in os.environ.items() if name.startswith(("PMI", "MPI"))}
socket.send_fds(line, [json.dumps(own).encode()], [int(own["PMI_FD"])])
if line.recv(1) != b"1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def in_child(work, environment=None, handle=None):
    """Do work in a copy of this process, as the rank whose environment is given."""
    process = os.fork()
    if process:
        return process
    try:
        if environment:
            os.environ.update(environment)
            os.dup2(handle, int(environment["PMI_FD"]))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
        work(int(os.environ.get("PMI_RANK", 0)))
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def on(ranks: int, work: Callable[[int], None]) -> bool:
    """Do work on ranks that need not load TensorFlow again; tell whether all came to its end.

    One rank is this process's copy. Several are copies too, to which processes that `mpiexec`
    started have handed their places. Where one dies the others are killed, as a launcher does.
    """
    if ranks == 1:
        return os.waitpid(in_child(work), 0)[1] == 0
    processes.remove_orphaned_shared_memory()
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{name}/door")
        door.listen()
        mpiexec = Path(sysconfig.get_path("scripts")) / "mpiexec.gforker"
        words = [mpiexec, "-n", str(ranks), sys.executable, "-S", "-c", RANK, f"{name}/door"]
        launcher = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines, children = [], {}
        for _ in range(ranks):
            lines.append(door.accept()[0])
            text, (handle,), _, _ = socket.recv_fds(lines[-1], 65536, 1)
            children[in_child(work, json.loads(text), handle)] = lines[-1]
            os.close(handle)
        good = True
        while children:
            process, status = os.wait()
            if children.pop(process, None) is not None and status and good:
                good = False
                for other in children:
                    os.kill(other, signal.SIGKILL)
        for line in lines:  # only now: the launcher would end the others with the first
            with contextlib.suppress(BrokenPipeError), line:
                line.sendall(b"1" if good else b"0")
        launcher.wait()
    return good


def trial(ranks, folder, victim, step, delay_s, trainer):
    """Kill a training and resume it; give what came out, which is None where it failed."""

    def die(rank):
        if rank == victim:
            die_after(step, delay_s)
        trainer(folder)

    if on(ranks, die):
        print(f"rank {victim} ended before its kill after step {step}", flush=True)
    return outcome(ranks, folder, trainer)


def outcome(ranks, folder, trainer):
    """Train to the end in a process of its own; give what came out on rank 0."""
    with tempfile.TemporaryDirectory() as name:
        answer = Path(name) / "answer.json"

        def work(rank):
            came = trainer(folder)
            if rank == 0:
                answer.write_text(json.dumps(came))

        return json.loads(answer.read_text()) if on(ranks, work) else None


def trials(ranks, times, draw, trainer):
    """Kill and resume; return how many trials were equal, and print each."""
    steps, equal = EPOCHS * -(-SAMPLES // (BATCH * ranks)), 0
    whole = outcome(ranks, None, trainer)
    with tempfile.TemporaryDirectory() as name:
        for number in range(times):
            victim, step = draw.randrange(ranks), draw.randint(1, steps - 1)
            folder = f"{name}/{number}"
            came = trial(ranks, folder, victim, step, draw.uniform(0, 0.02), trainer)
            same = came is not None and came[:3] == whole[:3]
            equal += same
            left = "failed" if came is None else f"{came[3]} of {steps} steps were left"
            print(
                f"{ranks} rank{'s' * (ranks > 1)}: rank {victim} killed after step {step}; {left}; "
                f"{'equal' if same else 'not equal'}",
                flush=True,
            )
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, choices=(1, 2), help="only on so many")
    parser.add_argument("--seed", type=int, default=0, help="of the random kills")
    parser.add_argument("--keras", action="store_true", help="Keras' BackupAndRestore")
    asked = parser.parse_args()
    draw, equal = random.Random(asked.seed), 0
    counts = {1: asked.times - asked.times // 2, 2: asked.times // 2}
    if asked.ranks or asked.keras:
        counts = {asked.ranks or 1: asked.times}
    for ranks, times in counts.items():
        equal += trials(ranks, times, draw, train_keras if asked.keras else train)
    print(f"{asked.times} trainings killed and resumed, {equal} bitwise equal")
    return 0 if equal == asked.times else 1


if __name__ == "__main__":
    sys.exit(main())
