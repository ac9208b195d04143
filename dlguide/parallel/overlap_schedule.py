"""When gradients travel: at the end, layer by layer, or while the backward pass still runs.

    at the end    step = B + F + message of all bytes
    overlapped    step >= max(B + F, first gradient ready + all messages)

B and F are the times of the backward and the next forward pass. A step lasts here from the begin
of the backward pass to the end of the forward pass that follows, since that is what waits.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlguide.errors import require, require_count, require_known, require_positive

BACKWARD, EXCHANGE, FORWARD = "backward", "exchange", "forward"
SCHEDULES = {
    "end": "one message when the backward pass is over",
    "layerwise": "one message after each layer, computing waits",
    "overlapped": "one message after each layer, computing goes on",
    "priority": "as overlapped, and the layer nearest to the input goes first",
}


@dataclass(frozen=True)
class Interval:
    """What happened from when to when (s): a layer backward, its exchange, or a layer forward.

    `layer` is None for the one message of all layers.
    """

    kind: str
    layer: int | None
    start_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        """How long it took (s)."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Schedule:
    """One step, predicted or measured: a backward pass, its exchange, the next forward pass.

    `exposed_s` is the part of the step in which nothing is computed, and

        overlap = 1 - exposed / exchange

    the share of the exchange that hides behind computing. It is not cut off: a measured overlap
    below 0 says that computing and exchange disturbed each other, or that ranks waited.
    """

    name: str
    intervals: tuple[Interval, ...]

    @property
    def step_s(self) -> float:
        """From the begin of the first interval to the end of the last one (s)."""
        begin = min(each.start_s for each in self.intervals)
        return max(each.end_s for each in self.intervals) - begin

    @property
    def computing_s(self) -> float:
        """Time of all that is not exchange (s)."""
        return sum(each.seconds for each in self.intervals if each.kind != EXCHANGE)

    @property
    def exchange_s(self) -> float:
        """Time of all messages (s)."""
        return sum(each.seconds for each in self.intervals if each.kind == EXCHANGE)

    @property
    def exposed_s(self) -> float:
        """Time of the step in which nothing is computed (s)."""
        return self.step_s - self.computing_s

    @property
    def overlap(self) -> float:
        """Share of the exchange that is hidden; 0.0 when there is no exchange."""
        return 1 - self.exposed_s / self.exchange_s if self.exchange_s > 0 else 0.0


def allreduce_seconds(nbytes: float, ranks: int, latency_s: float, bytes_per_s: float) -> float:
    """Predict the time of a ring allreduce.

        t = 2 (p - 1) (latency_s + nbytes / (p * bytes_per_s))

    Source:
        Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009), 117-124.

    >>> allreduce_seconds(1e6, 2, 1e-5, 1e9)
    0.00102
    """
    return 2 * (ranks - 1) * (latency_s + nbytes / (ranks * bytes_per_s))


def predict(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    nbytes: Sequence[int],
    schedule: str,
    ranks: int,
    latency_s: float,
    bytes_per_s: float,
    slice_bytes: int | None = None,
) -> Schedule:
    """Predict one step of a schedule, for ranks that are all equally fast.

    Backward goes from the last layer to layer 0. One message travels at a time, and none is
    interrupted. Forward of a layer waits for that layer's gradient only; the update takes no
    time. What an exchange takes is `allreduce_seconds`, also while the rank computes: this
    assumes that somebody else does the work of the exchange, a core or a network card.

    Args:
        forward_s: time of each layer forward, from the input on (s).
        backward_s: time of each layer backward, from the input on (s).
        nbytes: gradient of each layer (bytes).
        schedule: one of `SCHEDULES`.
        ranks: number of ranks (count).
        latency_s: time of an empty message between neighbours (s).
        bytes_per_s: speed of one link in one direction (bytes/s).
        slice_bytes: cut larger gradients into messages of at most this size, which lets an urgent
            layer pass a large one; None does not cut. "end" never does (bytes).

    Returns:
        Schedule: its intervals, the backward pass begins at 0.

    Raises:
        ValueError: when the schedule is unknown or the lists do not fit.

    Source:
        Layer by layer: Awan et al., S-Caffe, PPoPP (2017). First layers first, in slices:
        Jayarajan et al., P3, MLSys (2019), arXiv:1905.03960.
    """
    _require_sound(forward_s, backward_s, nbytes, schedule, ranks, latency_s, bytes_per_s)
    seconds = partial(allreduce_seconds, ranks=ranks, latency_s=latency_s, bytes_per_s=bytes_per_s)
    backward, now = [], 0.0
    for layer in reversed(range(len(nbytes))):
        backward.append(Interval(BACKWARD, layer, now, now + backward_s[layer]))
        now += backward_s[layer]
        if schedule == "layerwise":
            now += sum(map(seconds, slices(nbytes[layer], slice_bytes)))
    if schedule == "end":
        sent = [Interval(EXCHANGE, None, now, now + seconds(sum(nbytes)))]
    else:
        ready = [
            (each.end_s, each.layer, part)
            for each in backward
            for part in slices(nbytes[each.layer or 0], slice_bytes)
        ]
        sent = _sent(ready, seconds, schedule == "priority")
    return Schedule(schedule, (*backward, *sent, *_forward(forward_s, backward, sent)))


def typical(steps: Sequence[Schedule]) -> Schedule:
    """Choose the step whose duration is the median one."""
    require(bool(steps), "steps", "hold at least one step", list(steps))
    return sorted(steps, key=lambda step: step.step_s)[len(steps) // 2]


def slices(nbytes: int, slice_bytes: int | None) -> list[int]:
    """Cut a size into equal slices and a rest.

    >>> slices(10, 4)
    [4, 4, 2]
    """
    if slice_bytes is None:
        return [nbytes]
    size = require_count(slice_bytes, "slice_bytes")
    return [min(size, nbytes - start) for start in range(0, nbytes, size)] or [0]


def by_layer(cost: Any, step_s: float) -> tuple[list[float], list[float], list[int]]:
    """Share the measured or published time of a step out among the layers of a net.

    Each layer with weights, and the layers behind it up to the next one with weights, is one
    row. Times are shared by flops, backward twice forward; real layers reach different speeds.
    """
    require_positive(step_s, "step_s")
    flops, nbytes, before = [], [], 0.0
    for layer in cost.layers:
        if layer.trainable:
            flops.append(before)
            nbytes.append(4 * layer.trainable)
            before = 0.0
        if flops:
            flops[-1] += layer.flops
        else:
            before += layer.flops
    require(bool(flops), "cost", "have a layer that is trained", cost.name)
    forward_s = [step_s * each / sum(flops) / 3 for each in flops]
    return forward_s, [2 * each for each in forward_s], nbytes


def _sent(
    ready: Sequence[tuple[float, Any, int]], seconds: Callable[[float], float], urgent: bool
) -> list[Interval]:
    """Send messages one after the other; `ready` are time, layer and size in the order of time."""
    waiting: list[tuple[int, int, int]] = []
    sent: list[Interval] = []
    now, coming = 0.0, 0
    while waiting or coming < len(ready):
        if not waiting:
            now = max(now, ready[coming][0])
        while coming < len(ready) and ready[coming][0] <= now:
            _, layer, part = ready[coming]
            heapq.heappush(waiting, (layer if urgent else 0, coming, part))
            coming += 1
        _, number, part = heapq.heappop(waiting)
        sent.append(Interval(EXCHANGE, ready[number][1], now, now + seconds(part)))
        now = sent[-1].end_s
    return sent


def _forward(
    forward_s: Sequence[float], backward: list[Interval], sent: list[Interval]
) -> list[Interval]:
    row: list[Interval] = []
    for layer, took in enumerate(forward_s):
        needed = [each.end_s for each in sent if each.layer in (None, layer)]
        start = max([*needed, row[-1].end_s if row else backward[-1].end_s])
        row.append(Interval(FORWARD, layer, start, start + took))
    return row


def _require_sound(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    nbytes: Sequence[int],
    schedule: str,
    ranks: int,
    latency_s: float,
    bytes_per_s: float,
) -> None:
    require_known(schedule, SCHEDULES, "schedule")
    require_count(ranks, "ranks")
    require_positive(bytes_per_s, "bytes_per_s")
    require(len(nbytes) > 0, "nbytes", "hold at least one layer", list(nbytes))
    for name, row in (("forward_s", forward_s), ("backward_s", backward_s), ("nbytes", nbytes)):
        fits = len(row) == len(nbytes)
        require(fits, name, f"hold one number for each of {len(nbytes)} layers", len(row))
        require(min(row) >= 0, name, "hold no negative number", list(row))
    require(latency_s >= 0, "latency_s", "be at least 0", latency_s)
