"""What a run on ranks raises when a rank fails."""

from __future__ import annotations

from collections.abc import Sequence


class RankError(RuntimeError):
    """One or more ranks failed, left early, or can never go on; all ranks were then stopped.

    Attributes:
        kind: "raised", "exited", "died", "frozen", "deadlock" or "lost".
        ranks: the ranks it is about (indices).
        detail: tracebacks, or what each rank was doing.
    """

    def __init__(self, kind: str, ranks: Sequence[int], message: str, detail: str = "") -> None:
        super().__init__(f"{message}\n\n{detail}".rstrip())
        self.kind = kind
        self.ranks = tuple(ranks)
        self.detail = detail

    def _render_traceback_(self) -> list[str]:
        """Show the text alone in a notebook: the frames of the launcher teach nobody anything."""
        return [f"RankError: {line}" if i == 0 else line for i, line in enumerate(self.lines())]

    def lines(self) -> list[str]:
        """Return the text as lines."""
        return str(self).splitlines()
