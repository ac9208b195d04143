"""PowerSGD: a gradient as the product of two thin matrices."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require_count
from dlguide.parallel.compressors import SMALL, Compressor

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


class PowerSGD(Compressor):
    """Send an array, seen as a matrix M, as the product of two thin ones: r (rows + columns).

        P = orthogonalised sum of M Q,    Q <- sum of M^T P,    sum of M = about P Q^T

    One step of power iteration; Q of the last step is where the next begins (warm start). Both
    sums are added up on the way, so that the bytes do not grow with the ranks. The columns are
    the outputs of the layer; what has fewer than two dimensions is sent as it is.

    Source:
        Vogels, Karimireddy and Jaggi, PowerSGD, NeurIPS (2019), algorithms 1 and 2.
    """

    def __init__(
        self, name: str, rank: int, seed: int = 0, small: int = SMALL, remember: bool = True
    ) -> None:
        super().__init__(name, small)
        self.keeps_errors = remember
        self.rank = require_count(rank, "rank")
        self.seed = require_count(seed, "seed", least=0)
        self.starts: dict[Hashable, np.ndarray] = {}

    def compresses(self, shape: Sequence[int], dtype: Any = "float32") -> bool:
        """Say whether an array is sent compressed."""
        return len(shape) > 1 and super().compresses(shape, dtype)

    def payload(self, shape: tuple[int, ...], itemsize: int) -> int:
        """Give the bytes of an array that is sent compressed."""
        return (math.prod(shape[:-1]) + shape[-1]) * self.rank * itemsize

    def start(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Draw the first Q for an array, the same on all ranks."""
        random = np.random.default_rng([self.seed, *shape])
        return random.normal(size=(shape[-1], self.rank)).astype(dtype)

    def _exchange(
        self, array: np.ndarray, comm: Comm, key: Hashable
    ) -> tuple[np.ndarray, np.ndarray]:
        matrix = array.reshape(-1, array.shape[-1])
        q = self.starts.get(key)
        if q is None:
            q = self.start(array.shape, array.dtype)
        p, _ = np.linalg.qr(self._summed(matrix @ q, comm))
        q = matrix.T @ p
        own, total = p @ q.T, self._summed(q.copy(), comm)
        # From zeros, or from what is not finite, no power iteration would find back.
        usable = np.isfinite(total).all() and total.any()
        self.starts[key] = total if usable else self.start(array.shape, array.dtype)
        return (p @ total.T).reshape(array.shape), own.reshape(array.shape)
