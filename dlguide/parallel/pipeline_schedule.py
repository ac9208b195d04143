"""Schedules of a pipeline: which stage computes which microbatch when, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from dlguide.errors import require, require_count, require_known

FORWARD, BACKWARD = "forward", "backward"
Work = tuple[str, int]


@dataclass(frozen=True)
class PipelineCell:
    """One microbatch on one stage, forward or backward, with its times (s)."""

    stage: int
    microbatch: int
    kind: str
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """Duration (s)."""
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
    """Order the work of one stage so that each microbatch goes backward as early as it can.

    Stage s computes p - 1 - s microbatches forward, then alternates: one forward, one backward. So
    it never holds more than p - s of them, where GPipe holds all.

    Source:
        Narayanan et al. 2019 (PipeDream, SOSP), section 3.2; here with one update per batch, as in
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
) -> tuple[PipelineCell, ...]:
    """Predict when each stage works on each microbatch.

    A cell starts when its stage has finished the one before and its input has arrived: forward
    from the previous stage, backward from the next one.

    Args:
        name: "gpipe" or "1f1b".
        forward_s: time of one microbatch forward, one for all stages or one per stage.
        backward_s: the same backward; about twice forward, three times with recomputation.
        message_s: time of a message between neighbours.

    Returns:
        tuple: all cells, stage by stage, each stage's in order.

    Raises:
        ValueError: when the name is unknown or a number is out of range.
    """
    orders = [order(name, stage, stages, microbatches) for stage in range(stages)]
    lasts = {FORWARD: _each(forward_s, stages), BACKWARD: _each(backward_s, stages)}
    ends: dict[tuple[int, str, int], float] = {}
    cells: list[list[PipelineCell]] = [[] for _ in range(stages)]
    while any(orders):
        for stage, left in enumerate(orders):
            while left and all(key in ends for key in _needs(stage, stages, *left[0])):
                kind, microbatch = left.pop(0)
                needs = _needs(stage, stages, kind, microbatch)
                far = [ends[key] + message_s * (key[0] != stage) for key in needs]
                start = max([0.0, *far, *(cell.end_s for cell in cells[stage][-1:])])
                end = start + lasts[kind][stage]
                ends[stage, kind, microbatch] = end
                cells[stage].append(PipelineCell(stage, microbatch, kind, start, end))
    return tuple(cell for row in cells for cell in row)


def bubble(stages: int, microbatches: int) -> float:
    """Return the share of time in which stages of equal speed are idle, for both schedules.

    Each stage works m times a forward and a backward; the last one must wait for p - 1 forwards
    before it begins, and the first one for p - 1 backwards before it ends:

        (p - 1) / (m + p - 1)

    Leaves out messages and stages of unequal time; `idle_share` includes them.

    Source:
        Huang et al. 2018 (arXiv:1811.06965), section 2.3.

    >>> bubble(2, 8) == 1 / 9
    True
    """
    require_count(stages, "stages")
    require_count(microbatches, "microbatches")
    return (stages - 1) / (microbatches + stages - 1)


def idle_share(cells: Iterable[PipelineCell]) -> float:
    """Return the share of time in which stages do not compute, for any list of cells.

    Messages, unequal stages and all other delays count as idle.
    """
    cells = list(cells)
    require(bool(cells), "cells", "hold at least one cell", cells)
    stages = len({cell.stage for cell in cells})
    span_s = max(cell.end_s for cell in cells) - min(cell.start_s for cell in cells)
    return 1.0 - sum(cell.seconds for cell in cells) / (stages * span_s) if span_s else 0.0


def in_flight(cells: Iterable[PipelineCell]) -> tuple[int, ...]:
    """Return for each stage the largest number of microbatches that it holds.

    A microbatch is held from its forward to its backward pass, while its activations are needed.
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
