"""The idea of PyTorch's DataParallel on ranks: rank 0 owns everything, the others help."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from dlguide.errors import require_count
from dlguide.parallel.pytorch_net import tensors
from dlguide.parallel.pytorch_ways import Alone

if TYPE_CHECKING:
    import torch
    from mpi4py.MPI import Comm

# What one step of DataParallel consists of, in its order.
PHASES = (
    "scatter images",
    "send weights",
    "forward",
    "gather outputs",
    "loss",
    "scatter output gradients",
    "backward",
    "reduce gradients",
    "update",
)


class DataParallel(Alone):
    """One step as PyTorch's DataParallel makes it, with ranks in the place of GPUs.

    In every step rank 0 deals out the images, sends its weights to each helper, gathers their
    outputs, computes the loss and its gradient, deals that out, adds up the helpers' gradients, and
    alone makes the step. Messages go directly from and to rank 0, so that their bytes can be
    counted.
    """

    def __init__(
        self, net: torch.nn.Module, learning_rate: float, momentum: float, comm: Comm
    ) -> None:
        super().__init__(net, learning_rate, momentum)
        self.comm = comm

    def step(self, images: np.ndarray, labels: np.ndarray, scale: float) -> float:
        """Make one step; all ranks must."""
        import torch

        self.spans = []
        loss, first = 0.0, self.comm.rank == 0
        weights = list(self.net.parameters())
        parts = lambda whole: np.array_split(whole, self.comm.size) if first else None  # noqa: E731
        with self._phase("scatter images"):
            own = self._deal(parts(images), "images")
        with self._phase("send weights"), torch.no_grad():
            for weight in weights:
                self._spread(_memory(weight), "weights")
        with self._phase("forward"):
            pixels, _ = tensors(own, np.zeros(len(own)))
            outputs = self.net(pixels.to(weights[0].dtype)) if len(own) else None
        with self._phase("gather outputs"):
            made = np.zeros((0, 10)) if outputs is None else outputs.detach().numpy()
            gathered = self._collect(made, "outputs")
        slopes = None
        with self._phase("loss"):
            if first:
                logits = torch.from_numpy(np.concatenate(gathered)).requires_grad_()
                classes = torch.from_numpy(labels.astype(np.int64))
                total = torch.nn.functional.cross_entropy(logits, classes, reduction="sum") * scale
                total.backward()
                loss, slopes = float(total.detach()), logits.grad.numpy()
        with self._phase("scatter output gradients"):
            slope = self._deal(parts(slopes), "outputs")
        with self._phase("backward"):
            self.optimizer.zero_grad()
            if outputs is not None:
                outputs.backward(torch.from_numpy(slope))
        with self._phase("reduce gradients"):
            for weight in weights:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                self._sum(_memory(weight.grad), "gradients")
        with self._phase("update"):
            if first:
                self.optimizer.step()
        return loss

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        begin = perf_counter()
        yield
        self.spans.append((name, begin, perf_counter()))

    def _count(self, kind: str, array: np.ndarray) -> None:
        self.sent[kind] = self.sent.get(kind, 0) + array.nbytes

    def _deal(self, parts: Sequence[np.ndarray] | None, kind: str) -> np.ndarray:
        """Give each rank its part of what rank 0 has."""
        if self.comm.rank:
            return self.comm.recv(source=0)
        for rank in range(1, self.comm.size):
            self._count(kind, parts[rank])
            self.comm.send(parts[rank], rank)
        return parts[0]

    def _spread(self, array: np.ndarray, kind: str) -> None:
        """Overwrite the array of every rank with that of rank 0."""
        if self.comm.rank:
            self.comm.Recv(array, source=0)
        else:
            for rank in range(1, self.comm.size):
                self._count(kind, array)
                self.comm.Send(array, rank)

    def _collect(self, array: np.ndarray, kind: str) -> list[np.ndarray]:
        """Bring the arrays of all ranks to rank 0."""
        if self.comm.rank:
            self._count(kind, array)
            self.comm.send(array, 0)
            return []
        return [array, *(self.comm.recv(source=rank) for rank in range(1, self.comm.size))]

    def _sum(self, array: np.ndarray, kind: str) -> None:
        """Add the arrays of all ranks to that of rank 0."""
        if self.comm.rank:
            self._count(kind, array)
            self.comm.Send(array, 0)
        else:
            other = np.empty_like(array)
            for rank in range(1, self.comm.size):
                self.comm.Recv(other, source=rank)
                array += other


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """Show a tensor's numbers in the order in which they lie in memory, as MPI wants them."""
    outer_first = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return tensor.detach().permute(outer_first).numpy()


def traffic(ranks: int, weights_nbytes: int, images_nbytes: int = 0) -> dict[str, float]:
    """Predict what goes through a rank in one step, sent and received.

    With DataParallel rank 0 sends its weights to p - 1 helpers, together with their shares of the
    images, and receives a gradient from each:

        rank 0: (p - 1) (2 weights + images / p),    a helper: 2 weights + images / p

    With a ring allreduce every rank sends 2 (p - 1) / p gradients and receives as many, and no
    images, since each rank reads its own. Leaves out the outputs, which are few.

    >>> traffic(4, 100)
    {'rank 0': 600.0, 'a helper': 200.0, 'each of a ring': 300.0}
    """
    p = require_count(ranks, "ranks")
    weights = require_count(weights_nbytes, "weights_nbytes", least=0)
    images = require_count(images_nbytes, "images_nbytes", least=0)
    helper = 2.0 * weights + images / p if p > 1 else 0.0
    ring = 2 * 2 * (p - 1) / p * weights
    return {"rank 0": (p - 1) * helper, "a helper": helper, "each of a ring": ring}
