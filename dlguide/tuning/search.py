"""`tune`: train every candidate a little and the good ones longer, until one is left."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dlguide import models
from dlguide.cluster.environment import find_mpiexec
from dlguide.errors import require, require_positive
from dlguide.files import cache_folder, require_writable
from dlguide.machine import describe, threads
from dlguide.machine.threads import Candidate, Row, ThreadPlan, TuneResult, remembered
from dlguide.tuning.show import Progress
from dlguide.tuning.teams import Teams
from dlguide.tuning.work import Work

START_SHARE = 0.6  # of the budget; what has not been started by then waits for its turn
LEAST_S = 1.0


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search on this machine.

    Args:
        work: what every candidate did.
        machine: host and processor.
        result: the table and the best.
        plan: the thread plan of the best, for `Cluster`.
        left_out: candidates that were not measured, each with the reason.
        start_s: time until the ranks were ready (s).
        used_s: time of the whole search, their start included (s).
        unix_s: when it began (s since 1970).
        stored: the file that the Cluster reads; "" when it was not to be kept.
    """

    work: Work
    machine: str
    result: TuneResult
    plan: ThreadPlan
    left_out: tuple[tuple[Candidate, str], ...]
    start_s: float
    used_s: float
    unix_s: float
    stored: str = ""

    @property
    def best(self) -> Candidate:
        """The candidate to use."""
        return self.result.best

    @property
    def baseline(self) -> Candidate | None:
        """TensorFlow's default, if it was among the candidates."""
        return self.result.baseline

    @property
    def rows(self) -> tuple[Row, ...]:
        """One row per candidate, the best first."""
        return self.result.rows

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record."""
        return asdict(self)


def tune(
    net: str = "mnist_cnn",
    batch: int = 100,
    budget_s: float = 60.0,
    data: str | None = None,
    optimizer: str = "adam",
    seed: int = 0,
    image: int | None = None,
    candidates: Iterable[Candidate] | None = None,
    max_ranks: int | None = None,
    oversubscribe: bool = False,
    keep: bool = True,
    show: bool = True,
) -> Tuned:
    """Find out which division of this machine's cores trains a net fastest.

    Every candidate takes the training steps of `training.fit` on real ranks, with the same net,
    first weights, images and global batch: p ranks take batch / p images each. A process can set
    TensorFlow's threads only once, so candidates are started side by side and stopped (SIGSTOP)
    while others are measured; those that differ in their binding only share their ranks. On a
    machine with several NUMA nodes such ranks were started bound, so their first memory is near.

    The outcome is kept for this machine, and `Cluster` uses it. Leaves out evaluation,
    checkpoints, and the reading of data that does not lie in memory.

    Args:
        net: one of `models.names("digits")` or `models.names("imagenet")`.
        batch: images of a step over all ranks, the global batch (count).
        budget_s: time for all of it (s). One start of ranks may go beyond it.
        data: "mnist" or "random" images of the net's shape; None takes what fits the net.
        optimizer: "adam" or "sgd".
        seed: of weights and order.
        image: height and width of a large net's images (pixels); None takes the net's own.
        candidates: what to choose from; None for `threads.candidates`. TensorFlow's default with
            one rank is the baseline when it is among them.
        max_ranks: the most ranks; None for as many as cores (count).
        oversubscribe: also measure what takes turns on the cores.
        keep: whether to keep the outcome for the Cluster.
        show: whether to show progress.

    Returns:
        Tuned: the table, the best candidate and its thread plan.

    Raises:
        ValueError: when an argument is not what it must be; before anything starts.
        MissingComponentError: when there is no mpiexec or no data.
        RuntimeError: when no candidate could be measured.
    """
    begin, unix_s = time.monotonic(), time.time()
    fitting = "mnist" if net in models.names("digits") else "random"
    work = Work(net, batch, fitting if data is None else data, optimizer, seed, image)
    work.check()
    require_positive(budget_s, "budget_s")
    machine = describe()
    if candidates is None:
        candidates = threads.candidates(machine, max_ranks, oversubscribe)
    wanted = tuple(dict.fromkeys(candidates))
    left_out = tuple(
        (each, f"{each.ranks} ranks do not divide the batch of {batch}")
        for each in wanted
        if batch % each.ranks
    )
    wanted = tuple(each for each in wanted if batch % each.ranks == 0)
    require(bool(wanted), "candidates", "hold one whose ranks divide the batch", list(wanted))
    find_mpiexec()
    if keep:
        require_writable(cache_folder(), "DLGUIDE_CACHE")
    baseline = threads.default(machine)
    baseline = baseline if baseline in wanted else None
    with Progress(work, wanted, baseline, budget_s, show) as progress:
        progress.left_out(left_out)
        with Teams(machine, work, wanted) as teams:
            teams.start_all(START_SHARE * budget_s, progress.started)
            start_s = time.monotonic() - begin
            result = threads.tune(
                teams.measure, wanted, max(budget_s - start_s, LEAST_S), baseline,
                tell=progress.measured,
            )  # fmt: skip
        used_s = time.monotonic() - begin
        progress.done(result)
    stored: Path | str = remembered.remember(result, net, batch, machine, unix_s) if keep else ""
    where = f"{machine.name}: {machine.processor}"
    plan = result.best.plan(machine)
    return Tuned(work, where, result, plan, left_out, start_s, used_s, unix_s, str(stored))
