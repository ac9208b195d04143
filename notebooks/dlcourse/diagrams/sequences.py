"""Problems with sequences: what goes in, what comes out, and which step waits for which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlcourse.diagrams.shapes import arrow, bare, box
from dlguide import plots
from dlguide.errors import require_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_IN, _STATE, _OUT = plots.SKY, "#F0E442", "#E69F00"
# title, example, columns that have an input, columns that have an output, output fed back
_SHAPES = (
    ("one to one", "an image,\nits class", (0,), (0,), False),
    ("one to many", "a beginning,\na text", (0,), (0, 1, 2), True),
    ("many to one", "past years,\nthe next one", (0, 1, 2), (2,), False),
    ("many to many, in step", "characters, for each\nthe next one", (0, 1, 2), (0, 1, 2), False),
    ("many to many, one after the other", "a sentence,\nits translation", (0, 1), (2, 3), True),
)


def sequences() -> Figure:
    """Draw the shapes that a problem with sequences can have.

    Inputs are below, states in the middle, outputs above; time runs to the right. A dashed arrow
    is an output that comes back as the next input.

    Returns:
        Figure: one panel for each shape, with an example.

    Source:
        Guide, section 2.5, which names one-to-one and one-to-many.
    """
    said = "; ".join(
        f"{title}: {len(ins)} in, {len(outs)} out{', each output fed back' * back}, such as "
        f"{' '.join(example.split())}"
        for title, example, ins, outs, back in _SHAPES
    )
    widths = [max(*ins, *outs) + 1 for _, _, ins, outs, _ in _SHAPES]
    figure, grid = plots.figure(
        columns=len(_SHAPES), width=11.0, height=2.9, alt=f"Shapes. {said}."
    )
    grid[0].get_gridspec().set_width_ratios([width + 1.0 for width in widths])
    for axes, (title, example, ins, outs, back), width in zip(grid, _SHAPES, widths, strict=True):
        middle = (width - 1) / 2
        bare(axes, (middle - width / 2 - 0.5, middle + width / 2 + 0.5), (-1.3, 2.9))
        words = title.replace(", ", ",\n").replace(" the other", "\nthe other")
        axes.text(middle, 2.45, words, ha="center", va="center", fontsize=9, weight="bold")
        axes.text(middle, -0.95, example, ha="center", va="center", fontsize=8)
        for column in range(width):
            _column(axes, column, column in ins, column in outs)
            if column:
                arrow(axes, (column - 0.7, 0.75), (column - 0.3, 0.75))
            if back and column in outs and column + 1 < width:
                _fed_back(axes, column)
    return figure


def _column(axes: Axes, column: int, has_input: bool, has_output: bool) -> None:
    box(axes, column, 0.75, "", _STATE, 0.6, 0.4)
    if has_input:
        box(axes, column, -0.2, "", _IN, 0.6, 0.4)
        arrow(axes, (column, 0.0), (column, 0.55))
    if has_output:
        box(axes, column, 1.7, "", _OUT, 0.6, 0.4)
        arrow(axes, (column, 0.95), (column, 1.5))


def _fed_back(axes: Axes, column: int) -> None:
    style = {"arrowstyle": "->", "color": plots.GREY, "linestyle": "--", "shrinkA": 0, "shrinkB": 0}
    ends = (column + 0.85, 0.95), (column + 0.3, 1.6)
    axes.annotate("", *ends, arrowprops={**style, "connectionstyle": "arc3,rad=-0.35"})


def dependencies(steps: int = 5) -> Figure:
    """Draw which results a step must wait for: in a recurrent net and in causal attention.

    The number in a box is the round in which it can be computed when nothing but waiting counts:
    step t of a recurrent layer in round t, every step of an attention layer in round 1.

    Args:
        steps: length of the sequence (count), at least 2.

    Returns:
        Figure: two panels, the recurrent layer on the left.
    """
    require_count(steps, "steps", least=2)
    alt = (
        f"Left, a recurrent layer over {steps} steps: each state needs the one before it, so they "
        f"are computed in rounds 1 to {steps}. Right, causal attention over {steps} steps: each "
        "result needs the inputs up to its own step and no other result, so all are computed in "
        "round 1."
    )
    figure, grid = plots.figure(columns=2, width=9.0, height=2.3, alt=alt)
    for axes, title in zip(grid, ("recurrent layer", "causal attention"), strict=True):
        bare(axes, (-0.9, steps - 0.4), (-0.45, 1.75))
        axes.set_title(title, fontsize=10)
        chain = title == "recurrent layer"
        for step in range(steps):
            box(axes, step, 0.0, f"$x_{{{step + 1}}}$", _IN, 0.55, 0.36)
            box(axes, step, 1.3, str(step + 1 if chain else 1), _STATE, 0.55, 0.36)
            for seen in [step] if chain else range(step + 1):
                arrow(axes, (seen, 0.18), (step, 1.12))
            if chain and step:
                arrow(axes, (step - 0.72, 1.3), (step - 0.28, 1.3))
        axes.text(-0.85, 1.3, "round", va="center", ha="left", fontsize=8)
    return figure
