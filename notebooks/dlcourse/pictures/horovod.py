"""Horovod's timeline: a lane for each tensor, a colour for each phase, and computation above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlcourse.horovod_timeline import (
    COPY_IN,
    COPY_OUT,
    EXCHANGE,
    NEGOTIATION,
    OTHER,
    PREPARING,
    WAITING,
    FusedMessage,
    Timeline,
    total_s,
)
from dlguide.errors import require
from dlguide.plots.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPUTE = "compute"
COLOURS = {
    COMPUTE: BLUE,
    NEGOTIATION: "#cccccc",
    WAITING: SKY,
    PREPARING: "black",
    COPY_IN: GREEN,
    EXCHANGE: ORANGE,
    COPY_OUT: PURPLE,
    OTHER: GREY,
}
_MOST_NAMES = 24


def timeline(
    recorded: Timeline,
    steps: Sequence[tuple[float, float]] = (),
    title: str = "",
    span: tuple[float, float] | None = None,
) -> Figure:
    """Draw when tensors were negotiated, copied and exchanged, and when steps computed.

    A thin frame surrounds the tensors of one message. In the upper lane, blue is the part of the
    steps in which nothing was exchanged: computation during an exchange is not visible.

    Args:
        recorded: for example `horovod_timeline.read(path).matching("gradients")`.
        steps: begin and end of the steps of rank 0 on the timeline's clock (s), as its `steps`
            gives them; empty for no such lane.
        title: above the picture; "" counts tensors and messages.
        span: begin and end of the plot (s); None for all steps, or all events without them.

    Returns:
        Figure: lanes below each other, time in milliseconds after the begin of the span.

    Raises:
        ValueError: when there is nothing to draw in the span.
    """
    start, end = _span(recorded, steps, span)
    seen = [event for event in recorded.events if event.start_s < end and event.end_s > start]
    then = "Choose another span, or tensors with `matching`."
    require(bool(seen), "recorded", "have events in what is drawn", str(recorded), then)
    tensors = list(dict.fromkeys(event.tensor for event in sorted(seen, key=lambda e: e.start_s)))
    messages = [m for m in recorded.messages if m.start_s < end and m.end_s > start]
    labels = _short(tensors)
    parts = [part for part in recorded.compute(steps) if part[0] < end and part[1] > start]
    spans = {phase: [(e.start_s, e.end_s) for e in seen if e.phase == phase] for phase in COLOURS}
    spans[COMPUTE] = parts
    size = {"width": 9.0, "height": 1.3 + max(1.2, 0.22 * min(len(tensors), _MOST_NAMES))}
    drawn, (axes,) = figure(alt=_words(spans, messages, start, end), **size)
    lanes = {tensor: lane for lane, tensor in enumerate(tensors, start=1)}
    if steps:
        _bars(axes, parts, 0, COMPUTE, start)
    for phase in COLOURS:
        for tensor, lane in lanes.items():
            own = [(e.start_s, e.end_s) for e in seen if (e.tensor, e.phase) == (tensor, phase)]
            _bars(axes, own, lane, phase, start)
    for message in messages:
        _frame(axes, message, lanes, start)
    shown = tensors[:: -(-len(tensors) // _MOST_NAMES)]
    ticks = {0: "steps"} if steps else {}
    ticks |= {lanes[tensor]: labels[tensor] for tensor in shown}
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=8)
    axes.set_ylim(len(tensors) + 0.6, -0.6 if steps else 0.4)
    axes.set_xlim(0, 1e3 * (end - start))
    axes.set_xlabel("milliseconds")
    axes.grid(visible=False)
    counts = {"tensor": len(tensors), "message": len(messages)}
    count = ", ".join(f"{number} {noun}{'s' * (number != 1)}" for noun, number in counts.items())
    axes.set_title(title or count, fontsize=9, loc="left")
    _legend(axes, [phase for phase, stretches in spans.items() if stretches], messages)
    return drawn


def _span(
    recorded: Timeline, steps: Sequence[tuple[float, float]], span: tuple[float, float] | None
) -> tuple[float, float]:
    if span is not None:
        require(span[0] < span[1], "span", "end after it begins", span)
        return span
    stretches = steps or [(event.start_s, event.end_s) for event in recorded.events]
    require(bool(stretches), "recorded", "hold an event", str(recorded))
    return min(begin for begin, _ in stretches), max(stop for _, stop in stretches)


def _bars(
    axes: Axes, stretches: Sequence[tuple[float, float]], lane: int, phase: str, zero: float
) -> None:
    bars = [(1e3 * (begin - zero), 1e3 * (stop - begin)) for begin, stop in stretches]
    # White edges keep two steps apart; on short activities they would hide the colour.
    edge = {"edgecolor": "white", "linewidth": 0.6 if phase == COMPUTE else 0.0}
    axes.broken_barh(bars, (lane - 0.4, 0.8), facecolor=COLOURS[phase], **edge)


def _frame(axes: Axes, message: FusedMessage, lanes: Mapping[str, int], zero: float) -> None:
    """Put a frame around each run of neighbouring lanes of one message."""
    from matplotlib.patches import Rectangle

    own = sorted(lanes[tensor] for tensor in message.tensors if tensor in lanes)
    width = 1e3 * (message.end_s - message.start_s)
    while own:
        count = next((i for i, lane in enumerate(own) if lane != own[0] + i), len(own))
        corner = (1e3 * (message.start_s - zero), own[0] - 0.45)
        frame = Rectangle(corner, width, count - 0.1, fill=False, edgecolor="black", linewidth=0.5)
        axes.add_patch(frame)
        own = own[count:]


def _legend(axes: Axes, phases: Sequence[str], messages: Sequence[FusedMessage]) -> None:
    from matplotlib.patches import Patch

    operations = sorted({message.operation for message in messages})
    called = {EXCHANGE: operations[0] if len(operations) == 1 else EXCHANGE}
    marks = [Patch(facecolor=COLOURS[each], label=called.get(each, each)) for each in phases]
    marks.append(Patch(fill=False, edgecolor="black", linewidth=0.5, label="one message"))
    look = {"frameon": False, "fontsize": 8, "handlelength": 1.2, "columnspacing": 1.0}
    place = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": len(marks)}
    axes.legend(handles=marks, **place, **look)


def _short(tensors: Sequence[str]) -> dict[str, str]:
    """Leave out of each name what all of them begin with."""
    pairs = enumerate(zip(min(tensors), max(tensors), strict=False))
    alike = next((i for i, (one, other) in pairs if one != other), len(min(tensors)))
    return {tensor: (tensor[alike:] or tensor)[-24:] for tensor in tensors}


def _words(
    spans: Mapping[str, Sequence[tuple[float, float]]],
    messages: Sequence[FusedMessage],
    start: float,
    end: float,
) -> str:
    times = []
    for phase, stretches in spans.items():
        seconds = total_s((max(begin, start), min(stop, end)) for begin, stop in stretches)
        times += [f"{phase} {1e3 * seconds:.2f} ms"] if stretches else []
    most = max((len(message.tensors) for message in messages), default=0)
    return (
        f"Horovod's timeline over {1e3 * (end - start):.2f} ms. Messages: {len(messages)}; tensors "
        f"in the largest: {most}. {'; '.join(times)}."
    )
