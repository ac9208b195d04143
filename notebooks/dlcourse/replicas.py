"""Replicate, scatter, gather: rank 0 owns the net and sends the others a copy in each step.

PyTorch's `nn.DataParallel` with ranks instead of GPUs, for any net whose weights and gradients are
NumPy arrays: what passes through rank 0, and what it holds that others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# What a step consists of, in its order.
PHASES = ("scatter inputs", "send weights", "compute", "reduce gradients", "update")


@dataclass(frozen=True)
class DeviceMemory:
    """What one device holds at the peak of a step (bytes).

    `arriving` is another device's gradients while they are added; `state` that of the optimizer;
    `inputs` are the samples, on the first device those of all.
    """

    weights: int
    gradients: int
    arriving: int
    state: int
    inputs: int
    activations: int

    @property
    def total(self) -> int:
        """All of it (bytes)."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory(
    ranks: int,
    weights_nbytes: int,
    inputs_nbytes: int,
    activations_nbytes: int,
    state_copies: int = 2,
) -> tuple[DeviceMemory, DeviceMemory]:
    """Predict what the first device holds, and what each other one.

    With W for the weights, p devices, s numbers of the optimizer for each weight:

        first:  W (weights) + W (gradients) + s W (state) + inputs + activations / p
                + W (arriving, where p > 1)
        other:  W (weights) + W (gradients) + inputs / p + activations / p

    so that the first holds (1 + s) W more, and the samples of the others. Leaves out what a
    library keeps for itself (workspaces, fragments), which is alike on all devices.

    Args:
        ranks: number of devices p (count).
        weights_nbytes: W (bytes).
        inputs_nbytes: samples of all devices in a step, with what they are compared with (bytes).
        activations_nbytes: of all samples together (bytes).
        state_copies: s: 2 for Adam, 1 for momentum, 0 for plain SGD (count).

    Returns:
        tuple: `DeviceMemory` of the first device and of another; for one device both are the first.

    Raises:
        ValueError: when a size is no count.

    >>> first, other = memory(4, 100, 8, 40)
    >>> first.total - other.total == 3 * 100 + 6
    True
    """
    p = require_count(ranks, "ranks")
    sizes = {"weights_nbytes": weights_nbytes, "inputs_nbytes": inputs_nbytes,
             "activations_nbytes": activations_nbytes, "state_copies": state_copies}  # fmt: skip
    for name, value in sizes.items():
        require_count(value, name, least=0)
    own = activations_nbytes // p
    many = weights_nbytes if p > 1 else 0
    state = state_copies * weights_nbytes
    first = DeviceMemory(weights_nbytes, weights_nbytes, many, state, inputs_nbytes, own)
    other = DeviceMemory(weights_nbytes, weights_nbytes, 0, 0, inputs_nbytes // p, own)
    return first, first if p == 1 else other


class Replicas:
    """A net that rank 0 owns, and the steps in which all ranks compute for it.

    In each step rank 0 deals out the samples, sends its weights to every other rank, and adds up
    their gradients; it alone updates. All messages go from or to rank 0, one after the other.
    Unlike PyTorch's, each rank computes the loss of its own samples, so that outputs stay where
    they are. After a step `held` is this rank's `DeviceMemory`, counted from the arrays that
    existed, `seconds` the time of each of `PHASES` (s), and `moved` what it has sent and received
    (bytes).
    """

    def __init__(
        self,
        comm: Comm,
        weights: Sequence[np.ndarray],
        gradient: Callable[[list[np.ndarray], list[np.ndarray]], tuple[float, Any, int]],
        update: Callable[[list[np.ndarray], list[np.ndarray]], None],
        state: Sequence[np.ndarray] = (),
    ) -> None:
        self.comm, self.weights = comm, [np.ascontiguousarray(each) for each in weights]
        self.gradient, self.update = gradient, update
        self.state = list(state) if comm.rank == 0 else []
        self.held = DeviceMemory(0, 0, 0, 0, 0, 0)
        self.seconds: dict[str, float] = {}
        self.moved = 0

    def step(self, arrays: Sequence[np.ndarray] | None = None) -> float:
        """Make one step; collective. Moves 2 (p - 1) W and the samples of p - 1 ranks."""
        p, first = self.comm.size, self.comm.rank == 0
        self.seconds, self.moved = {}, 0
        samples = self.comm.bcast(len(arrays[0]) if first else None)
        require(samples >= p, "arrays", f"hold a sample for each of the {p} ranks", samples)
        with self._phase("scatter inputs"):
            own = self._deal(arrays)
        with self._phase("send weights"):
            for each in self.weights:
                self._spread(each)
        with self._phase("compute"):
            loss, found, activations = self.gradient(self.weights, own)
            share = len(own[0]) / samples
            gradients = [np.multiply(each, share) for each in found]
            loss *= share if first else 1.0
        with self._phase("reduce gradients"):
            arriving = self._add(gradients)
            loss = self._add_losses(loss, share)
        with self._phase("update"):
            if first:
                self.update(self.weights, gradients)
        self.held = DeviceMemory(
            _nbytes(self.weights), _nbytes(gradients), arriving, _nbytes(self.state),
            _nbytes(arrays if first else own), int(activations),
        )  # fmt: skip
        return loss

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        yield
        self.seconds[name] = perf_counter() - begin

    def _deal(self, arrays: Sequence[np.ndarray] | None) -> list[np.ndarray]:
        if self.comm.rank:
            own = self.comm.recv(source=0)
            self.moved += _nbytes(own)
            return own
        parts = [np.array_split(each, self.comm.size) for each in arrays]
        for rank in range(1, self.comm.size):
            sent = [np.ascontiguousarray(each[rank]) for each in parts]
            self.moved += _nbytes(sent)
            self.comm.send(sent, rank)
        return [each[0] for each in parts]

    def _spread(self, array: np.ndarray) -> None:
        if self.comm.rank:
            self.comm.Recv(array, source=0)
            self.moved += array.nbytes
            return
        for rank in range(1, self.comm.size):
            self.comm.Send(array, rank)
            self.moved += array.nbytes

    def _add(self, gradients: list[np.ndarray]) -> int:
        """Add all ranks' gradients on rank 0; give the bytes that arrive there at a time."""
        if self.comm.rank:
            for each in gradients:
                self.comm.Send(each, 0)
            self.moved += _nbytes(gradients)
            return 0
        others = [np.empty_like(each) for each in gradients] if self.comm.size > 1 else []
        for rank in range(1, self.comm.size):
            for each, other in zip(gradients, others, strict=True):
                self.comm.Recv(other, source=rank)
                each += other
            self.moved += _nbytes(others)
        return _nbytes(others)

    def _add_losses(self, loss: float, share: float) -> float:
        if self.comm.rank:
            self.comm.send(loss * share, 0)
            return loss
        return loss + sum(self.comm.recv(source=rank) for rank in range(1, self.comm.size))


def _nbytes(arrays: Sequence[np.ndarray]) -> int:
    return sum(each.nbytes for each in arrays)
