"""The symptoms of a training on several ranks, in one picture that looks the same each time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure, written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"), (PURPLE, "-."))
_NOBODY, _ONE, _SEVERAL = "#222222", SKY, ORANGE


def symptoms(
    trials: Sequence[Any],
    reference: Sequence[Any] = (),
    path: str | os.PathLike | None = None,
) -> Figure:
    """Draw what each rank showed: its loss, the distance of the weights, who took which sample.

    The loss is that of the same test images on all ranks, so that equal models give one line. Each
    square on the right is a sample of the data set, in its order: taken in the first epoch by no
    rank, by one, or by several.

    Args:
        trials: one for each rank, as `dlguide.training.trial.run` returns them.
        reference: the trials of another program, whose loss is drawn in grey; none for none.
        path: file to write, its ending names the format (png, svg, pdf); None for none.

    Returns:
        Figure: three panels, side by side.

    Raises:
        ValueError: when there are no trials.
    """
    require(len(trials) > 0, "trials", "hold the trial of each rank", [])
    counts = taken_by(trials)
    alt = _words(trials, counts)
    drawn, (loss, distance, samples) = figure(columns=3, width=11, height=2.9, alt=alt)
    if reference:
        steps = range(1, len(reference[0].loss) + 1)
        loss.plot(steps, reference[0].loss, color=GREY, linewidth=5, alpha=0.4, label="reference")
    for trial in trials:
        colour, line = _LINES[trial.rank % len(_LINES)]
        steps = range(1, len(trial.loss) + 1)
        loss.plot(steps, trial.loss, line, color=colour, linewidth=2, label=f"rank {trial.rank}")
    loss.set(xlabel="step", ylabel="loss on the same test images", title="Loss of each rank")
    loss.set_ylim(bottom=0)
    loss.legend(frameon=False)

    apart = trials[0].distance
    distance.plot(range(1, len(apart) + 1), apart, color=PURPLE, linewidth=2)
    top = max(apart, default=0.0)
    distance.set(xlabel="step", ylabel="largest difference of a weight", title="Ranks apart")
    distance.set_ylim(-0.04 * (top or 1), 1.15 * top or 1)
    if not top:
        distance.set_yticks([0])
        middle = (0.5, 0.5)
        distance.annotate("0 after every step", middle, xycoords="axes fraction", ha="center")
    _grid(samples, counts)
    return written(drawn, path)


def taken_by(trials: Sequence[Any]) -> np.ndarray:
    """Count for each sample the ranks that took it in the first epoch.

    Args:
        trials: one for each rank.

    Returns:
        ndarray: number of ranks, shape (samples,).
    """
    counts = np.zeros(trials[0].samples, int)
    for trial in trials:
        counts[list(set(trial.taken))] += 1
    return counts


def _grid(axes: Axes, counts: np.ndarray) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    columns = _columns(len(counts))
    rows = -(-len(counts) // columns)
    squares = np.full(rows * columns, np.nan)
    squares[: len(counts)] = np.minimum(counts, 2)
    colours = ListedColormap([_NOBODY, _ONE, _SEVERAL])
    axes.imshow(squares.reshape(rows, columns), cmap=colours, vmin=0, vmax=2, aspect="auto")
    named = zip((_NOBODY, _ONE, _SEVERAL), _kinds(counts).items(), strict=True)
    patches = [Patch(color=colour, label=f"{name}: {count}") for colour, (name, count) in named]
    axes.legend(handles=patches, loc="upper center", bbox_to_anchor=(0.5, -0.02), frameon=False,
                fontsize=9, ncols=3, columnspacing=1.0, handlelength=1.0)  # fmt: skip
    axes.set(title=f"Who took each of the {len(counts)} samples", xticks=[], yticks=[])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


def _columns(samples: int) -> int:
    """Half as many columns again as rows, and full rows where that is nearly possible."""
    ideal = max(1, round((1.5 * samples) ** 0.5))
    near = range(max(1, ideal * 2 // 3), ideal * 3 // 2 + 1)
    full = [columns for columns in near if samples % columns == 0]
    return min(full, key=lambda columns: abs(columns - ideal), default=ideal)


def _kinds(counts: np.ndarray) -> dict[str, int]:
    found = Counter(np.minimum(counts, 2).tolist())
    return {name: found[i] for i, name in enumerate(("no rank", "one rank", "several"))}


def _words(trials: Sequence[Any], counts: np.ndarray) -> str:
    losses = ", ".join(f"{each.loss[-1]:.3f}" for each in trials)
    kinds = ", ".join(f"{name} {count}" for name, count in _kinds(counts).items())
    return (
        f"Three panels. Loss at the end on ranks 0 to {len(trials) - 1}: {losses}. Largest "
        f"difference of the weights at the end: {trials[0].distance[-1]:.2g}. "
        f"Samples of the first epoch by who took them: {kinds}."
    )
