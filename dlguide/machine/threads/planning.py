"""Which rank and thread runs where: the cores of a machine divided among ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dlguide.checks import require, require_count
from dlguide.machine.affinity import spans
from dlguide.machine.describe import Core, Machine, describe


@dataclass(frozen=True)
class ThreadPlan:
    """Which logical CPUs each rank runs on, and how many threads it computes with.

    Args:
        ranks: number of ranks (count).
        threads: computing threads per rank, the same on all: the slowest one sets the pace.
        cpus: for each rank the logical CPUs it may run on.
        oversubscribed: True when ranks share cores because there are more ranks than cores.
    """

    ranks: int
    threads: int
    cpus: tuple[tuple[int, ...], ...]
    oversubscribed: bool

    def environment(self, rank: int) -> dict[str, str]:
        """Give the environment variables that make a rank compute with its threads.

        Intra-op threads divide one operation. Of the inter-op threads, which run operations side
        by side, two are enough for a net without parallel branches: one computes while the other
        reads the next batch. With one thread there is one of each.

        Args:
            rank: rank of the plan, 0 to ranks - 1.

        Returns:
            dict: TF_NUM_INTRAOP_THREADS, TF_NUM_INTEROP_THREADS and OMP_NUM_THREADS, which
            NumPy, daal4py and others heed and TensorFlow does not.

        Raises:
            ValueError: when the plan has no such rank.
        """
        _require_rank(self, rank)
        return {
            "TF_NUM_INTRAOP_THREADS": str(self.threads),
            "TF_NUM_INTEROP_THREADS": str(min(self.threads, 2)),
            "OMP_NUM_THREADS": str(self.threads),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> ThreadPlan:
        """Build the plan again from `dataclasses.asdict`, also after a way through JSON.

        Args:
            plain: the dictionary.

        Returns:
            ThreadPlan: equal to the one it came from.
        """
        return cls(**{**plain, "cpus": tuple(tuple(cpus) for cpus in plain["cpus"])})

    def __str__(self) -> str:
        shared = ", ranks share cores" if self.oversubscribed else ""
        head = f"{self.ranks} rank{'s'[: self.ranks != 1]} x {self.threads} "
        rows = [f"{rank:4}  {spans(cpus)}" for rank, cpus in enumerate(self.cpus)]
        head += f"thread{'s'[: self.threads != 1]}{shared}"
        return "\n".join([head, "rank  logical CPUs", *rows])


def plan(
    machine: Machine | None = None,
    ranks: int = 1,
    comm_cores: int = 0,
    oversubscribe: bool = False,
) -> ThreadPlan:
    """Divide the cores this process may use among ranks.

    One computing thread per physical core, because two hardware threads share one vector unit; a
    core's hardware threads all go to its rank. Cores are dealt in contiguous blocks that differ
    by at most one core, and no block crosses NUMA nodes when such a division exists. Every rank
    computes with the threads of the smallest block. A quota below the number of cores leaves the
    rest out.

    Args:
        machine: what to divide; None describes this one.
        ranks: number of ranks (count).
        comm_cores: cores of each rank's block that get no computing thread, for the thread that
            communicates (count).
        oversubscribe: allow more ranks than cores: cores are then dealt in turn, one thread each.

    Returns:
        ThreadPlan: the plan, for `applied`, `Cluster` and records.

    Raises:
        ValueError: when there are more ranks than cores and `oversubscribe` is False, or
            comm_cores leaves a rank without a computing core.
    """
    machine = describe() if machine is None else machine
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
    nodes = _dealt_cores(machine.cores, usable)
    if ranks > usable:
        cores = [core for node in nodes for core in node]
        blocks = [[cores[rank % usable]] for rank in range(ranks)]
    else:
        blocks = _blocks(nodes, ranks)
    cpus = tuple(tuple(sorted(cpu for core in block for cpu in core)) for block in blocks)
    return ThreadPlan(ranks, least - comm_cores, cpus, ranks > usable)


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
