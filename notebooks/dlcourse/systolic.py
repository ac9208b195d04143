"""A systolic array, the matrix unit of a TPU, simulated clock by clock in whole numbers.

Each cell keeps one weight. Inputs move from left to right, sums from top to bottom; in every
clock each cell multiplies, adds, and passes both on. An input is read from memory once and used
in every column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dlguide.errors import require


@dataclass(frozen=True)
class SystolicClock:
    """Contents of the cells at the end of one clock; None for an idle cell."""

    number: int
    inputs: tuple[tuple[int | None, ...], ...]
    sums: tuple[tuple[int | None, ...], ...]
    results: tuple[tuple[int | None, ...], ...]

    @property
    def busy(self) -> int:
        """Cells that multiplied in this clock."""
        return sum(value is not None for row in self.inputs for value in row)


def simulate(inputs: np.ndarray, weights: np.ndarray) -> tuple[SystolicClock, ...]:
    """Multiply two matrices of whole numbers in a systolic array that keeps the weights.

    Row m of the inputs enters one clock after row m - 1, its k-th number k clocks later; so
    cell (k, n) works on row m in clock m + k + n. With M rows and an array of K x N cells the
    last result leaves after M + K + N - 2 clocks.
    """
    left, kept = np.asarray(inputs), np.asarray(weights)
    fits = left.ndim == kept.ndim == 2 and left.shape[1] == kept.shape[0]
    require(fits, "inputs", f"be M x {kept.shape[0]} for these weights", left.shape)
    rows, depth = left.shape
    columns = kept.shape[1]
    results: list[list[int | None]] = [[None] * columns for _ in range(rows)]
    above: list[list[int | None]] = [[None] * columns for _ in range(depth)]
    found = []
    for number in range(rows + depth + columns - 2):
        entered: list[list[int | None]] = [[None] * columns for _ in range(depth)]
        sums: list[list[int | None]] = [[None] * columns for _ in range(depth)]
        for k in range(depth):
            for n in range(columns):
                m = number - k - n
                if not 0 <= m < rows:
                    continue
                from_above = above[k - 1][n] if k else 0
                entered[k][n] = int(left[m, k])
                sums[k][n] = int(from_above + left[m, k] * kept[k, n])
                if k == depth - 1:
                    results[m][n] = sums[k][n]
        above = sums
        found.append(SystolicClock(number, _frozen(entered), _frozen(sums), _frozen(results)))
    return tuple(found)


def _frozen(rows: list[list[int | None]]) -> tuple[tuple[int | None, ...], ...]:
    return tuple(tuple(row) for row in rows)
