"""The ranks that Horovod connects, as a communicator for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import dlguide.horovod as hvd
from dlguide.collectives.communicator import Communicator
from dlguide.horovod import runtime
from dlguide.horovod.ops import allgather_bytes

if TYPE_CHECKING:
    import keras


class HorovodCommunicator(Communicator):
    """All ranks of the launcher, connected by Horovod; every method is called by all of them.

    It starts Horovod where nobody has called `hvd.init()`.

    Args:
        recording: whether Horovod's timeline will be recorded (`hvd.init_for_recording`).
    """

    exchange = "horovod"

    def __init__(self, recording: bool = False) -> None:
        self._starts = not hvd.is_initialized()
        if recording:
            hvd.init_for_recording()
        else:
            hvd.init()
        self.rank, self.size = hvd.rank(), hvd.size()

    def close(self) -> None:
        """Stop Horovod if it was started here: its thread takes half a core even when idle."""
        if self._starts and hvd.is_initialized() and not runtime.restart_problem():
            hvd.shutdown()

    def distribute(self, optimizer: keras.Optimizer, compression: Any = None) -> keras.Optimizer:
        """Return the optimizer that sums the gradients over all ranks before it applies them."""
        chosen = hvd.Compression.none if compression is None else compression
        return hvd.DistributedOptimizer(optimizer, op=hvd.Sum, compression=chosen)

    def broadcast(self, variables: Sequence[keras.Variable]) -> None:
        hvd.broadcast_variables(list(variables), root_rank=0)

    def allreduce_mean(self, variables: Sequence[keras.Variable]) -> None:
        if variables:
            values = [variable.value for variable in variables]
            means = hvd.grouped_allreduce(values, op=hvd.Average, name="dlguide.allreduce_mean")
            for variable, mean in zip(variables, means, strict=True):
                variable.assign(mean)

    def allreduce_sum(self, values: Sequence[float]) -> list[float]:
        here = np.asarray(values, np.float64)
        summed = hvd.allreduce(here, op=hvd.Sum, name="dlguide.allreduce_sum")
        return [float(total) for total in np.asarray(summed)]

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        return allgather_bytes(data, "dlguide.allgather_bytes")
