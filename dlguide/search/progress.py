"""One line that says how far a search is, drawn over the line before."""

from __future__ import annotations

import sys
import time

from dlguide.search.results import Trial, parameters_text

DRAW_S = 0.1
LINE_S = 5.0  # in a file or a pipe, where no line can be drawn over another


class Progress:
    """The progress of a search, in a terminal or a notebook one line; in a file one now and then.

    Args:
        method: what it is called.
        show: whether to show anything.
    """

    def __init__(self, method: str, show: bool) -> None:
        self.method = method
        self.show = show
        self.begin_s = self.drawn_s = self.line_s = time.monotonic()
        self.expected = self.ended = self.failed = 0
        self.best: Trial | None = None
        self.width = 0
        self.live = show and (sys.stdout.isatty() or hasattr(sys.stdout, "topic"))

    def expect(self, trials: int) -> None:
        """Note that a round begins."""
        self.expected += trials

    def tell(self, trial: Trial) -> None:
        """Note a trial that has ended.

        Args:
            trial: the trial.
        """
        self.ended += 1
        self.failed += trial.failed
        if not trial.failed and (self.best is None or trial.score < self.best.score):
            self.best = trial
        now_s = time.monotonic()
        if self.live and now_s - self.drawn_s >= DRAW_S:
            self.drawn_s = now_s
            self._draw()
        elif self.show and not self.live and now_s - self.line_s >= LINE_S:
            self.line_s = now_s
            sys.stdout.write(f"{self.text()}\n")
            sys.stdout.flush()

    def text(self) -> str:
        """Write the line.

        Returns:
            str: the method, how many trials have ended, the best, failures and seconds.
        """
        done = round(20 * self.ended / max(1, self.expected))
        parts = [f"{self.method} [{'#' * done}{'.' * (20 - done)}] {self.ended}/{self.expected}"]
        if self.best is not None:
            best = f"best {self.best.score:.4f}: trial {self.best.number}"
            parts.append(f"{best} ({parameters_text(self.best.parameters)})")
        parts += [f"{self.failed} failed"] if self.failed else []
        return ", ".join([*parts, f"{time.monotonic() - self.begin_s:.1f} s"])

    def close(self) -> None:
        """Draw the line a last time and end it."""
        if self.live:
            self._draw()
            sys.stdout.write("\n")
        elif self.show:
            sys.stdout.write(f"{self.text()}\n")
        sys.stdout.flush()

    def _draw(self) -> None:
        text = self.text()
        sys.stdout.write("\r" + text.ljust(self.width))
        sys.stdout.flush()
        self.width = len(text)
