"""ZeRO stage 1: the optimizer's state is divided among the ranks.

An allreduce is a reduce-scatter and an allgather. Between the two each rank holds one part of the
summed gradient; here it updates its part of the weights at that point, and the allgather carries
weights instead of gradients. The bytes sent are the same, the state of the optimizer is p times
smaller on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dlguide.collectives import allgather_ring, parts, reduce_scatter_ring, ring_share
from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require_known, require_positive

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

# state arrays of the size of the weights, by method
STATES = {"sgd": 0, "momentum": 1, "adam": 2}


class ZeroOptimizer:
    """SGD, momentum or Adam with their state divided among the ranks.

    Every rank must call, with the same weights. `sent_bytes` counts what this rank has sent.

    Args:
        weights: arrays, updated in place by `step`.
        method: a key of `STATES`.
        beta1: of "adam", decay of the mean.
        beta2: of "adam", decay of the mean square.

    Raises:
        ValueError: on all ranks alike, when weights, method or rate differ.

    Source:
        Rajbhandari et al. 2019 (arXiv:1910.02054), section 5.1; Adam: Kingma and Ba 2014
        (arXiv:1412.6980), in the form of Keras.
    """

    def __init__(
        self,
        weights: Sequence[np.ndarray],
        comm: Comm,
        method: str = "adam",
        rate: float = 0.001,
        momentum: float = 0.9,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> None:
        require_known(method, STATES, "method")
        self.weights, self.comm, self.method = list(weights), comm, method
        self.rate, self.momentum = require_positive(rate, "rate"), momentum
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon
        self.flat = np.concatenate([np.ravel(weight) for weight in self.weights])
        require_equal_buffers(comm, self.flat, method=method, rate=rate)
        own = parts(self.flat, comm.size)[comm.rank]
        self.state = [np.zeros_like(own) for _ in range(STATES[method])]
        self.steps, self.sent_bytes = 0, 0

    @property
    def state_bytes(self) -> int:
        """Size of the optimizer's state on this rank (bytes)."""
        return sum(array.nbytes for array in self.state)

    def step(self, gradients: Sequence[np.ndarray], samples: int) -> None:
        """Update the weights by the sums of gradients over samples, `samples` on all ranks."""
        flat = np.concatenate([np.ravel(gradient) for gradient in gradients])
        flat = np.ascontiguousarray(flat, self.flat.dtype)
        gradient = reduce_scatter_ring(flat, self.comm) / samples
        own = parts(self.flat, self.comm.size)[self.comm.rank]
        self.steps += 1
        own -= self._change(gradient)
        allgather_ring(self.flat, self.comm)
        sizes = [part.nbytes for part in parts(self.flat, self.comm.size)]
        # twice all parts but one, a different one each time
        kept = sizes[self.comm.rank] + sizes[(self.comm.rank + 1) % self.comm.size]
        self.sent_bytes += 2 * sum(sizes) - kept
        ends = np.cumsum([weight.size for weight in self.weights])
        for weight, values in zip(self.weights, np.split(self.flat, ends[:-1]), strict=True):
            weight[...] = values.reshape(weight.shape)

    def _change(self, gradient: np.ndarray) -> np.ndarray:
        if self.method == "sgd":
            return self.rate * gradient
        if self.method == "momentum":
            (velocity,) = self.state
            velocity *= self.momentum
            velocity += self.rate * gradient
            return velocity
        mean, square = self.state
        mean += (1 - self.beta1) * (gradient - mean)
        square += (1 - self.beta2) * (gradient**2 - square)
        # both start at 0 and are too small in the first steps
        correction = np.sqrt(1 - self.beta2**self.steps) / (1 - self.beta1**self.steps)
        return self.rate * correction * mean / (np.sqrt(square) + self.epsilon)


def bytes_sent(nbytes: int, ranks: int) -> float:
    """Predict what a rank sends in a step: 2 (p - 1) / p n, as in a ring allreduce.

    >>> bytes_sent(100, 2)
    100.0
    """
    return ring_share(ranks) * nbytes


def memory_bytes(nbytes: int, ranks: int, method: str = "adam") -> float:
    """Predict the memory of weights of `nbytes`, gradients and state on a rank (bytes)."""
    require_known(method, STATES, "method")
    return nbytes * (2 + STATES[method] / ranks)
