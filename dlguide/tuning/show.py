"""What a search shows: live in a terminal, lines elsewhere, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dlguide.machine.threads import Candidate, Row, TuneResult
from dlguide.tuning.work import Work


class Progress:
    """The progress of one search.

    Args:
        work: what is trained.
        candidates: what is measured.
        baseline: what speeds are compared with; None for none.
        budget_s: time that is allowed (s).
        show: False shows nothing.
        console: where to; None for standard output.
    """

    def __init__(
        self,
        work: Work,
        candidates: Sequence[Candidate],
        baseline: Candidate | None,
        budget_s: float,
        show: bool = True,
        console: Console | None = None,
    ) -> None:
        self.work, self.candidates, self.baseline = work, candidates, baseline
        self.budget_s, self.show = budget_s, show
        self.console = Console() if console is None else console
        self.live: Live | None = None
        self.rows: dict[Candidate, Row] = {}
        self.ready = -1

    def __enter__(self) -> Progress:
        self._line(
            f"{self.work.net}, {self.work.batch} images a step over all ranks: "
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
        """Name the candidates that will not be measured.

        Args:
            left_out: each with the reason.
        """
        for candidate, why in left_out:
            self._line(f"left out: {candidate} ({why})")

    def started(self, ready: int, starts: int) -> None:
        """Show how many starts of ranks are ready.

        Args:
            ready: how many (count).
            starts: of how many (count).
        """
        if ready != self.ready:
            self.ready = ready
            self._draw(f"ranks started for {ready} of {starts} settings", ready in (0, starts))

    def measured(self, row: Row, rung: int, used_s: float) -> None:
        """Show a measurement.

        Args:
            row: of the candidate so far.
            rung: of the search.
            used_s: time since the ranks are ready (s).
        """
        first = row.error or row.rung != getattr(self.rows.get(row.candidate), "rung", -1)
        self.rows[row.candidate] = row
        speed = f"failed: {row.error}" if row.error else f"{row.median:6.0f} images/s"
        text = f"{used_s:5.1f} s, rung {rung + 1}: {speed}  {row.candidate}"
        self._draw(text, bool(first))

    def done(self, result: TuneResult) -> None:
        """Show the table.

        Args:
            result: of the search.
        """
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


def table(rows: Sequence[Row], baseline: Any = None) -> Table:
    """Draw the candidates as a table.

    Args:
        rows: in the order to show them.
        baseline: the candidate whose speed is 1.00; None for none.

    Returns:
        Table: for a rich console.
    """
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
        "threads: per rank. cores: a rank keeps to its own (bound) or not (free).\n"
        "spread: of the quartiles. ratio: to TensorFlow's default with one rank."
    )
    drawn.caption_justify = "left"
    return drawn


def verdict(result: TuneResult) -> str:
    """Say in a sentence which candidate is the best and by how much."""
    if result.gain is None:
        return f"Best: {result.best}."
    if result.best == result.baseline:
        return f"Best: {result.best}. Nothing that was measured is faster."
    text = f"Best: {result.best}, {result.gain:.2f} times {result.baseline} "
    text += f"({result.gain_low:.2f} to {result.gain_high:.2f} in the last rounds)."
    if result.gain_low <= 1 <= result.gain_high:
        text += " The two cannot be told apart on this machine."
    return text
