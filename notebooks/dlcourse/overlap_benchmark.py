"""How much of an allreduce is hidden behind computing, with and without asynchronous progress.

MPI works on a nonblocking collective only while the process is inside MPI. A rank that starts it
and computes finds most of the work still to do, unless a thread, a core or a network card has
done it meanwhile. MPICH starts such a progress thread in every rank when the environment variable
MPIR_CVAR_ASYNC_PROGRESS is 1, and then "iallreduce" overlaps too; but that thread polls all the
time, and without a separate core it slows down everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives.agreement import agree_or_raise, require_equal
from dlguide.collectives.communicator import require_threads
from dlguide.measure.timing import Timing, timing

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

WAYS = {
    "blocking": "compute, then MPI_Allreduce",
    "iallreduce": "MPI_Iallreduce, compute, MPI_Wait",
    "iallreduce_test": "MPI_Iallreduce, compute in slices with MPI_Test between, MPI_Wait",
    "progress_thread": "MPI_Iallreduce, compute; meanwhile a thread is in MPI_Wait",
    "pausing_thread": "MPI_Iallreduce, compute; meanwhile a thread tests and sleeps in turn",
    "allreduce_thread": "compute; meanwhile a thread is in MPI_Allreduce, as in Horovod",
}
COMPUTES = ("host", "device")
# How long the pausing thread sleeps between two tests.
PAUSE_S = 50e-6


@dataclass(frozen=True)
class OverlapTiming:
    """One way, measured: the allreduce alone, computing alone, and both together."""

    way: str
    computes: str
    ranks: int
    nbytes: int
    allreduce: Timing
    compute: Timing
    together: Timing

    @property
    def exposed_s(self) -> float:
        """Time that the allreduce adds to computing, median of the repeats (s)."""
        return float(np.median(self._exposed))

    @property
    def overlap(self) -> float:
        """Share of the allreduce that is hidden."""
        return 1 - self.exposed_s / self.allreduce.median

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the overlap over the repeats."""
        low, high = np.quantile(self._exposed, [0.25, 0.75])
        return 1 - float(high) / self.allreduce.median, 1 - float(low) / self.allreduce.median

    @property
    def _exposed(self) -> np.ndarray:
        # the times of one repeat were measured close to each other, so they share disturbances
        return np.subtract(self.together.seconds, self.compute.seconds)

    def __str__(self) -> str:
        low, high = self.spread
        return (
            f"{self.way:16} {self.computes:6} together {1e3 * self.together.median:7.2f} ms, "
            f"exposed {1e3 * self.exposed_s:6.2f} of {1e3 * self.allreduce.median:6.2f} ms, "
            f"overlap {self.overlap:5.2f} ({low:.2f} to {high:.2f})"
        )


def measure(
    comm: Comm,
    nbytes: int,
    compute_s: float,
    ways: Sequence[str] = tuple(WAYS),
    computes: str = "device",
    repeats: int = 7,
) -> tuple[OverlapTiming, ...]:
    """Measure the overlap of an allreduce of float32 numbers with computing; collective."""
    asked = {"nbytes": nbytes, "compute_s": compute_s, "ways": tuple(ways), "computes": computes}
    require_equal(comm, **asked, repeats=repeats)
    with agree_or_raise(comm):
        if any(way.endswith("thread") for way in ways):
            require_threads()
    own = comm.Dup()
    send = np.full(nbytes // 4, own.rank + 1, np.float32)
    receive = np.zeros_like(send)
    right = own.size * (own.size + 1) / 2
    with ThreadPoolExecutor(1) as thread:
        computing = _computing(own, compute_s, computes)
        known = _calls(own, thread, send, receive, computing)
        calls = {name: known[name] for name in ("allreduce", "compute", *ways)}
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        order = np.random.default_rng(0)  # the same on all ranks, another one in each repeat
        for _ in range(repeats + 1):
            for name in order.permutation([*calls]).tolist():
                receive.fill(0)
                seconds[name] += timing(calls[name], repeats=1, warmup=0, communicator=own).seconds
                if name != "compute" and not (receive == right).all():
                    raise RuntimeError("The allreduce gave a wrong sum, so its time means nothing.")
    own.Free()
    times = {name: Timing(tuple(each[1:]), tuple(each[:1])) for name, each in seconds.items()}
    alone = (times["allreduce"], times["compute"])
    return tuple(
        OverlapTiming(way, computes, comm.size, send.nbytes, *alone, times[way]) for way in ways
    )


def _computing(
    comm: Comm, compute_s: float, computes: str, slices: int = 32
) -> Callable[[Callable[[], Any]], None]:
    """Make the computing; its argument is called between two slices."""
    if computes == "device":

        def pause(between: Callable[[], Any]) -> None:
            start = perf_counter()
            for number in range(1, slices + 1):
                sleep(max(0.0, start + number * compute_s / slices - perf_counter()))
                between()

        return pause
    numbers = np.linspace(0, 1, 1 << 14, dtype=np.float32)
    result = np.empty_like(numbers)

    def work(loops: int) -> None:
        for _ in range(loops):
            np.exp(numbers, out=result)

    once_s = timing(lambda: work(100), repeats=5, communicator=comm).median / 100
    # alike on all ranks, since timing gives all the same
    loops = max(1, round(compute_s / once_s / slices))

    def compute(between: Callable[[], Any]) -> None:
        for _ in range(slices):
            work(loops)
            between()

    return compute


def _calls(
    comm: Comm, thread: Any, send: np.ndarray, receive: np.ndarray, computing: Any
) -> dict[str, Callable[[], Any]]:
    """An allreduce and a computation, alone and together in each of `WAYS`."""

    def allreduce() -> None:
        comm.Allreduce(send, receive)

    def compute(between: Callable[[], Any] = lambda: None) -> None:
        computing(between)

    def blocking() -> None:
        compute()
        allreduce()

    def iallreduce() -> None:
        request = comm.Iallreduce(send, receive)
        compute()
        request.Wait()

    def iallreduce_test() -> None:
        request = comm.Iallreduce(send, receive)
        compute(request.Test)
        request.Wait()

    def meanwhile(call: Callable[[], Any]) -> None:
        done = thread.submit(call)
        compute()
        done.result()

    def pausing_thread() -> None:
        request = comm.Iallreduce(send, receive)

        def test() -> None:
            while not request.Test():
                sleep(PAUSE_S)

        meanwhile(test)

    return {
        "allreduce": allreduce,
        "compute": compute,
        "blocking": blocking,
        "iallreduce": iallreduce,
        "iallreduce_test": iallreduce_test,
        "progress_thread": lambda: meanwhile(comm.Iallreduce(send, receive).Wait),
        "pausing_thread": pausing_thread,
        "allreduce_thread": lambda: meanwhile(allreduce),
    }
