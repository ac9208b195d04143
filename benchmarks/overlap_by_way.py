"""Measure how much of an allreduce hides behind computing, by whom it is moved on.

    python benchmarks/overlap_by_way.py
    python benchmarks/overlap_by_way.py --nbytes 67108864 --compute-s 0.05

Prints the overlap of every way of `parallel.overlap`, with and without MPICH's own progress thread
(MPIR_CVAR_ASYNC_PROGRESS): first with computing that leaves the core free, as on an accelerator,
then with computing that needs it. Then, for a net of equal layers and a large last one that
leaves the core free, each schedule's step beside the predicted one and their ratio. The
prediction takes the layers' times as they were measured, and for the wire the allreduces alone.
"""

from __future__ import annotations

import argparse
import statistics

from report import report

from dlcourse.parallel import overlap
from dlguide.cluster import Cluster

SIZES = [1 << 18] * 4 + [1 << 20]


def ways(chosen: dict, computes: str) -> list:
    """Measure all ways on this rank; the result is the same on all."""
    from mpi4py import MPI

    from dlcourse.parallel import overlap

    return list(
        overlap.measure_ways(
            MPI.COMM_WORLD, chosen["nbytes"], chosen["compute_s"], computes=computes,
            repeats=chosen["repeats"],
        )
    )  # fmt: skip


def schedules(chosen: dict, sizes: list) -> tuple:
    """Measure all schedules on this rank, and the wire with two sizes of an allreduce."""
    import numpy as np
    from mpi4py import MPI

    from dlcourse.parallel import overlap
    from dlcourse.waiting_ranks import SleepingLayers
    from dlguide.collectives import allreduce
    from dlguide.measure import timing

    comm = MPI.COMM_WORLD
    wire = []
    for size in (min(sizes), max(sizes)):
        array = np.zeros(size, np.float32)

        def once(array: np.ndarray = array) -> None:
            allreduce(array, comm, check=False)

        wire.append((array.nbytes, timing(once, 15, 3, comm).median))
    layers = len(sizes)
    found = overlap.measure(
        lambda: SleepingLayers([0.001] * layers, [0.002] * layers, sizes),
        comm, np.arange(4.0), repeats=chosen["repeats"],
    )  # fmt: skip
    return wire, found


def layer_seconds(steps: tuple, kinds: tuple[str, ...]) -> list[float]:
    """Take for each layer the median over steps of the time of some kinds (s)."""
    return [
        statistics.median(
            sum(e.seconds for e in step.intervals if e.layer == layer and e.kind in kinds)
            for step in steps
        )
        for layer in range(len(SIZES))
    ]


def main() -> None:
    """Print one line for each way, then one for each schedule."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--nbytes", type=int, default=16 << 20, help="size of the allreduce")
    options.add_argument("--compute-s", type=float, default=0.02, help="computing alone (s)")
    options.add_argument("--repeats", type=int, default=15, help="measurements that count")
    chosen = vars(options.parse_args())
    for progress in ("0", "1"):
        with Cluster(
            ranks=2, magics=False, environment={"MPIR_CVAR_ASYNC_PROGRESS": progress}
        ) as cluster:
            for computes in ("device", "host"):
                print(f"MPIR_CVAR_ASYNC_PROGRESS={progress}")
                for one in cluster.run(ways, chosen, computes)[0]:
                    print(f"    {one}")
            if progress == "0":
                wire, found = cluster.run(schedules, chosen, SIZES)[0]
    (small, small_s), (large, large_s) = wire
    bytes_per_s = (large - small) / (large_s - small_s)
    latency_s = max(0.0, (small_s - small / bytes_per_s) / 2)
    print(f"wire: latency {1e6 * latency_s:.0f} us, {bytes_per_s / 1e9:.2f}e9 bytes/s")
    for name, steps in found.items():
        forward_s = layer_seconds(steps, ("forward", "update"))
        backward_s = layer_seconds(steps, ("backward",))
        nbytes = [4 * size for size in SIZES]
        wanted = overlap.predict(forward_s, backward_s, nbytes, name, 2, latency_s, bytes_per_s)
        step_s = [step.step_s for step in steps]
        median_s = statistics.median(step_s)
        print(
            f"{name:10} step {1e3 * median_s:.2f} ms ({1e3 * min(step_s):.2f} to "
            f"{1e3 * max(step_s):.2f}), predicted {1e3 * wanted.step_s:.2f}, "
            f"overlap "
            f"{statistics.median(step.overlap for step in steps):.2f}, "
            f"predicted {wanted.overlap:.2f}"
        )
        ratios = [each / wanted.step_s for each in step_s]
        report(f"step / predicted, {name}, gradients of unequal layers", ratios)


if __name__ == "__main__":
    main()
