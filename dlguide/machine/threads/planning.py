"""Which rank and thread runs where: the cores of a machine divided among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dlguide.errors import require, require_count
from dlguide.machine.affinity import spans
from dlguide.machine.describe import Core, Machine, describe


@dataclass(frozen=True)
class ThreadPlan:
    """Which logical CPUs each rank runs on, and how many threads it computes with.

    Args:
        ranks: number of ranks (count).
        threads: computing threads per rank, the same on all: the slowest one sets the pace.
            They are what TensorFlow calls intra-op: they divide one operation.
        cpus: for each rank the logical CPUs it may run on.
        oversubscribed: True when computing threads must take turns on a core: there are more
            ranks than cores, or more threads than logical CPUs.
        inter_op: threads per rank that run operations side by side; None for two, or one where
            there is one computing thread.
        bound: False when every rank may run on all logical CPUs and the system moves it about.
        comm_cpus: for each rank those of its `cpus` that are kept for communication; () for none.
    """

    ranks: int
    threads: int
    cpus: tuple[tuple[int, ...], ...]
    oversubscribed: bool
    inter_op: int | None = None
    bound: bool = True
    comm_cpus: tuple[tuple[int, ...], ...] = ()

    def environment(self, rank: int) -> dict[str, str]:
        """Give the environment variables that make a rank compute with its threads.

        Of the inter-op threads two are enough for a net without parallel branches: one computes
        while the other reads the next batch. So the plan's own choice is two, and one where
        there is one computing thread.

        Args:
            rank: rank of the plan, 0 to ranks - 1.

        Returns:
            dict: TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS, which
            NumPy and others heed; TensorFlow does not, nor does daal4py, which goes by the
            CPUs that the rank is bound to.

        Raises:
            ValueError: when the plan has no such rank.
        """
        _require_rank(self, rank)
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.threads),
            "TF_NUM_INTEROP_THREADS": str(self.inter_op or min(self.threads, 2)),
            "OMP_NUM_THREADS": str(self.threads),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ThreadPlan:
        """Build the plan again from `dataclasses.asdict`, also after a way through JSON."""
        lists = {name: plain.get(name, ()) for name in ("cpus", "comm_cpus")}
        return cls(**plain | {name: tuple(map(tuple, each)) for name, each in lists.items()})

    def __str__(self) -> str:
        head = f"{self.ranks} rank{'s'[: self.ranks != 1]} x {self.threads} "
        head += f"thread{'s'[: self.threads != 1]}"
        head += f", inter-op {self.inter_op}" if self.inter_op else ""
        head += "" if self.bound else ", not bound"
        head += ", ranks share cores" if self.oversubscribed else ""
        rows = [f"{rank:4}  {spans(cpus)}" for rank, cpus in enumerate(self.cpus)]
        for rank, kept in enumerate(self.comm_cpus):
            rows[rank] += f", of these {spans(kept)} for communication" if kept else ""
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

    One computing thread per physical core, because two hardware threads share one vector unit; a
    core's hardware threads all go to its rank. Cores are dealt in contiguous blocks that differ
    by at most one core, and no block crosses NUMA nodes when such a division exists. Every rank
    computes with the threads of the smallest block. A quota below the number of cores leaves the
    rest out. The last cores of each block are those for communication.

    Args:
        machine: what to divide; None describes this one.
        ranks: number of ranks (count).
        comm_cores: cores of each rank's block that get no computing thread, for the thread that
            communicates (count).
        oversubscribe: allow more ranks than cores (cores are then dealt in turn, one thread
            each) and more threads than a rank has logical CPUs.
        threads: computing threads per rank; None for one per core of the smallest block.
        inter_op: threads per rank that run operations side by side; None leaves it to the plan.
        bound: False lets every rank run on all logical CPUs of the machine.

    Returns:
        ThreadPlan: the plan, for `applied`, `Cluster` and records.

    Raises:
        ValueError: when there are more ranks than cores or more threads than a rank's logical
            CPUs and `oversubscribe` is False, comm_cores leaves a rank without a computing core,
            or ranks that are not bound shall keep cores for communication.
    """
    machine = describe() if machine is None else machine
    then = "The number of ranks comes second: `plan(ranks=2)`."
    require(isinstance(machine, Machine), "machine", "be a Machine or None", machine, then)
    require_count(ranks, "ranks")
    require_count(comm_cores, "comm_cores", least=0)
    usable = machine.usable_cores
    require(
        ranks <= usable or oversubscribe,
        "ranks",
        f"be at most the {usable} core{'s'[: usable != 1]} this process may use",
        ranks,
        "Use fewer ranks or `oversubscribe=True`.",
    )
    least = max(usable // ranks, 1)
    require(
        comm_cores < least,
        "comm_cores",
        f"be below the {least} core{'s'[: least != 1]} of a rank",
        comm_cores,
        "Use fewer ranks." if ranks > 1 else "",
    )
    require(
        bound or not comm_cores,
        "bound",
        f"be True with comm_cores={comm_cores}, as only bound ranks keep off a core",
        bound,
    )
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
    require(
        threads <= most or oversubscribe,
        "threads",
        f"be at most the {most} logical CPU{'s'[: most != 1]} of a rank that compute",
        threads,
        "Use fewer threads or ranks, or `oversubscribe=True`.",
    )
    if inter_op is not None:
        require_count(inter_op, "inter_op")
    if not bound:
        cpus = (tuple(core.cpu for core in machine.cores),) * ranks
    taking_turns = ranks > usable or threads > most
    kept = kept if comm_cores else ()
    return ThreadPlan(ranks, threads, cpus, taking_turns, inter_op, bool(bound), kept)


def _cpus(block: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in block for cpu in core))


def _require_rank(plan: ThreadPlan, rank: int) -> None:
    require_count(rank, "rank", least=0)
    last = plan.ranks - 1
    require(rank <= last, "rank", f"be at most {last}, the last rank of the plan", rank)


def _dealt_cores(logical: tuple[Core, ...], usable: int) -> list[list[tuple[int, ...]]]:
    """Choose the cores to deal: one list per NUMA node, a core as the tuple of its CPUs."""
    nodes: dict[int, dict[tuple[int, int], list[int]]] = {}
    for one in logical:
        siblings = nodes.setdefault(one.numa, {}).setdefault((one.socket, one.core), [])
        siblings.append(one.cpu)
    whole = [[tuple(node[core]) for core in sorted(node)] for _, node in sorted(nodes.items())]
    # when a quota leaves cores out, the fullest nodes come first: fewer nodes, fewer borders
    left, dealt = usable, {}
    for number in sorted(range(len(whole)), key=lambda number: -len(whole[number])):
        dealt[number] = whole[number][:left]
        left -= len(dealt[number])
    return [dealt[number] for number in sorted(dealt) if dealt[number]]


def _blocks(nodes: list[list[tuple[int, ...]]], ranks: int) -> list[list[tuple[int, ...]]]:
    """Cut the cores into one block per rank, inside the nodes where that is possible.

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
