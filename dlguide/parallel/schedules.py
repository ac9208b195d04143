"""Schedules of a pipeline: which stage does what when, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from dlguide.errors import require, require_count, require_known

FORWARD, BACKWARD = "forward", "backward"
Work = tuple[str, int]


@dataclass(frozen=True)
class Cell:
    """One microbatch on one stage, forward or backward, and when (s)."""

    stage: int
    microbatch: int
    kind: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took (s)."""
        return self.end_s - self.start_s


def gpipe(stage: int, stages: int, microbatches: int) -> list[Work]:
    """Order the work of one stage as GPipe does: all forward, then all backward.

    Source:
        Huang et al. 2018 (arXiv:1811.06965), figure 2.

    >>> gpipe(0, 2, 2)
    [('forward', 0), ('forward', 1), ('backward', 1), ('backward', 0)]
    """
    forward = [(FORWARD, microbatch) for microbatch in range(microbatches)]
    return forward + [(BACKWARD, microbatch) for _, microbatch in reversed(forward)]


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Work]:
    """Order the work of one stage so that each microbatch comes back as early as it can.

    Stage s lets p - 1 - s microbatches go ahead, then takes turns: one forward, one backward. So
    it never holds more than p - s of them, where GPipe holds all.

    Source:
        Narayanan et al. 2019 (PipeDream, SOSP), section 3.2; here with one update a batch, as in
        Narayanan et al. 2021 (arXiv:2104.04473), figure 4.

    >>> one_forward_one_backward(1, 2, 2)
    [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1)]
    """
    ahead = min(stages - 1 - stage, microbatches)
    order = [(FORWARD, microbatch) for microbatch in range(ahead)]
    for microbatch in range(ahead, microbatches):
        order += [(FORWARD, microbatch), (BACKWARD, microbatch - ahead)]
    return order + [(BACKWARD, m) for m in range(microbatches - ahead, microbatches)]


ORDERS: dict[str, Callable[[int, int, int], list[Work]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
}


def order(name: str, stage: int, stages: int, microbatches: int) -> list[Work]:
    """List the work of one stage by the name of the schedule."""
    require_known(name, ORDERS, "schedule")
    require_count(stages, "stages")
    require_count(microbatches, "microbatches")
    require(stage in range(stages), "stage", f"be 0 to {stages - 1}", stage)
    return ORDERS[name](stage, stages, microbatches)


def predict(
    name: str,
    stages: int,
    microbatches: int,
    forward_s: float | Sequence[float] = 1.0,
    backward_s: float | Sequence[float] = 2.0,
    message_s: float = 0.0,
) -> tuple[Cell, ...]:
    """Predict when each stage works on each microbatch.

    A cell starts when its stage is done with the one before, and when what it needs has come:
    forward from the stage before, backward from the stage behind.

    Args:
        name: "gpipe" or "1f1b".
        stages: number of stages (count).
        microbatches: number of microbatches (count).
        forward_s: time of one microbatch forward, one for all stages or one for each (s).
        backward_s: the same backward; about twice forward, three times with recomputation (s).
        message_s: time of a message between neighbours (s).

    Returns:
        tuple: all cells, stage by stage, each stage's in order.

    Raises:
        ValueError: when the name is unknown or a number is out of range.
    """
    orders = [order(name, stage, stages, microbatches) for stage in range(stages)]
    lasts = {FORWARD: _each(forward_s, stages), BACKWARD: _each(backward_s, stages)}
    ends: dict[tuple[int, str, int], float] = {}
    cells: list[list[Cell]] = [[] for _ in range(stages)]
    while any(orders):
        for stage, left in enumerate(orders):
            while left and all(key in ends for key in _needs(stage, stages, *left[0])):
                kind, microbatch = left.pop(0)
                needs = _needs(stage, stages, kind, microbatch)
                far = [ends[key] + message_s * (key[0] != stage) for key in needs]
                start = max([0.0, *far, *(cell.end_s for cell in cells[stage][-1:])])
                end = start + lasts[kind][stage]
                ends[stage, kind, microbatch] = end
                cells[stage].append(Cell(stage, microbatch, kind, start, end))
    return tuple(cell for row in cells for cell in row)


def bubble(stages: int, microbatches: int) -> float:
    """Give the share of the time that stages of equal speed wait, for both schedules.

    Each stage works m times a forward and a backward; the last one must wait for p - 1 forwards
    before it begins, and the first one for p - 1 backwards before it ends:

        (p - 1) / (m + p - 1)

    Leaves out messages and stages of unequal time; `waiting` counts them in a list of cells.

    Source:
        Huang et al. 2018 (arXiv:1811.06965), section 2.3.

    >>> bubble(2, 8) == 1 / 9
    True
    """
    require_count(stages, "stages")
    require_count(microbatches, "microbatches")
    return (stages - 1) / (microbatches + stages - 1)


def waiting(cells: Iterable[Cell]) -> float:
    """Count the share of the time in which stages do not work, in any list of cells.

    Messages, unequal stages and all other delays count as waiting.
    """
    cells = list(cells)
    require(bool(cells), "cells", "hold at least one cell", cells)
    stages = len({cell.stage for cell in cells})
    span_s = max(cell.end_s for cell in cells) - min(cell.start_s for cell in cells)
    return 1.0 - sum(cell.seconds for cell in cells) / (stages * span_s) if span_s else 0.0


def in_flight(cells: Iterable[Cell]) -> tuple[int, ...]:
    """Count for each stage how many microbatches it holds at most.

    A microbatch is held from its forward to its backward: so long its activations are needed.
    """
    most = []
    by_stage = sorted(cells, key=lambda cell: (cell.stage, cell.start_s))
    for _, row in groupby(by_stage, key=lambda cell: cell.stage):
        held = peak = 0
        for cell in row:
            held += 1 if cell.kind == FORWARD else -1
            peak = max(peak, held)
        most.append(peak)
    return tuple(most)


def overlapping(cells: Iterable[Cell]) -> list[tuple[Cell, Cell]]:
    """Find cells of one stage that lie on each other, which no schedule may have."""
    ordered = sorted(cells, key=lambda cell: (cell.stage, cell.start_s))
    return [
        (one, other)
        for one, other in pairwise(ordered)
        if one.stage == other.stage and other.start_s < one.end_s
    ]


def _needs(stage: int, stages: int, kind: str, microbatch: int) -> list[tuple[int, str, int]]:
    if kind == FORWARD:
        return [(stage - 1, FORWARD, microbatch)] if stage else []
    behind = [(stage + 1, BACKWARD, microbatch)] if stage + 1 < stages else []
    return [(stage, FORWARD, microbatch), *behind]


def _each(seconds: float | Sequence[float], stages: int) -> list[float]:
    if isinstance(seconds, int | float):
        return [float(seconds)] * stages
    require(len(seconds) == stages, "forward_s", f"have {stages} times", list(seconds))
    return list(seconds)
