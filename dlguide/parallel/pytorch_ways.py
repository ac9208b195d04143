"""Ways to make one step of data-parallel training with PyTorch, each a class of its own.

All take this rank's part of a global batch, and all end a step with the weights of one process
that had the whole global batch. `scale` is 1 / global batch: a rank adds up the losses of its own
samples and multiplies by it, so that the gradients of all ranks have only to be *summed*, also
where the parts are unequal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives import allreduce
from dlguide.parallel.pytorch_net import tensors

if TYPE_CHECKING:
    import torch
    from mpi4py.MPI import Comm


class Alone:
    """One process computes the gradient of its samples and makes a step."""

    def __init__(self, net: torch.nn.Module, learning_rate: float, momentum: float) -> None:
        import torch

        self.net = self.called = net
        self.optimizer = torch.optim.SGD(net.parameters(), learning_rate, momentum)
        self.sent: dict[str, int] = {}  # bytes that this rank has sent, by what they were
        self.spans: list[tuple[str, float, float]] = []  # phase, begin and end of the last step

    def step(self, images: np.ndarray, labels: np.ndarray, scale: float) -> float:
        """Make one step."""
        self.optimizer.zero_grad()
        loss = self.loss(images, labels, scale)
        loss.backward()
        self.exchange()
        self.optimizer.step()
        return float(loss.detach())

    def loss(self, images: np.ndarray, labels: np.ndarray, scale: float) -> torch.Tensor:
        """Compute this rank's part of the loss."""
        import torch

        if not len(labels):  # nothing to learn from, but the others wait for our zeros
            images, labels, scale = np.zeros((1, 28, 28, 1), np.float32), np.zeros(1), 0.0
        pixels, classes = tensors(images, labels)
        logits = self.called(pixels.to(next(self.net.parameters()).dtype))
        return torch.nn.functional.cross_entropy(logits, classes, reduction="sum") * scale

    def exchange(self) -> None:
        """Sum the gradients over ranks; here there is one."""

    def held(self) -> dict[str, int]:
        """Count what this rank keeps from step to step."""
        weights = list(self.net.parameters())
        gradients = [each.grad for each in weights if each.grad is not None]
        momenta = [
            state["momentum_buffer"]
            for state in self.optimizer.state.values()
            if state.get("momentum_buffer") is not None
        ]
        named = {"weights": weights, "gradients": gradients, "momentum": momenta}
        return {name: _nbytes(each) for name, each in named.items()} | {"buckets": 0}


class OwnAllreduce(Alone):
    """After the backward pass, one allreduce of all gradients, with the course's own.

    The gradients are views into one flat buffer, which NumPy and PyTorch share: nothing is
    copied.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        learning_rate: float,
        momentum: float,
        comm: Comm,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(net, learning_rate, momentum)
        import torch

        self.comm, self.algorithm = comm, algorithm
        weights = list(net.parameters())
        self.flat = np.zeros(
            sum(each.numel() for each in weights), weights[0].detach().numpy().dtype
        )
        parts = torch.from_numpy(self.flat).split([each.numel() for each in weights])
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part.as_strided(weight.shape, weight.stride())  # the weight's order
        # the optimizer's own would let go of the views
        self.optimizer.zero_grad = lambda: self.flat.fill(0.0)

    def exchange(self) -> None:
        """Sum the flat buffer over all ranks; collective."""
        allreduce(self.flat, self.comm, algorithm=self.algorithm, check=False)
        ranks = self.comm.size
        ring = 2 * (ranks - 1) * self.flat.nbytes // ranks
        self.sent["gradients"] = self.sent.get("gradients", 0) + ring


class Distributed(Alone):
    """PyTorch's DistributedDataParallel: buckets are sent while the backward pass goes on.

    It takes the *mean* over ranks. Where ranks have unequal parts, the mean of their means is not
    the mean of all samples; so the loss is multiplied by the ranks, and the mean becomes the sum.
    """

    def __init__(
        self,
        net: torch.nn.Module,
        learning_rate: float,
        momentum: float,
        ranks: int,
        cap_nbytes: int | None = None,
        views: bool = True,
    ) -> None:
        super().__init__(net, learning_rate, momentum)
        import torch

        self.ranks, self.views = ranks, views
        self.called = torch.nn.parallel.DistributedDataParallel(
            net,
            bucket_cap_mb=None if cap_nbytes is None else cap_nbytes / 2**20,
            gradient_as_bucket_view=views,
        )
        self.buckets: list[int] = []  # bytes of each bucket of the last step, when watched

    def loss(self, images: np.ndarray, labels: np.ndarray, scale: float) -> torch.Tensor:
        """Compute this rank's part of the loss, times the ranks."""
        return super().loss(images, labels, scale) * self.ranks

    def step(self, images: np.ndarray, labels: np.ndarray, scale: float) -> float:
        """Make one step; all ranks must."""
        return super().step(images, labels, scale) / self.ranks

    def unsynchronised(self, images: np.ndarray, labels: np.ndarray, scale: float) -> None:
        """Compute forward and backward as in a step, but exchange nothing and keep the weights."""
        self.optimizer.zero_grad()
        with self.called.no_sync():
            self.loss(images, labels, scale).backward()

    def synchronised(self, images: np.ndarray, labels: np.ndarray, scale: float) -> None:
        """Compute forward and backward and exchange the gradients, but keep the weights."""
        self.optimizer.zero_grad()
        self.loss(images, labels, scale).backward()

    def watch(self) -> None:
        """Note from now on which buckets are sent, in `buckets`; once, before the first step."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        def hook(group, bucket):  # PyTorch refuses annotations that are texts
            if bucket.index() == 0:
                self.buckets.clear()
            self.buckets.append(bucket.buffer().nbytes)
            return default_hooks.allreduce_hook(group, bucket)

        self.called.register_comm_hook(None, hook)

    def held(self) -> dict[str, int]:
        """Count what this rank keeps; without views the buckets are copies."""
        kept = super().held()
        return kept | {"buckets": 0 if self.views else kept["gradients"]}


def _nbytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)
