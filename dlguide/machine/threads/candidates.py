"""The ways of using a machine's cores that are worth measuring: ranks, threads, binding."""

from __future__ import annotations

from dataclasses import dataclass

from dlguide.errors import require_count
from dlguide.machine.describe import Machine, describe
from dlguide.machine.threads.planning import ThreadPlan, plan


@dataclass(frozen=True)
class Candidate:
    """One way to use a machine's cores, in plain numbers; `plan` says which cores those are.

    Args:
        ranks: number of ranks (count).
        threads: computing threads per rank, TensorFlow's intra-op (count).
        inter_op: threads per rank that run operations side by side (count).
        bound: whether each rank stays on its own cores.
        default: True when the ranks are started with nothing set and nothing bound; `threads`
            and `inter_op` then say what TensorFlow makes of that.
    """

    ranks: int
    threads: int
    inter_op: int
    bound: bool = True
    default: bool = False

    def plan(self, machine: Machine | None = None) -> ThreadPlan:
        """Give the thread plan of this candidate on a machine.

        Args:
            machine: what is divided; None describes this one.

        Returns:
            ThreadPlan: with the candidate's ranks, threads, inter-op threads and binding.
        """
        return plan(
            machine, self.ranks, oversubscribe=True, threads=self.threads,
            inter_op=self.inter_op, bound=self.bound,
        )  # fmt: skip

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s'[: self.ranks != 1]}"
        threads = f"{self.threads} thread{'s'[: self.threads != 1]}"
        if self.default:
            return f"{ranks}, TensorFlow's default ({threads})"
        return f"{ranks} x {threads}, inter-op {self.inter_op}, {'' if self.bound else 'not '}bound"


def default(machine: Machine, ranks: int = 1) -> Candidate:
    """Give what TensorFlow does when it is left alone.

    It starts one intra-op and one inter-op thread per logical CPU of its affinity mask, in every
    rank, whatever the quota and the other ranks are.

    Args:
        machine: the machine.
        ranks: number of ranks (count).

    Returns:
        Candidate: with nothing set and nothing bound.
    """
    logical = machine.logical_cores
    return Candidate(ranks, logical, logical, bound=False, default=True)


def candidates(
    machine: Machine | None = None, max_ranks: int | None = None, oversubscribe: bool = False
) -> tuple[Candidate, ...]:
    """List the candidates for a machine, those first that are most often good.

    TensorFlow's default with one rank comes first. Ranks are the powers of two, the sockets, the
    NUMA nodes and the cores. Each has one thread per core, with 1 and 2 inter-op threads, bound
    and not; then, bound only, a thread per hardware thread, and half of the cores, because the
    threads of a small net wait for each other. What would be the same measurement is listed once.

    Args:
        machine: the machine; None describes this one.
        max_ranks: the most ranks to try; None for as many as cores (count).
        oversubscribe: add what takes turns on the cores, in order to see what it costs: twice as
            many ranks as cores, and several ranks that were told nothing, of which each uses the
            whole machine.

    Returns:
        tuple: of Candidate.

    Raises:
        ValueError: when `max_ranks` is not a whole number of at least 1.

    >>> candidates(max_ranks=1)[0].default
    True
    """
    machine = describe() if machine is None else machine
    usable = machine.usable_cores
    siblings = machine.logical_cores // machine.physical_cores
    most = usable if max_ranks is None else require_count(max_ranks, "max_ranks")
    powers = (2**power for power in range(usable.bit_length()))
    counts = sorted({*powers, machine.sockets, machine.numa_nodes, usable})
    counts = [count for count in counts if count <= min(most, usable)]
    baseline = default(machine)
    best, variants, rest = [], [], []
    for ranks in counts:
        full = usable // ranks
        own = min(full, 2)
        best.append(Candidate(ranks, full, own))
        variants += [
            Candidate(ranks, full, inter_op, bound)
            for bound in (True, False)
            for inter_op in (own, 3 - own)
        ]
        rest += [
            Candidate(ranks, threads, min(threads, 2))
            for threads in (full * siblings, full // 2)
            if threads not in (0, full)
        ]
    if oversubscribe:
        limit = 2 * usable if max_ranks is None else most
        crowd = [ranks for ranks in dict.fromkeys((2, 2 * usable)) if ranks <= limit]
        rest += [Candidate(2 * usable, 1, 1)] if 2 * usable <= limit else []
        rest += [default(machine, ranks) for ranks in crowd]
    kept: dict[tuple, Candidate] = {}
    for each in (baseline, *best, *variants, *rest):
        same = each.plan(machine)
        kept.setdefault((same.ranks, same.threads, each.inter_op, same.cpus), each)
    return tuple(kept.values())
