"""Thread plans: the cores of a machine divided among ranks, and a plan put into force.

    plan = threads.plan(ranks=2)
    with threads.applied(plan, rank):
        ...  # TensorFlow starts its threads here

A plan must be applied before TensorFlow's first operation.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dlguide.errors import require, require_count
from dlguide.machine.topology import Core, Machine, describe, format_cpus

__all__ = ["ThreadPlan", "ThreadState", "affinity", "applied", "apply", "bind", "plan", "restore"]


@dataclass(frozen=True)
class ThreadPlan:
    """The logical CPUs of each rank and the number of its threads.

    Args:
        threads: computing threads per rank, TensorFlow's intra-op threads, the same on every rank
            because the slowest rank sets the pace (count).
        cpus: for each rank the logical CPUs it may run on.
        oversubscribed: whether threads take turns on a core: there are more ranks than cores, or
            more threads than logical CPUs.
        inter_op: threads per rank that run operations side by side; None for two, or one if there
            is one computing thread.
        bound: False if every rank may run on all logical CPUs and the system moves its threads.
        comm_cpus: for each rank those of its `cpus` kept for communication; () for none.
    """

    ranks: int
    threads: int
    cpus: tuple[tuple[int, ...], ...]
    oversubscribed: bool
    inter_op: int | None = None
    bound: bool = True
    comm_cpus: tuple[tuple[int, ...], ...] = ()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables that make a rank compute with its threads.

        NumPy and others read OMP_NUM_THREADS; TensorFlow does not, nor does daal4py, which
        follows the affinity mask. Two inter-op threads are enough for a net without parallel
        branches: one computes while the other reads the next batch.

        Raises:
            ValueError: if the plan has no such rank.
        """
        require_count(rank, "rank", least=0)
        last = self.ranks - 1
        require(rank <= last, "rank", f"be at most {last}, the last rank of the plan", rank)
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.threads),
            "TF_NUM_INTEROP_THREADS": str(self.inter_op or min(self.threads, 2)),
            "OMP_NUM_THREADS": str(self.threads),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ThreadPlan:
        """Build the plan from the result of `dataclasses.asdict`, also after JSON."""
        lists = {name: plain.get(name, ()) for name in ("cpus", "comm_cpus")}
        return cls(**plain | {name: tuple(map(tuple, each)) for name, each in lists.items()})

    def __str__(self) -> str:
        head = f"{_count(self.ranks, 'rank')} x {_count(self.threads, 'thread')}"
        head += f", inter-op {self.inter_op}" if self.inter_op else ""
        head += "" if self.bound else ", not bound"
        head += ", ranks share cores" if self.oversubscribed else ""
        rows = [f"{rank:4}  {format_cpus(cpus)}" for rank, cpus in enumerate(self.cpus)]
        for rank, kept in enumerate(self.comm_cpus):
            rows[rank] += f", of these {format_cpus(kept)} for communication" if kept else ""
        return "\n".join([head, "rank  logical CPUs", *rows])


def plan(
    machine: Machine | None = None,
    ranks: int = 1,
    comm_cores: int = 0,
    oversubscribe: bool = False,
    threads: int | None = None,
    inter_op: int | None = None,
    bound: bool = True,
) -> ThreadPlan:
    """Divide the cores this process may use among ranks.

    Each physical core gets one computing thread, because its hardware threads share one vector
    unit; all hardware threads of a core go to its rank. Ranks get contiguous blocks of cores that
    differ by at most one core and do not cross NUMA nodes if that is possible. Every rank computes
    with the threads of the smallest block. A CPU quota below the number of cores leaves the rest
    unused. The last cores of each block are those for communication.

    Args:
        machine: what to divide; None describes this machine.
        comm_cores: cores of each rank without a computing thread, for communication (count).
        oversubscribe: allow more ranks than cores (cores are dealt in turn, one thread each) and
            more threads than a rank has logical CPUs.
        threads: computing threads per rank; None for one per core of the smallest block (count).
        inter_op: threads per rank that run operations side by side; None as in `ThreadPlan`.
        bound: False lets every rank run on all logical CPUs of the machine.

    Returns:
        ThreadPlan: for `applied` and `Cluster`.

    Raises:
        ValueError: if there are more ranks than cores or more threads than a rank's logical CPUs
            and `oversubscribe` is False, if `comm_cores` leaves no computing core, or if unbound
            ranks are to keep cores for communication.
    """
    machine = describe() if machine is None else machine
    then = "The number of ranks comes second: `plan(ranks=2)`."
    require(isinstance(machine, Machine), "machine", "be a Machine or None", machine, then)
    require_count(ranks, "ranks")
    require_count(comm_cores, "comm_cores", least=0)
    usable = machine.usable_cores
    must = f"be at most the {_count(usable, 'core')} this process may use"
    then = "Use fewer ranks or `oversubscribe=True`."
    require(ranks <= usable or oversubscribe, "ranks", must, ranks, then)
    least = max(usable // ranks, 1)
    must = f"be below the {_count(least, 'core')} of a rank"
    then = "Use fewer ranks." if ranks > 1 else ""
    require(comm_cores < least, "comm_cores", must, comm_cores, then)
    must = f"be True with comm_cores={comm_cores}, as only bound ranks keep off a core"
    require(bound or not comm_cores, "bound", must, bound)
    nodes = _dealt_cores(machine.cores, usable)
    if ranks > usable:
        cores = [core for node in nodes for core in node]
        blocks = [[cores[rank % usable]] for rank in range(ranks)]
    else:
        blocks = _blocks(nodes, ranks)
    kept = tuple(_cpus(block[len(block) - comm_cores :]) for block in blocks)
    cpus = tuple(_cpus(block) for block in blocks)
    most = min(len(each) - len(comm) for each, comm in zip(cpus, kept, strict=True))
    threads = least - comm_cores if threads is None else require_count(threads, "threads")
    must = f"be at most the {_count(most, 'logical CPU')} of a rank that compute"
    then = "Use fewer threads or ranks, or `oversubscribe=True`."
    require(threads <= most or oversubscribe, "threads", must, threads, then)
    if inter_op is not None:
        require_count(inter_op, "inter_op")
    if not bound:
        cpus = (tuple(core.cpu for core in machine.cores),) * ranks
    taking_turns = ranks > usable or threads > most
    kept = kept if comm_cores else ()
    return ThreadPlan(ranks, threads, cpus, taking_turns, inter_op, bool(bound), kept)


@dataclass(frozen=True)
class ThreadState:
    """What `apply` changed: variables (None if not set) and the affinity by thread id."""

    environment: dict[str, str | None]
    affinity: dict[int, tuple[int, ...]]


def apply(plan: ThreadPlan, rank: int = 0) -> ThreadState:
    """Bind this process and all its threads to a rank's CPUs and set its thread variables.

    TensorFlow reads the variables once, when its first operation starts its threads; applying a
    plan later warns.

    Returns:
        ThreadState: the state before, for `restore`.

    Raises:
        ValueError: if the plan has no such rank, or names CPUs this process may not use.
    """
    wanted = plan.environment(rank)
    if _tensorflow_started():
        warnings.warn(
            "TensorFlow has started its threads already, so their number does not change. Apply "
            "the plan before the first TensorFlow operation of the process.",
            RuntimeWarning,
            stacklevel=2,
        )
    state = ThreadState({name: os.environ.get(name) for name in wanted}, affinity())
    cpus, found = plan.cpus[rank], set(os.sched_getaffinity(0))
    try:
        bind({}, cpus)
        bound = os.sched_getaffinity(0) == set(cpus)
    except OSError:
        bound = False
    if not bound:
        restore(state)
        can = f"as it has {format_cpus(found)}"
        must = f"give rank {rank} logical CPUs this process may use, {can}"
        then = "Make the plan on the machine, and in the batch job, in which it is applied."
        require(False, "plan", must, format_cpus(cpus), then)
    os.environ.update(wanted)
    return state


def restore(state: ThreadState) -> None:
    """Restore the variables and the affinity from before `apply`.

    Threads started since then get the affinity that the main thread had.
    """
    for name, value in state.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    bind(state.affinity, state.affinity[os.getpid()])


@contextmanager
def applied(plan: ThreadPlan, rank: int = 0) -> Iterator[ThreadPlan]:
    """Apply a rank's part of the plan inside a `with` block and restore everything afterwards.

    Raises:
        ValueError: as `apply`.
    """
    state = apply(plan, rank)
    try:
        yield plan
    finally:
        restore(state)


def affinity() -> dict[int, tuple[int, ...]]:
    """Return the logical CPUs of every thread of this process, ascending, by thread id."""
    found = {}
    for thread in _threads():
        with suppress(ProcessLookupError):  # a thread may end at any moment
            found[thread] = tuple(sorted(os.sched_getaffinity(thread)))
    return found


def bind(known: Mapping[int, Sequence[int]], others: Sequence[int]) -> None:
    """Set the affinity of every thread: of the `known` by their ids, of all `others`.

    Repeats until no thread has been started meanwhile; a new one inherits its parent's.
    """
    done: set[int] = set()
    while left := set(_threads()) - done:
        for thread in left:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, known.get(thread, others))
        done |= left


def _threads() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/task")]


def _tensorflow_started() -> bool:
    context = sys.modules.get("tensorflow.python.eager.context")
    return getattr(context and context.context(), "_context_handle", None) is not None


def _cpus(block: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in block for cpu in core))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s'[: number != 1]}"


def _dealt_cores(logical: tuple[Core, ...], usable: int) -> list[list[tuple[int, ...]]]:
    """Return the cores to deal by NUMA node; a core is the tuple of its CPUs."""
    nodes: dict[int, dict[tuple[int, int], list[int]]] = {}
    for one in logical:
        siblings = nodes.setdefault(one.numa, {}).setdefault((one.socket, one.core), [])
        siblings.append(one.cpu)
    whole = [[tuple(node[core]) for core in sorted(node)] for _, node in sorted(nodes.items())]
    # with a quota, the fullest nodes come first: fewer nodes, fewer borders
    left, dealt = usable, {}
    for number in sorted(range(len(whole)), key=lambda number: -len(whole[number])):
        dealt[number] = whole[number][:left]
        left -= len(dealt[number])
    return [cores for _, cores in sorted(dealt.items()) if cores]


def _blocks(nodes: list[list[tuple[int, ...]]], ranks: int) -> list[list[tuple[int, ...]]]:
    """Cut the cores into one block per rank, inside the nodes if possible.

    With q = floor(cores / ranks) a node of c cores can be cut into r blocks of q or q + 1 when
    r q <= c <= r (q + 1); the r of all nodes must add up to the ranks.
    """
    least = sum(len(node) for node in nodes) // ranks
    fewest = [-(-len(node) // (least + 1)) for node in nodes]
    most = [len(node) // least for node in nodes]
    possible = all(low <= high for low, high in zip(fewest, most, strict=True))
    spare = ranks - sum(fewest)
    if not possible or not 0 <= spare <= sum(most) - sum(fewest):
        return _cut([core for node in nodes for core in node], ranks)
    blocks = []
    for node, low, high in zip(nodes, fewest, most, strict=True):
        more = min(spare, high - low)
        spare -= more
        blocks += _cut(node, low + more)
    return blocks


def _cut(cores: list[tuple[int, ...]], parts: int) -> list[list[tuple[int, ...]]]:
    bounds = [part * len(cores) // parts for part in range(parts + 1)]
    return [cores[start:stop] for start, stop in pairwise(bounds)]
