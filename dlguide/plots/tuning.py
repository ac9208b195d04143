"""The heat map of a search: images/s for each number of ranks and threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.plots.figures import ORANGE, figure, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def tuning(result: Any, path: str | os.PathLike | None = None) -> Figure:
    """Draw images/s as the colour of a cell for each number of ranks and threads per rank.

    Of the candidates of one cell, which differ in inter-op threads and binding, the best gives
    the colour. The frame marks the best of all; "default" is what TensorFlow does by itself, and
    "free" stands for ranks that are not bound.

    Args:
        result: a `tuning.Tuned` or a `threads.TuneResult`: `rows` with `candidate`, `median`,
            `rung` and `error`; `best`; `baseline`.
        path: file to write, its ending names the format; None for none.

    Returns:
        Figure: ranks to the right, threads per rank upwards.

    Raises:
        ValueError: when no candidate was measured.
    """
    cells: dict[tuple[int, int], list[Any]] = {}
    for row in result.rows:
        if row.median > 0 and not row.error:
            where = (row.candidate.ranks, row.candidate.threads)
            cells.setdefault(where, []).append(row)
    require(bool(cells), "result", "hold a candidate that was measured", [])
    ranks = sorted({where[0] for where in cells})
    threads = sorted({where[1] for where in cells})
    best = {where: max(rows, key=_worth) for where, rows in cells.items()}
    drawn, (axes,) = figure(
        width=max(4.2, 2.2 + 1.5 * len(ranks)),
        height=max(2.6, 1.4 + 0.75 * len(threads)),
        alt=_words(result, best),
    )
    grid = [[best[p, t].median if (p, t) in best else float("nan") for p in ranks] for t in threads]
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="cividis")
    speeds = [row.median for row in best.values()]
    middle = (min(speeds) + max(speeds)) / 2
    for (p, t), row in best.items():
        text = f"{row.median:.0f}\n{_settings(row.candidate)}"
        others = [each for each in cells[p, t] if each.candidate.default and each is not row]
        text += "".join(f"\ndefault: {each.median:.0f}" for each in others)
        # cividis is dark at its lower end
        colour = "black" if row.median >= middle else "white"
        place = (ranks.index(p), threads.index(t))
        axes.text(*place, text, color=colour, ha="center", va="center", fontsize=8)
        if result.best == row.candidate:
            _frame(axes, place)
    axes.set_xticks(range(len(ranks)), [str(each) for each in ranks])
    axes.set_yticks(range(len(threads)), [str(each) for each in threads])
    axes.set(xlabel="ranks", ylabel="threads per rank", title="Throughput (frame: the best)")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    drawn.colorbar(image, ax=axes, label="images/s over all ranks")
    return written(drawn, path)


def _worth(row: Any) -> tuple[int, float]:
    return row.rung, row.median


def _settings(candidate: Any) -> str:
    if candidate.default:
        return "default"
    return f"inter-op {candidate.inter_op}, {'bound' if candidate.bound else 'free'}"


def _frame(axes: Any, place: tuple[int, int]) -> None:
    from matplotlib.patches import Rectangle

    corner = (place[0] - 0.47, place[1] - 0.47)
    axes.add_patch(Rectangle(corner, 0.94, 0.94, fill=False, edgecolor=ORANGE, linewidth=3))


def _words(result: Any, best: dict[tuple[int, int], Any]) -> str:
    said = [
        f"{p} rank{'s' * (p > 1)} x {t} thread{'s' * (t > 1)}: {row.median:.0f}"
        for (p, t), row in sorted(best.items())
    ]
    base = "" if result.baseline is None else f" Baseline: {result.baseline}."
    return f"Heat map of images/s. {'; '.join(said)}. Best: {result.best}.{base}"
