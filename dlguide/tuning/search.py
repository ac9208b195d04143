"""Search for the ranks, threads and binding that train a net fastest on this machine.

Every candidate is trained on real ranks: all of them briefly, the fast ones longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dlguide.cluster.environment import find_mpiexec
from dlguide.errors import require, require_positive
from dlguide.files import cache_folder, require_writable
from dlguide.machine import describe, threads
from dlguide.machine.threads import Candidate, default_candidate
from dlguide.tuning.halving import CandidateResult, HalvingResult, successive_halving
from dlguide.tuning.ranks import RankTeams, TuningTask

START_SHARE = 0.6  # of the budget; ranks not started by then start when they are measured
LEAST_S = 1.0


@dataclass(frozen=True)
class TuningResult:
    """Outcome of a search on this machine.

    Args:
        task: the training step of every candidate.
        machine: host and processor.
        result: the table and the best candidate.
        plan: thread plan of the best candidate, for `Cluster`.
        left_out: candidates that were not measured, each with the reason.
        start_s: time until the ranks were ready (s).
        used_s: time of the whole search, the start included (s).
        unix_s: begin of the search (s since 1970).
        stored: file that `Cluster` reads; "" if it was not kept.
    """

    task: TuningTask
    machine: str
    result: HalvingResult
    plan: threads.ThreadPlan
    left_out: tuple[tuple[Candidate, str], ...]
    start_s: float
    used_s: float
    unix_s: float
    stored: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers for a record."""
        return asdict(self)


def tune(
    net: str = "mnist_cnn",
    global_batch: int = 100,
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
) -> TuningResult:
    """Find the division of this machine's cores that trains a net fastest.

    Every candidate takes the training steps of `training.fit` on real ranks, with the same net,
    initial weights, images and global batch, of which p ranks take global_batch / p images each.
    A process can set TensorFlow's threads only once, so the ranks of all candidates are started
    side by side and stopped (SIGSTOP) while others are measured; candidates that differ only in
    binding share their ranks. On a machine with several NUMA nodes such ranks were started bound,
    so their first memory is near.

    The outcome is kept for this machine, and `Cluster` uses it. Evaluation, checkpoints and
    reading data that is not in memory are left out.

    Args:
        net: one of `models.names("digits")` or `models.names("imagenet")`.
        global_batch: images of a step over all ranks (count).
        budget_s: time of the whole search; a start of ranks may exceed it (s).
        data: "mnist" or "random" images of the net's shape; None for what fits the net.
        optimizer: "adam" or "sgd".
        seed: of weights and order.
        image: height and width of a large net's images; None for the net's own (pixels).
        candidates: what to choose from; None for `tuning.candidates`. TensorFlow's default with
            one rank is the baseline if it is among them.
        max_ranks: the most ranks; None for as many as cores (count).
        oversubscribe: also measure candidates that take turns on the cores.
        keep: whether to keep the outcome for `Cluster`.
        show: whether to show progress.

    Returns:
        TuningResult: the table, the best candidate and its thread plan.

    Raises:
        ValueError: if an argument is invalid; before anything starts.
        MissingComponentError: if there is no mpiexec or no data.
        RuntimeError: if no candidate could be measured.
    """
    begin, unix_s = time.monotonic(), time.time()
    task = TuningTask(net, global_batch, data, optimizer, seed, image)
    require_positive(budget_s, "budget_s")
    machine = describe()
    if candidates is None:
        candidates = threads.candidates(machine, max_ranks, oversubscribe)
    wanted = tuple(dict.fromkeys(candidates))
    left_out = tuple(
        (each, f"{each.ranks} ranks do not divide the global batch of {global_batch}")
        for each in wanted
        if global_batch % each.ranks
    )
    wanted = tuple(each for each in wanted if global_batch % each.ranks == 0)
    must = "hold one whose ranks divide the global batch"
    require(bool(wanted), "candidates", must, list(wanted))
    find_mpiexec()
    if keep:
        require_writable(cache_folder(), "DLGUIDE_CACHE")
    baseline = default_candidate(machine)
    baseline = baseline if baseline in wanted else None
    with _Display(task, wanted, baseline, budget_s, show) as display:
        display.left_out(left_out)
        with RankTeams(machine, task, wanted) as teams:
            teams.start_all(START_SHARE * budget_s, display.started)
            start_s = time.monotonic() - begin
            left_s = max(budget_s - start_s, LEAST_S)
            result = successive_halving(
                teams.measure, wanted, left_s, baseline, on_result=display.measured
            )
        used_s = time.monotonic() - begin
        display.done(result)
    stored: Path | str = ""
    if keep:
        stored = threads.save_tuned(result.rows, net, global_batch, machine, unix_s)
    where = f"{machine.name}: {machine.processor}"
    plan = result.best.plan(machine)
    return TuningResult(task, where, result, plan, left_out, start_s, used_s, unix_s, str(stored))


class _Display:
    """Progress of a search: live in a terminal, lines elsewhere, and the table at the end."""

    def __init__(
        self,
        task: TuningTask,
        candidates: Sequence[Candidate],
        baseline: Candidate | None,
        budget_s: float,
        show: bool = True,
        console: Console | None = None,
    ) -> None:
        self.task, self.candidates, self.baseline = task, candidates, baseline
        self.budget_s, self.show = budget_s, show
        self.console = Console() if console is None else console
        self.live: Live | None = None
        self.rows: dict[Candidate, CandidateResult] = {}
        self.ready = -1

    def __enter__(self) -> _Display:
        self._line(
            f"{self.task.net}, {self.task.global_batch} images per step over all ranks: "
            f"{len(self.candidates)} candidates, {self.budget_s:g} s"
        )
        # rich draws into a notebook only with a widget that may not be there
        if self.show and self.console.is_terminal and not self.console.is_jupyter:
            self.live = Live(console=self.console, refresh_per_second=4, transient=True)
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def left_out(self, left_out: Sequence[tuple[Candidate, str]]) -> None:
        """Name the candidates that will not be measured, with the reasons."""
        for candidate, why in left_out:
            self._line(f"left out: {candidate} ({why})")

    def started(self, ready: int, starts: int) -> None:
        """Show how many starts of ranks are ready."""
        if ready != self.ready:
            self.ready = ready
            self._draw(f"ranks started for {ready} of {starts} settings", ready in (0, starts))

    def measured(self, row: CandidateResult, rung: int, used_s: float) -> None:
        """Show the results of a candidate after a measurement."""
        first = row.error or row.rung != getattr(self.rows.get(row.candidate), "rung", -1)
        self.rows[row.candidate] = row
        speed = f"failed: {row.error}" if row.error else f"{row.median:6.0f} images/s"
        text = f"{used_s:5.1f} s, rung {rung + 1}: {speed}  {row.candidate}"
        self._draw(text, bool(first))

    def done(self, result: HalvingResult) -> None:
        """Show the table and the verdict."""
        if self.live is not None:
            self.live.stop()
            self.live = None
        if self.show:
            self.console.print(table(result.rows, result.baseline))
            for row in result.rows:
                if row.error:
                    self._line(f"{row.candidate}: {row.error}")
            self._line(verdict(result))

    def _line(self, text: str) -> None:
        if self.show:
            self.console.print(text, highlight=False, soft_wrap=True)

    def _draw(self, text: str, worth_a_line: bool) -> None:
        if self.live is not None:
            rows = sorted(self.rows.values(), key=lambda row: (-row.rung, -row.median))
            self.live.update(Group(table(rows, self.baseline), Text(text)))
        elif worth_a_line:
            self._line(text)


def table(rows: Sequence[CandidateResult], baseline: Any = None) -> Table:
    """Return the results as a table; the speed of `baseline` is 1.00."""
    drawn = Table(
        title="Ranks and threads", title_justify="left", box=SIMPLE_HEAD, collapse_padding=True
    )
    for name in ("ranks", "threads", "inter-op", "cores"):
        drawn.add_column(name, justify="right")
    for name in ("images/s", "spread", "ratio", "rounds", "s"):
        drawn.add_column(name, justify="right")
    speeds = {row.candidate: row.median for row in rows}
    for row in rows:
        each, base = row.candidate, speeds.get(baseline, 0.0)
        good = row.median > 0
        drawn.add_row(
            str(each.ranks),
            str(each.threads),
            str(each.inter_op),
            "default" if each.default else "bound" if each.bound else "free",
            f"{row.median:.0f}" if good else "",
            f"{100 * row.spread:.0f} %" if good else "",
            f"{row.median / base:.2f}" if good and base else "",
            str(row.rounds),
            f"{row.seconds:.1f}",
            style="bold" if row is rows[0] and good else None,
        )
    drawn.caption = (
        "threads: per rank. cores: a rank stays on its own (bound) or not (free).\n"
        "spread: of the quartiles. ratio: to TensorFlow's default with one rank."
    )
    drawn.caption_justify = "left"
    return drawn


def verdict(result: HalvingResult) -> str:
    """Return in a sentence which candidate is the best and by how much."""
    if result.gain is None:
        return f"Best: {result.best}."
    if result.best == result.baseline:
        return f"Best: {result.best}. Nothing that was measured is faster."
    text = f"Best: {result.best}, {result.gain:.2f} times {result.baseline} "
    text += f"({result.gain_low:.2f} to {result.gain_high:.2f} in the last rounds)."
    if result.gain_low <= 1 <= result.gain_high:
        text += " The two do not differ measurably on this machine."
    return text
