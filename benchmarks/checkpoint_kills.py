"""Kill a process while it writes checkpoints, many times, and load the last one each time.

    python benchmarks/checkpoint_kills.py --times 200

One process after the other saves a net of 20 MB, optimizer included, as often as it can, every
third time in the middle of an epoch, and gets SIGKILL at a random moment; the next one goes on in
the same folder. After each kill the last checkpoint must load, hold the step that was saved last
in every number, and be the last one that the killed process told of, or the one after it. The two
numbers at the end are the kills after which that was so, and those that hit an unfinished file.

Last, a net of that size is trained with such checkpoints: for how long each stops the training,
when it waits for the disk and when a thread writes (`CheckpointConfig(asynchronous=True)`).
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
from report import compare

from dlguide.training import checkpoint
from dlguide.training.checkpoint import CheckpointError, Within

Model = namedtuple("Model", "weights")
Optimizer = namedtuple("Optimizer", "variables")


class Variable:
    """As much of a Keras variable as a checkpoint needs: all its numbers are the last step."""

    def __init__(self, path, size):
        self.path, self.dtype, self.shape = path, "float32", (size,)
        self.value = np.zeros(size, np.float32)

    def __array__(self, dtype=None, copy=None):
        return self.value


def save_for_ever(folder, step, told):
    """Save step after step and tell the number of each that is done."""
    size = 20_000_000 // 4 // 3
    model = Model([Variable("kernel", size)])
    rule = Optimizer([Variable("adam/momentum", size), Variable("adam/velocity", size)])
    while True:
        step += 1
        for variable in (*model.weights, *rule.variables):
            variable.value = np.full_like(variable.value, step)
        within = Within(1, {"ranks": 1}, (step.to_bytes(8, "little"),)) if step % 3 else None
        checkpoint.save(folder, model, rule, step, step // 3, within=within)
        os.write(told, step.to_bytes(8, "little"))


def kill_one(folder, done, draw):
    """Let a process save and kill it; give the last step it told, and whether a save was hit."""
    told, tells = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(told)
        save_for_ever(folder, done, tells)
    os.close(tells)
    first = os.read(told, 8)
    time.sleep(draw.uniform(0, 0.15))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    with open(told, "rb") as rest:
        last = (first + rest.read())[-8:]
    return int.from_bytes(last, "little"), (folder / "checkpoint.partial").exists()


def wrong(folder, told):
    """Say what is wrong with the last checkpoint; empty when it is good."""
    path = checkpoint.latest(folder)
    try:
        found, arrays = checkpoint.read(path)
    except CheckpointError as error:
        return str(error)
    if found.step not in (told, told + 1):
        return f"{path} holds step {found.step}, told was {told}"
    if not all((array == found.step).all() for array in arrays):
        return f"{path} mixes steps"
    if found.within and found.within.states != (found.step.to_bytes(8, "little"),):
        return f"{path} holds another step's state"
    return ""


def stalls(folder):
    """Train with both kinds of checkpoints; give the stalls of each (s), and the bytes."""
    import keras

    from dlguide.training import CheckpointConfig, FitConfig, SingleProcess, fit

    def net():
        layers = keras.layers
        shapes = [layers.Flatten(), layers.Dense(2000, "relu"), layers.Dense(10)]
        return keras.Sequential([keras.Input((28, 28, 1)), *shapes])

    found = []
    for asynchronous in (False, True):
        saves = CheckpointConfig(
            folder=folder / str(asynchronous), every_steps=20, asynchronous=asynchronous
        )
        config = FitConfig(samples=6000, evaluate=False)
        run = fit(
            net, epochs=4, checkpoint=saves, comm=SingleProcess(),
            config=config, on_result=lambda **_: None,
        )  # fmt: skip
        # the last phase waits for what is still being written
        found.append([end - begin for name, begin, end in run.phases if name == "checkpoint"][:-1])
    return *found, checkpoint.latest(saves.folder).stat().st_size


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=200)
    times = parser.parse_args().times
    draw, good, hit, step = random.Random(0), 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for _ in range(times):
            told, unfinished = kill_one(folder, step, draw)
            problem = wrong(folder, told)
            good, hit = good + (not problem), hit + unfinished
            if problem:
                print(problem, flush=True)
            step = checkpoint.read(checkpoint.latest(folder))[0].step
        if times:
            nbytes = checkpoint.latest(folder).stat().st_size
            print(
                f"{times} kills, {nbytes / 1e6:.1f} MB a checkpoint: the last one loads after "
                f"{good}; {hit} left an unfinished file, {step} checkpoints were written"
            )
        plain_s, asynchronous_s, nbytes = stalls(folder)
    what = f"stall of a checkpoint of {nbytes / 1e6:.1f} MB / of one written asynchronously"
    count = min(len(plain_s), len(asynchronous_s))
    compare(what, asynchronous_s[:count], plain_s[:count])
    return 0 if good == times else 1


if __name__ == "__main__":
    sys.exit(main())
