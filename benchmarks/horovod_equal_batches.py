"""The program of lesson 51 at equal global batches, and the parts of its step.

    python benchmarks/horovod_equal_batches.py        # about four minutes

In turns, `BLOCKS` times: one process with a thread for each core; one process of one thread alone;
two and four of them side by side that exchange nothing; two ranks; four ranks on two cores. Every
run makes the same number of steps; the first ten are not counted. `fast_ms`, the fastest tenth, is
the better measure on a machine with other work on it.
"""

import os
import runpy
import sys
from pathlib import Path

import dlguide
from dlcourse import measured

BLOCKS, STEPS = 6, 60
FOLDER = Path(__file__).parents[1] / "notebooks" / "programs"
SERIAL, PARALLEL = FOLDER / "cnn_mnist.py", FOLDER / "cnn_mnist_hvd.py"
# way -> (ranks that are started, those that take part, program, batches of each of them)
WAYS = {
    "1 process": (1, [0], SERIAL, (50, 100)),
    "1 thread": (2, [0], SERIAL, (50,)),
    "2 apart": (2, [0, 1], SERIAL, (50,)),
    "4 apart": (4, [0, 1, 2, 3], SERIAL, (25,)),
    "2 ranks": (2, [0, 1], PARALLEL, (25, 50)),
    "4 ranks": (4, [0, 1, 2, 3], PARALLEL, (25,)),
}


def step_ms(path, steps, batch):
    """Run a program on this rank, and return its median and its fast steps (10 %) in ms."""
    import numpy as np

    os.environ.pop("HOROVOD_CYCLE_TIME", None)
    sys.argv = [path, "--steps", str(steps), "--batch", str(batch)]
    clock = runpy.run_path(path, run_name="__main__")["clock"]
    return 1e3 * np.quantile(np.diff(clock.ends[9:]), [0.5, 0.1])


clusters = {n: dlguide.cluster.Cluster(n, oversubscribe=True) for n in (1, 2, 4)}
rows = []
for block in range(BLOCKS):
    for way, (started, ranks, path, batches) in WAYS.items():
        for batch in batches:
            asked = STEPS * (len(ranks) if path == PARALLEL else 1)
            found = clusters[started].run_on(ranks, step_ms, str(path), asked, batch)
            row = {"way": way, "batch_per_rank": batch, "global_batch": batch * len(ranks)}
            median, fast = (round(float(max(each)), 3) for each in zip(*found, strict=True))
            rows.append(row | {"block": block, "step_ms": median, "fast_ms": fast})
            print(rows[-1], flush=True)
for cluster in clusters.values():
    cluster.stop()
measured.write("horovod_equal_batches", rows, seeds=[1])
