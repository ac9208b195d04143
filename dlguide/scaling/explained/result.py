"""A published table beside the model's numbers, and all that was assumed for them."""

from __future__ import annotations

from dataclasses import dataclass

PREDICTED, FITTED, SOLVED = "predicted", "fitted", "solved"


@dataclass(frozen=True)
class Row:
    """One published number and the model's.

    Args:
        what: what is measured, and by whom.
        workers: number of workers, in the table's own unit (count).
        published: as printed.
        predicted: by the model, same unit.
        how: "predicted" from other numbers; "fitted" to this one among more than the model has
            coefficients; "solved": one unknown was chosen so that both agree, which proves
            nothing.
        low: one in twenty is expected to be lower; None where there is no interval.
        high: one in twenty is expected to be higher; None where there is no interval.
    """

    what: str
    workers: int
    published: float
    predicted: float
    how: str
    low: float | None = None
    high: float | None = None

    @property
    def ratio(self) -> float:
        """The model's number over the published one."""
        return self.predicted / self.published

    @property
    def inside(self) -> bool | None:
        """Whether the interval holds the published number; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.published <= self.high


@dataclass(frozen=True)
class Explained:
    """A published table, row by row.

    Args:
        name: the table's file in `data/published`.
        rows: published and predicted.
        assumptions: all that the source does not state and the model needs, sentences.
    """

    name: str
    rows: tuple[Row, ...]
    assumptions: tuple[str, ...]

    def worst(self) -> float:
        """Find the largest relative error among rows that were not solved for.

        Returns:
            float: fraction; 0.0 when all were solved.
        """
        return max((abs(row.ratio - 1) for row in self.rows if row.how != SOLVED), default=0.0)

    def __str__(self) -> str:
        width = max(len(row.what) for row in self.rows)
        lines = [f"{self.name}: {'what':{width}}  workers  published  model  off by  how"]
        indent = " " * (len(self.name) + 2)
        for row in self.rows:
            off = "" if row.how == SOLVED else f"{100 * (row.ratio - 1):+.1f} %"
            span = "" if row.low is None else f" ({row.low:.3g} to {row.high:.3g})"
            lines.append(
                f"{indent}{row.what:{width}}  {row.workers:7}  {row.published:9.4g}  "
                f"{row.predicted:.4g}{span}  {off}  {row.how}"
            )
        return "\n".join([*lines, *(f"Assumed: {each}" for each in self.assumptions)])
