"""One step of one stage: receive, compute, send on, and keep what the way back needs."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from dlguide.collectives.buffers import flatten, message
from dlguide.parallel.schedules import BACKWARD, FORWARD, Cell

TAGS = {FORWARD: 7751, BACKWARD: 7752}


class Run:
    """One step of one stage: what is held, what is on its way, what has been measured.

    Args:
        pipeline: the `Pipeline` whose stage of this rank works.
        images: the batch; used by the first stage.
        labels: the batch; used by the last stage.
        sizes: samples of each microbatch.
    """

    def __init__(
        self, pipeline: Any, images: np.ndarray, labels: np.ndarray, sizes: list[int]
    ) -> None:
        self.pipe, self.sizes = pipeline, sizes
        starts = np.cumsum([0, *sizes])
        parts = [slice(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        self.images = [images[part] for part in parts] if pipeline.first else []
        self.labels = [labels[part] if pipeline.last else np.zeros(0, "i4") for part in parts]
        self.held: dict[int, tuple[Any, Any, Any]] = {}
        self.gradients: list[Any] = []
        self.cells: list[Cell] = []
        self.sending: list[tuple[Any, np.ndarray]] = []
        self.loss, self.most, self.sent_bytes = 0.0, 0, 0

    def work(self, kind: str, microbatch: int) -> None:
        """Receive what a cell needs, compute it, and send on what comes out.

        Args:
            kind: "forward" or "backward".
            microbatch: which one.
        """
        pipe = self.pipe
        came = self._receive(kind, microbatch)
        start = perf_counter()
        out = (self._forward if kind == FORWARD else self._backward)(microbatch, came)
        array = None if out is None else np.ascontiguousarray(out.numpy())
        end = perf_counter()
        offset_s = pipe.offset_s
        self.cells.append(Cell(pipe.comm.rank, microbatch, kind, start + offset_s, end + offset_s))
        if kind == FORWARD and pipe.last:
            self.loss += float(out)
        elif array is not None:
            to = pipe.comm.rank + (1 if kind == FORWARD else -1)
            request = pipe.comm.Isend(message(flatten(array)), to, TAGS[kind])
            self.sending.append((request, array))  # MPI reads the array until it has arrived
            self.sent_bytes += array.nbytes

    def finish(self) -> None:
        """Wait until all messages have gone."""
        from mpi4py import MPI

        MPI.Request.Waitall([request for request, _ in self.sending])

    def _receive(self, kind: str, microbatch: int) -> np.ndarray | None:
        pipe, size = self.pipe, self.sizes[microbatch]
        if pipe.first if kind == FORWARD else pipe.last:
            return self.images[microbatch] if kind == FORWARD else None
        tensor = (pipe.stage.inputs if kind == FORWARD else pipe.stage.outputs)[0]
        array = np.empty((size, *tensor.shape[1:]), str(tensor.dtype))
        source = pipe.comm.rank + (-1 if kind == FORWARD else 1)
        pipe.comm.Recv(message(flatten(array)), source, TAGS[kind])
        return array

    def _forward(self, microbatch: int, came: np.ndarray) -> Any:
        import tensorflow as tf

        inputs = tf.convert_to_tensor(came, str(self.pipe.stage.inputs[0].dtype))
        labels = tf.convert_to_tensor(self.labels[microbatch])
        if self.pipe.recompute:
            out = self.pipe._forward(inputs, labels)
            self.held[microbatch] = (inputs, labels, None)
        else:
            out, tape = self._taped(inputs, labels)
            self.held[microbatch] = (inputs, out, tape)
        self.most = max(self.most, len(self.held))
        return out

    def _taped(self, inputs: Any, labels: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            if not self.pipe.first:
                tape.watch(inputs)
            return self.pipe._forward(inputs, labels), tape

    def _backward(self, microbatch: int, came: np.ndarray | None) -> Any:
        import tensorflow as tf

        inputs, out, tape = self.held.pop(microbatch)
        if self.pipe.recompute:
            out, tape = self._taped(inputs, out)
        own = [variable.value for variable in self.pipe.stage.trainable_variables]
        wanted = own if self.pipe.first else [*own, inputs]
        given = None if came is None else tf.convert_to_tensor(came)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(out, wanted, given, unconnected_gradients=zero)
        mine = [tf.convert_to_tensor(gradient) for gradient in found[: len(own)]]
        before = self.gradients or [0] * len(mine)
        self.gradients = [a + b for a, b in zip(mine, before, strict=True)]
        return None if self.pipe.first else found[-1]
