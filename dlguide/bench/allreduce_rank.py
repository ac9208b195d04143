"""What one rank does in `bench.allreduce`: `python -m dlguide.bench.allreduce_rank ORDER FILE`.

ORDER is JSON: plan, sizes, names, repeats, horovod. Rank 0 writes samples and the bytes that each
rank sent to FILE.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from dlguide.collectives import LIBRARY, autotune
from dlguide.machine import threads

HOROVOD = "horovod"


def counting(comm: Any) -> Any:
    """Give a communicator that counts the bytes which this rank sends through it."""
    from mpi4py import MPI

    class Counting(MPI.Intracomm):
        sent = 0

        def Send(self, buffer: list, *rest: Any) -> None:
            self.sent += buffer[1]
            super().Send(buffer, *rest)

        def Isend(self, buffer: list, *rest: Any) -> Any:
            self.sent += buffer[1]
            return super().Isend(buffer, *rest)

        def Sendrecv(self, buffer: list, *rest: Any) -> None:
            self.sent += buffer[1]
            super().Sendrecv(buffer, *rest)

    return Counting(comm)


def bytes_sent(comm: Any, sizes: list[int], names: list[str]) -> dict[str, dict[int, list[int]]]:
    """Count what each rank sends in one allreduce; collective."""
    found: dict[str, dict[int, list[int]]] = {}
    for name in names:
        for nbytes in sizes:
            through = counting(comm)
            # the two levels of the hierarchical one are communicators of their own
            if name != "hierarchical":
                autotune.run(name, np.zeros(max(1, nbytes // 4), np.float32), through)
                found.setdefault(name, {})[nbytes] = comm.allgather(through.sent)
    return found


def measure_horovod(comm: Any, sizes: list[int], repeats: int) -> dict[int, list[float]]:
    """Time Horovod's allreduce of one float32 tensor as a TensorFlow operation; collective."""
    import tensorflow as tf
    from mpi4py import MPI

    import dlguide.horovod as hvd

    hvd.init()
    found = {}
    for nbytes in sizes:
        tensor = tf.zeros(max(1, nbytes // 4))

        def total(each: tf.Tensor, name: str = f"bench.{nbytes}") -> tf.Tensor:
            return hvd.allreduce(each, op=hvd.Sum, name=name)

        step = tf.function(total, autograph=False)
        step(tensor)
        loops = 20 if nbytes <= 1 << 20 else 3
        samples = []
        for _ in range(repeats):
            comm.Barrier()
            start = perf_counter()
            for _ in range(loops):
                step(tensor)
            samples.append(comm.allreduce(perf_counter() - start, MPI.MAX) / loops)
        found[nbytes] = samples
    return found


def main(order: dict[str, Any], target: Path) -> None:
    """Measure as ordered; rank 0 writes the result."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    threads.apply(threads.ThreadPlan.from_dict(order["plan"]), comm.rank)
    sizes, names, repeats = order["sizes"], order["names"], order["repeats"]
    samples = autotune.measure(comm, sizes, names, repeats)
    sent = bytes_sent(comm, sizes, [name for name in names if name != LIBRARY])
    if order["horovod"]:
        for nbytes, times in measure_horovod(comm, sizes, repeats).items():
            samples[nbytes][HOROVOD] = times
    if comm.rank == 0:
        version = " ".join(MPI.Get_library_version().split("\n")[0].strip("\0").split())
        target.write_text(json.dumps({"samples": samples, "sent": sent, "library": version}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
