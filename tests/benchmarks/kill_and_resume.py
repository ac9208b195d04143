"""Kill trainings at random moments, resume them, and compare with the uninterrupted one.

    python tests/benchmarks/kill_and_resume.py --times 50

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
import io
import json
import os
import random
import signal
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from on_ranks import mpiexec

EPOCHS, BATCH, SAMPLES, EVERY = 2, 10, 201, 2


def net(seed):
    import keras

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
    import keras

    from dlguide.data import datasets
    from dlguide.training import fit, schedules

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
        datasets.load("mnist").first(SAMPLES, 200),
        epochs=EPOCHS,
        batch=BATCH,
        optimizer=adam,
        schedule=rates.over(schedules.linear(0.02, EPOCHS)),
        checkpoint=folder,
        save_every=None if folder is None else EVERY,
        report=lambda **told: None,
    )
    came = [run.loss[-1], run.test_accuracy[-1]]
    return [digest(made["net"], made["adam"]), *came, len(run.step_s)]


def train_keras(folder):
    """Train with Keras' own loop and backup; give all that came out."""
    import keras

    from dlguide.data import datasets

    keras.utils.set_random_seed(1)
    data = datasets.load("mnist").first(SAMPLES, 200)
    model = net(1)
    rate = keras.optimizers.schedules.CosineDecay(0.001, 40, warmup_target=0.02, warmup_steps=20)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    steps = []
    after = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: after_step())
    count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(0))
    backup = keras.callbacks.BackupAndRestore(folder or tempfile.mkdtemp(), save_freq=EVERY)
    history = model.fit(
        data.train_images, data.train_labels, BATCH, EPOCHS, verbose=0,
        callbacks=[count, backup, after],
    )  # fmt: skip
    return [digest(model, model.optimizer), history.history["loss"][-1], 0.0, len(steps)]


def after_step():
    """Replaced in a process that is going to be killed."""


def die_after(step, delay_s):
    """Kill this process a moment after a step."""
    from dlguide.training.divergence import Watch

    plain, done = Watch.after, []

    def count(*_, **__):
        done.append(0)
        if len(done) == step:
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def after(self, *args, **kwargs):
        count()
        plain(self, *args, **kwargs)

    Watch.after = after
    globals()["after_step"] = count


def role(asked):
    """What a rank does that this program has started."""
    trainer = train_keras if asked.keras else train
    if asked.role == "die":
        folder, rank, step, delay_s = json.loads(asked.work)
        if rank == int(os.environ["PMI_RANK"]):
            die_after(step, delay_s)
        trainer(folder)
        Path(f"{folder}-ended").touch()
        return
    results = []
    for folder in [None, *json.loads(asked.work)]:
        try:
            results.append(trainer(folder))
        except Exception as error:
            results.append([f"{type(error).__name__}: {error}", 0.0, 0.0, 0])
    if os.environ["PMI_RANK"] == "0":
        Path(asked.answer).write_text(json.dumps(results))


def start(ranks, asked, timeout_s, **work):
    words = [f"--{name}={value}" for name, value in work.items()]
    words += ["--keras"] * asked.keras
    return mpiexec(ranks, [sys.executable, "-m", "mpi4py", __file__, *words], timeout_s)


def trials(ranks, times, draw, asked):
    """Kill and resume; return how many trials were equal, and print the others."""
    steps = EPOCHS * -(-SAMPLES // (BATCH * ranks))
    with tempfile.TemporaryDirectory() as name:
        works = []
        for trial in range(times):
            folder = str(Path(name) / str(trial))
            works.append((folder, draw.randrange(ranks), draw.randint(1, steps - 1)))
            killing = json.dumps([*works[-1], draw.uniform(0, 0.02)])
            start(ranks, asked, 60, role="die", work=killing)
            if Path(f"{folder}-ended").exists():
                print(f"trial {trial} ended before its kill", flush=True)
            print(".", end="", flush=True)
        folders = json.dumps([folder for folder, _rank, _step in works])
        answer = Path(name) / "answer.json"
        done = start(ranks, asked, 60 + 10 * times, role="resume", work=folders, answer=answer)
        if not done.ok:
            sys.exit(done.output)
        whole, *resumed = json.loads(answer.read_text())
    equal = 0
    for (_folder, rank, step), one in zip(works, resumed, strict=True):
        equal += one[:3] == whole[:3]
        told = "" if one[:3] == whole[:3] else f", not equal: {one}"
        print(f"\n{ranks} ranks: rank {rank} killed after step {step}, {one[3]} steps left{told}")
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--ranks", type=int, choices=(1, 2), help="only on so many")
    parser.add_argument("--seed", type=int, default=0, help="of the random kills")
    parser.add_argument("--keras", action="store_true", help="Keras' BackupAndRestore")
    for hidden in ("role", "work", "answer"):
        parser.add_argument(f"--{hidden}", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.role:
        with contextlib.redirect_stdout(io.StringIO()):
            role(asked)
        return 0
    draw, equal = random.Random(asked.seed), 0
    counts = {1: asked.times - asked.times // 2, 2: asked.times // 2}
    if asked.ranks or asked.keras:
        counts = {asked.ranks or 1: asked.times}
    for ranks, times in counts.items():
        equal += trials(ranks, times, draw, asked)
    print(f"{asked.times} trainings killed and resumed, {equal} bitwise equal")
    return 0 if equal == asked.times else 1


if __name__ == "__main__":
    sys.exit(main())
