"""Data-parallel training whose gradients go layer by layer, in four schedules, on real ranks.

    with Layerwise(KerasLayers(model, optimizer), comm, "overlapped") as trainer:
        for images, labels in shard:
            loss = trainer.step(images, labels)
        trainer.finish()

The result is that of one process with the batches of all ranks, whatever the schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise, clock_offset, require_equal
from dlguide.collectives.algorithms import segments
from dlguide.errors import require, require_count, require_known
from dlguide.parallel.background import Background, require_threads
from dlguide.parallel.overlap_schedule import (
    BACKWARD,
    EXCHANGE,
    FORWARD,
    SCHEDULES,
    Interval,
    Schedule,
)

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

UPDATE = "update"


class Layers(Protocol):
    """A net as `Layerwise` needs it: layers in a row, each with a gradient of its own.

    `sizes` are the weights of each layer (count), at least one; `dtype` is that of all gradients;
    `loss` the sum over the samples of the last batch; `names` are for people, `kinds` say what must
    be alike on all ranks.
    """

    sizes: list[int]
    dtype: str
    loss: float
    names: list[str]
    kinds: list[str]

    def begin(self, images: Any, labels: Any) -> int:
        """Take a batch and give its number of samples; raises a ValueError if it is not good."""

    def forward(self, layer: int) -> None:
        """Compute one layer forward, from 0 on."""

    def backward(self, layer: int, gradient: np.ndarray) -> None:
        """Compute one layer backward and write the sum over samples of its gradient."""

    def update(self, layer: int, gradient: np.ndarray) -> None:
        """Change the weights of one layer by the mean gradient of all samples."""


class Layerwise:
    """Trains a net on every rank and sums the gradients layer by layer.

    A layer's gradient is summed over ranks after its backward pass, in the schedule asked for,
    and the weights are changed just before the layer's next forward pass: so `step` returns
    while gradients may still be on their way, and `finish` waits for them. Each message carries
    one number more, the rank's samples: gradients are sums over samples and are divided by all
    samples, so batches may differ in size. Every rank must call, with its own part of the batch,
    and the nets must begin with equal weights.

    Left out: batch normalisation sees the rank's own samples, dropout draws for each rank alone.

    Source:
        Awan et al., S-Caffe, PPoPP (2017): gradients of a layer travel while the next is computed.
    """

    def __init__(
        self,
        net: Layers,
        comm: Comm,
        schedule: str = "overlapped",
        slice_bytes: int | None = None,
    ) -> None:
        require_equal(
            comm, schedule=schedule, slice_bytes=slice_bytes, layers=(net.kinds, net.dtype)
        )
        with agree_or_raise(comm):
            require_known(schedule, SCHEDULES, "schedule")
            if slice_bytes is not None:
                require_count(slice_bytes, "slice_bytes")
            if schedule in ("overlapped", "priority"):
                require_threads()
        self.net, self.comm, self.schedule = net, comm, schedule
        self.steps: list[Schedule] = []
        self._intervals: list[Interval] = []
        self._offset_s = clock_offset(comm)
        ends = np.cumsum([size + 1 for size in net.sizes])
        self._flat = np.zeros(ends[-1], net.dtype)
        self._rows = np.split(self._flat, ends[:-1])
        self._pending: set[int] = set()
        cut = [_sliced(row, slice_bytes) for row in self._rows]
        pieces = [(layer, part) for layer, row in enumerate(cut) for part in row]
        self._pieces = [part for _, part in pieces]
        self._of_layer = {
            layer: [place for place, each in enumerate(pieces) if each[0] == layer]
            for layer in range(len(cut))
        }
        self._closed = False
        self._thread: Background | None = None
        if schedule in ("overlapped", "priority"):
            layers = [layer for layer, _ in pieces]
            urgent = schedule == "priority"
            self._thread = Background(comm, self._pieces, layers, urgent, self._now)

    def step(self, images: Any, labels: Any) -> float:
        """Train on one batch; every rank must call."""
        net, layers = self.net, range(len(self._rows))
        with agree_or_raise(self.comm):
            require(not self._closed, "trainer", "be open", "closed", "Make another one.")
            samples = net.begin(images, labels)
            require(samples > 0, "images", "hold at least one sample", samples)
        for layer in layers:
            self._update(layer)
            self._timed(FORWARD, layer, net.forward, layer)
        self._keep_step()
        for layer in reversed(layers):
            row = self._rows[layer]
            self._timed(BACKWARD, layer, net.backward, layer, row[:-1])
            row[-1] = samples
            self._pending.add(layer)
            if self.schedule != "end":
                self._exchange(layer)
        if self.schedule == "end":
            self._timed(EXCHANGE, None, self._sum, self._flat)
        return net.loss / samples

    def finish(self) -> None:
        """Wait for all gradients and change the weights by them; every rank must call."""
        for layer in range(len(self._rows)):
            self._update(layer)
        self._intervals.clear()
        if self._thread is not None:
            self._thread.intervals.clear()

    def close(self, wait: bool = True) -> None:
        """End the thread that exchanges; every rank must call."""
        self._closed = True
        if self._thread is not None:
            self._thread.close(wait)

    def __enter__(self) -> Layerwise:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        self.close(wait=kind is None)

    def _exchange(self, layer: int) -> None:
        for piece in self._of_layer[layer]:
            if self._thread is None:
                self._timed(EXCHANGE, layer, self._sum, self._pieces[piece])
            else:
                self._thread.hand_in(piece)

    def _update(self, layer: int) -> None:
        if layer not in self._pending:
            return
        if self._thread is not None:
            self._thread.wait_for(layer)
        row = self._rows[layer]
        self._timed(UPDATE, layer, self._change, layer, row)
        self._pending.discard(layer)

    def _change(self, layer: int, row: np.ndarray) -> None:
        gradient, samples = row[:-1], row[-1]
        gradient /= samples
        self.net.update(layer, gradient)

    def _sum(self, array: np.ndarray) -> None:
        allreduce(array, self.comm, check=False)

    def _now(self) -> float:
        return perf_counter() + self._offset_s

    def _timed(self, kind: str, layer: int | None, call: Any, *arguments: Any) -> None:
        start = self._now()
        call(*arguments)
        self._intervals.append(Interval(kind, layer, start, self._now()))

    def _keep_step(self) -> None:
        """Keep what was measured since the last backward pass began; all its messages are done."""
        found = self._intervals
        if self._thread is not None:
            found = [*found, *self._thread.intervals]
            self._thread.intervals.clear()
        backward = [each for each in found if each.kind == BACKWARD]
        if backward:
            self.steps.append(Schedule(self.schedule, tuple(found)))
        self._intervals = []


def measure(
    make: Callable[[], Layers],
    comm: Comm,
    images: Any,
    labels: Any = None,
    schedules: Sequence[str] = tuple(SCHEDULES),
    slice_bytes: int | None = None,
    repeats: int = 9,
    warmup: int = 3,
) -> dict[str, tuple[Schedule, ...]]:
    """Train with each schedule in turn and keep the times of its steps; every rank must call.

    Args:
        make: makes the net, with the same weights each time.
        comm: the ranks.
        images: this rank's samples, the same batch in every step.
        labels: one for each of them.
        schedules: names from `SCHEDULES`.
        slice_bytes: as `Layerwise` takes it (bytes).
        repeats: steps that are returned (count).
        warmup: steps before them (count).

    Returns:
        dict: for each schedule this rank's steps; `overlap_schedule.typical` chooses one.

    Raises:
        ValueError: as `Layerwise` does.
    """
    require_count(repeats, "repeats")
    require_count(warmup, "warmup", least=0)
    found = {}
    for name in schedules:
        comm.Barrier()
        with Layerwise(make(), comm, name, slice_bytes) as trainer:
            # a step ends with the forward pass of the next one
            for _ in range(warmup + repeats + 1):
                trainer.step(images, labels)
        found[name] = tuple(trainer.steps[warmup:])
    return found


def _sliced(row: np.ndarray, slice_bytes: int | None) -> list[np.ndarray]:
    """Cut a layer's gradient; the number of samples behind it goes with the last slice."""
    if slice_bytes is None:
        return [row]
    cut = segments(row[:-1], slice_bytes)
    return [*cut[:-1], row[row.size - 1 - cut[-1].size :]]
