"""The training that lesson 73 kills again and again: `faults.train` starts it on ranks.

It goes on from what was saved last: in its folder, or in an elastic run in the supervisor's memory.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from dlcourse import faults, small_mlp
from dlguide.collectives.elastic import Committed
from dlguide.files import atomic_write

BATCH, RATE, MOMENTUM, HIDDEN = 128, 0.05, 0.9, 256  # the batch is global


def main(
    folder: Path, steps: int, every: int, save_s: float, death: float, victim: int, at_step: int = 0
) -> None:
    """Train up to `steps`, and save after each `every` of them.

    The victim dies at the time `death`, and after `at_step` steps if it is not alone.
    """
    comm, memory, saved = MPI.COMM_WORLD, Committed.of_rank(), folder / "saved"
    if comm.rank == victim:
        faults.die_at(death)
    weights = small_mlp.initial_weights(0, HIDDEN)
    state = {"step": 0, "weights": weights, "velocities": [np.zeros_like(w) for w in weights]}
    if memory is not None and memory.number:
        state = pickle.loads(memory.newest()[1])
    elif memory is None and saved.exists():
        state = pickle.loads(saved.read_bytes())
    images, labels = np.load(folder / "images.npy"), np.load(folder / "labels.npy")
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(what: str, step: int) -> None:
        if comm.rank == 0:
            os.write(log, f"{what} {step} {time.time()} {comm.size}\n".encode())

    note("begins", state["step"])
    for step in range(state["step"], steps):
        draw = np.random.default_rng(step).integers(len(images), size=BATCH)
        mine = draw[comm.rank :: comm.size]  # the batch does not depend on the number of ranks
        sums = small_mlp.gradients(state["weights"], images[mine], labels[mine])
        for weight, velocity, own in zip(state["weights"], state["velocities"], sums, strict=True):
            total = np.empty_like(own)
            comm.Allreduce(own, total)
            velocity *= MOMENTUM
            velocity -= RATE / BATCH * total
            weight += velocity
        state["step"] = step + 1
        note("step", step + 1)
        if step + 1 == at_step and comm.rank == victim and comm.size > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if (step + 1) % every == 0:
            if comm.rank == 0:
                save(state, memory, saved, save_s)
            comm.Barrier()
            note("saved", step + 1)


def save(state: dict, memory: Committed | None, saved: Path, save_s: float) -> None:
    """Commit the state, or write it to a file that takes at least `save_s` (s)."""
    contents = pickle.dumps(state, protocol=5)
    if memory is not None:
        memory.commit([contents])
        return
    end = time.perf_counter() + save_s
    with atomic_write(saved, "wb") as file:
        file.write(contents)
        time.sleep(max(0.0, end - time.perf_counter()))  # it counts only when it is complete


if __name__ == "__main__":
    folder, steps, every, save_s, death, *rest = sys.argv[1:]
    main(Path(folder), int(steps), int(every), float(save_s), float(death), *map(int, rest))
