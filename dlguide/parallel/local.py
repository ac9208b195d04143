"""Ranks that train alone for some steps and then meet: model averaging and what grew out of it.

    scheme = local.BlockMomentum(0.5)
    model.fit(shard, callbacks=[meetings.callback(scheme, comm, every_steps=16)])

Every H steps the weights go around instead of the gradients at every step: 1 / H of the bytes and
of the waiting. Each scheme works on a list of arrays in place; `sent` counts the bytes that this
rank has handed to the sum, `nbytes` predicts those of one meeting. The state of an optimizer (its
momentum) stays each rank's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide import collectives
from dlguide.collectives.agreement import require_equal_buffers
from dlguide.errors import require, require_count, require_positive

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


class Averaging:
    """Replace the weights of every rank by their mean (local SGD, parameter averaging).

    With a meeting at every step and plain SGD it is synchronous SGD: the mean of the weights
    after one step each is the step with the mean of the gradients. With momentum or Adam it is
    not the same, since each rank's momentum has seen only its own gradients.

    Source:
        McDonald, Hall and Mann, NAACL (2010); Stich, Local SGD, ICLR (2019); the `ParallelWrapper`
        of DL4J and the `ModelAveragingSGD` of CNTK.
    """

    name = "averaging"

    def __init__(self) -> None:
        self.sent = 0
        self.meetings = 0

    def __repr__(self) -> str:
        return self.name

    @staticmethod
    def nbytes(arrays: Sequence[Any], ranks: int) -> int:
        """Predict what one rank hands over in one meeting."""
        if require_count(ranks, "ranks") == 1:
            return 0
        return sum(
            int(np.prod(a.shape, dtype=int)) * np.dtype(str(a.dtype)).itemsize for a in arrays
        )

    def meet(self, arrays: Sequence[np.ndarray], comm: Comm, step: int = 0) -> None:
        """Bring the ranks' weights together, in place; every rank must call."""
        for array, mean in zip(arrays, self._means(arrays, comm, step), strict=True):
            array[...] = mean

    def agree(self, arrays: Sequence[np.ndarray], comm: Comm, step: int = 0) -> None:
        """Check that all ranks are at the same step with the same arrays; all must call."""
        kinds = " ".join(f"{array.dtype}{array.shape}" for array in arrays)
        flags = np.zeros(len(arrays))
        require_equal_buffers(comm, flags, scheme=repr(self), step=step, arrays=kinds)

    def _means(self, arrays: Sequence[np.ndarray], comm: Comm, step: int) -> list[np.ndarray]:
        """Give the means over ranks: one allreduce for all arrays of a dtype."""
        self.agree(arrays, comm, step)
        means: dict[int, np.ndarray] = {}
        for dtype in sorted({array.dtype.name for array in arrays}):
            places = [i for i, array in enumerate(arrays) if array.dtype.name == dtype]
            flat = np.concatenate([arrays[i].reshape(-1) for i in places])
            self.sent += flat.nbytes if comm.size > 1 else 0
            flat = collectives.allreduce(flat, comm, check=False) / flat.dtype.type(comm.size)
            ends = np.cumsum([arrays[i].size for i in places])
            for i, part in zip(places, np.split(flat, ends[:-1]), strict=True):
                means[i] = part.reshape(arrays[i].shape)
        self.meetings += 1
        return [means[i] for i in range(len(arrays))]


class BlockMomentum(Averaging):
    """Take the way from one mean to the next as a gradient, and give it momentum.

    With W the weights all ranks begin a block with, G their mean at its end minus W, momentum m
    and block rate z:

        D <- m D + z G,    W <- W + D     (Nesterov: the next block begins at W + m D)

    The mean alone shortens the way as ranks become more, since what they learn apart cancels;
    m = 1 - 1/p makes up for it. m = 0 and z = 1 is `Averaging`.

    Source:
        Chen and Huo, ICASSP (2016), equations 4 to 7; the `BlockMomentumSGD` of CNTK.
    """

    def __init__(self, momentum: float, rate: float = 1.0, nesterov: bool = True) -> None:
        super().__init__()
        right = isinstance(momentum, float | int) and 0 <= momentum < 1
        require(right, "momentum", "be at least 0 and below 1", momentum)
        self.momentum, self.rate = float(momentum), require_positive(rate, "rate")
        self.nesterov = nesterov
        self.name = f"block_momentum({momentum:g}, {rate:g}, {nesterov})"
        self.model: list[np.ndarray] = []
        self.begun: list[np.ndarray] = []
        self.way: list[np.ndarray] = []

    def begin(self, arrays: Sequence[np.ndarray]) -> None:
        """Remember where the first block begins; without this call the first meeting averages."""
        self.model = [array.copy() for array in arrays]
        self.begun = [array.copy() for array in arrays]
        self.way = [np.zeros_like(array) for array in arrays]

    def meet(self, arrays: Sequence[np.ndarray], comm: Comm, step: int = 0) -> None:
        """Bring the ranks' weights together, in place; every rank must call."""
        means = self._means(arrays, comm, step)
        if not self.model:
            self.begin(means)
        for array, mean, model, begun, way in zip(
            arrays, means, self.model, self.begun, self.way, strict=True
        ):
            m, z = way.dtype.type(self.momentum), way.dtype.type(self.rate)
            if self.momentum == 0 and self.rate == 1:
                way[...], model[...] = mean - begun, mean  # W + (mean - W) would round
            else:
                way[...] = m * way + z * (mean - begun)
                model += way
            begun[...] = model + m * way if self.nesterov else model
            array[...] = begun

    def finish(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the weights to the model itself, without the look ahead of the next block."""
        for array, model in zip(arrays, self.model, strict=bool(self.model)):
            array[...] = model


class Elastic(Averaging):
    """Pull each rank's weights towards a centre, and the centre towards them (EASGD).

        x_i <- x_i - a (x_i - c),    c <- c + a sum of (x_i - c)

    Ranks stay apart and look around on their own; the centre is the result. All ranks hold it and
    need only the mean of the weights: the sum is p (mean - c). Every centre began at the first
    meeting's mean. a p must be at most 1, or the centre overshoots.

    Source:
        Zhang, Choromanska and LeCun, NeurIPS (2015), equations 5 and 6.
    """

    def __init__(self, alpha: float) -> None:
        super().__init__()
        require(0 < require_positive(alpha, "alpha") <= 1, "alpha", "be at most 1", alpha)
        self.alpha = float(alpha)
        self.name = f"elastic({alpha:g})"
        self.centre: list[np.ndarray] = []

    def begin(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the centre; without this call the first meeting's mean is the first centre."""
        self.centre = [array.copy() for array in arrays]

    def meet(self, arrays: Sequence[np.ndarray], comm: Comm, step: int = 0) -> None:
        """Bring the ranks' weights nearer to each other, in place; every rank must call."""
        then = f"Use at most {1 / comm.size:g} on {comm.size} ranks."
        require(self.alpha * comm.size <= 1 + 1e-9, "alpha", "be at most 1 / p", self.alpha, then)
        means = self._means(arrays, comm, step)
        if not self.centre:
            self.begin(means)
        for array, mean, centre in zip(arrays, means, self.centre, strict=True):
            a, p = centre.dtype.type(self.alpha), centre.dtype.type(comm.size)
            pull = a * (array - centre)
            centre += a * p * (mean - centre)
            array -= pull

    def finish(self, arrays: Sequence[np.ndarray]) -> None:
        """Set the weights to the centre, the result of the training."""
        for array, centre in zip(arrays, self.centre, strict=bool(self.centre)):
            array[...] = centre
