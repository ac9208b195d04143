"""Candidates of ranks, threads and binding, and those that a search found fastest here.

`dlguide tune` measures candidates and saves the outcome in the user's cache; `Cluster` loads it.
"""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlguide.errors import require_count
from dlguide.files import atomic_write, cache_folder
from dlguide.machine import threads
from dlguide.machine.topology import Machine, describe

_FORMAT = 1


@dataclass(frozen=True)
class Candidate:
    """Numbers of ranks and threads and their binding; `plan` turns them into a thread plan.

    `inter_op` threads per rank run operations side by side. With `default` ranks are started with
    nothing set and nothing bound; `threads` and `inter_op` are then what TensorFlow chooses.
    """

    ranks: int
    threads: int
    inter_op: int
    bound: bool = True
    default: bool = False

    def plan(self, machine: Machine | None = None) -> threads.ThreadPlan:
        """Return the thread plan of this candidate on a machine; None for this machine."""
        counts = {"threads": self.threads, "inter_op": self.inter_op, "bound": self.bound}
        return threads.plan(machine, self.ranks, oversubscribe=True, **counts)

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s'[: self.ranks != 1]}"
        threads = f"{self.threads} thread{'s'[: self.threads != 1]}"
        if self.default:
            return f"{ranks}, TensorFlow's default ({threads})"
        return f"{ranks} x {threads}, inter-op {self.inter_op}, {'' if self.bound else 'not '}bound"


def default_candidate(machine: Machine, ranks: int = 1) -> Candidate:
    """Return what TensorFlow does if nothing is set and nothing is bound.

    Every rank starts one intra-op and one inter-op thread per logical CPU of its affinity mask,
    whatever the CPU quota and the other ranks are.
    """
    logical = machine.logical_cores
    return Candidate(ranks, logical, logical, bound=False, default=True)


def candidates(
    machine: Machine | None = None, max_ranks: int | None = None, oversubscribe: bool = False
) -> tuple[Candidate, ...]:
    """List the candidates for a machine, those first that are most often fast.

    TensorFlow's default with one rank comes first. Rank counts are the powers of two, the sockets,
    the NUMA nodes and the cores. Each has one thread per core, with 1 and 2 inter-op threads,
    bound and unbound; then, bound only, one thread per hardware thread, and half of the cores,
    because the threads of a small net wait for each other. Equal measurements are listed once.

    Args:
        machine: the machine; None describes this one.
        max_ranks: the most ranks to try; None for as many as cores (count).
        oversubscribe: add candidates that take turns on the cores, to measure their cost: twice as
            many ranks as cores, and several ranks with TensorFlow's default.

    Returns:
        tuple: without two that would measure the same.

    Raises:
        ValueError: if `max_ranks` is not a whole number of at least 1.

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
    baseline = default_candidate(machine)
    best, variants, rest = [], [], []
    for ranks in counts:
        full = usable // ranks
        own = min(full, 2)
        best.append(Candidate(ranks, full, own))
        kinds = [(bound, each) for bound in (True, False) for each in (own, 3 - own)]
        variants += [Candidate(ranks, full, inter_op, bound) for bound, inter_op in kinds]
        others = [count for count in (full * siblings, full // 2) if count not in (0, full)]
        rest += [Candidate(ranks, count, min(count, 2)) for count in others]
    if oversubscribe:
        limit = 2 * usable if max_ranks is None else most
        crowd = [ranks for ranks in dict.fromkeys((2, 2 * usable)) if ranks <= limit]
        rest += [Candidate(2 * usable, 1, 1)] if 2 * usable <= limit else []
        rest += [default_candidate(machine, ranks) for ranks in crowd]
    kept: dict[tuple, Candidate] = {}
    for each in (baseline, *best, *variants, *rest):
        same = each.plan(machine)
        kept.setdefault((same.ranks, same.threads, each.inter_op, same.cpus), each)
    return tuple(kept.values())


@dataclass(frozen=True)
class TunedPlans:
    """Saved outcome of one search: the candidates that could be measured, fastest first."""

    net: str
    global_batch: int
    unix_s: float
    candidates: tuple[Candidate, ...]
    images_per_s: tuple[float, ...]

    def best(
        self, machine: Machine | None = None, ranks: int | None = None, oversubscribe: bool = False
    ) -> Candidate | None:
        """Return the fastest candidate, of a number of ranks if given; None if there is none."""
        for each in self.candidates:
            crowded = each.ranks > 1 and each.plan(machine).oversubscribed
            if ranks in (None, each.ranks) and (oversubscribe or not crowded):
                return each
        return None

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.unix_s))
        return f"as tuned on {when} for {self.net} with batches of {self.global_batch}"


def save(
    rows: Iterable[Any], net: str, global_batch: int, machine: Machine, unix_s: float | None = None
) -> Path:
    """Save the outcome of a search on a machine; it replaces an earlier one of net and batch.

    Args:
        rows: fastest first, with `candidate`, the `median` of its images/s and `error`.
        global_batch: images of a step over all ranks (count).
        unix_s: time of the search; None for now (s since 1970).
    """
    rows = [row for row in rows if not row.error]
    record = {
        "format": _FORMAT,
        "machine": _facts(machine),
        "net": net,
        "batch": global_batch,
        "unix_s": time.time() if unix_s is None else unix_s,
        "candidates": [asdict(row.candidate) for row in rows],
        "images_per_s": [row.median for row in rows],
    }
    path = folder_of(machine) / f"{net}-batch{global_batch}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        json.dump(record, file, indent=1)
    return path


def load(machine: Machine | None = None) -> TunedPlans | None:
    """Load the newest saved outcome for machines like this one; None if there is none.

    A damaged file is reported as a warning and skipped.
    """
    machine = describe() if machine is None else machine
    found = []
    for path in sorted(folder_of(machine).glob("*.json")):
        try:
            found.append(_read(path, machine))
        except (OSError, ValueError, TypeError, KeyError) as error:
            warnings.warn(
                f"{path} is damaged and is not used ({type(error).__name__}: {error}). "
                "`dlguide tune` writes it anew.",
                RuntimeWarning,
                stacklevel=2,
            )
    return max(found, key=lambda each: each.unix_s, default=None)


def folder_of(machine: Machine) -> Path:
    """Return the folder of the outcomes for machines like this one."""
    text = json.dumps(_facts(machine), sort_keys=True)
    return cache_folder() / "threads" / hashlib.sha256(text.encode()).hexdigest()[:16]


def _facts(machine: Machine) -> dict[str, Any]:
    """Return what an outcome depends on; the host's name and its load are left out."""
    names = ("processor", "sockets", "numa_nodes", "physical_cores", "logical_cores", "quota_cores")
    return {name: getattr(machine, name) for name in names}


def _read(path: Path, machine: Machine) -> TunedPlans:
    record = json.loads(path.read_text(encoding="utf-8"))
    if record["format"] != _FORMAT or record["machine"] != _facts(machine):
        raise ValueError("it is of another machine or of another version of dlguide")
    found = TunedPlans(
        str(record["net"]),
        int(record["batch"]),
        float(record["unix_s"]),
        tuple(Candidate(**each) for each in record["candidates"]),
        tuple(float(each) for each in record["images_per_s"]),
    )
    if not found.candidates or len(found.candidates) != len(found.images_per_s):
        raise ValueError("it has no candidates, or not one speed for each")
    for each in found.candidates:
        each.plan(machine)  # raises if its numbers do not fit this machine
    return found
