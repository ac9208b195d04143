"""A small net in NumPy that ranks train in one way or another: what each way sends and reaches.

    trial = trials.train(compression.top_k(0.01), comm, data)
    trial = trials.train(local.Averaging(), comm, data, every_steps=16)

The ways differ only in what travels between the ranks: first weights, samples of each rank, rate
and momentum are the same. So bytes, steps and seconds until an accuracy can be held beside each
other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.data import datasets
from dlguide.data.datasets import Dataset
from dlguide.errors import require, require_count
from dlguide.parallel.compressors import Compressor
from dlguide.parallel.local import Averaging

if TYPE_CHECKING:
    from mpi4py.MPI import Comm


@dataclass(frozen=True)
class Trial:
    """One training as one rank saw it.

    Attributes, each tuple with one number for each look at the test images: `step` (steps done),
    `accuracy` (fraction of the test images), `sent_nbytes` (bytes that this rank has handed to
    others until then), `seconds` (of training until then; looks do not count).
    """

    way: str
    ranks: int
    seed: int
    step: tuple[int, ...]
    accuracy: tuple[float, ...]
    sent_nbytes: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def nbytes_per_step(self) -> float:
        """The mean over all steps (bytes)."""
        return self.sent_nbytes[-1] / self.step[-1]

    @property
    def step_s(self) -> float:
        """The mean over all steps but those before the first look, which warm up (s)."""
        if len(self.step) == 1:
            return self.seconds[0] / self.step[0]
        return (self.seconds[-1] - self.seconds[0]) / (self.step[-1] - self.step[0])

    def held(self, accuracy: float) -> int | None:
        """Find the first look from which on the accuracy was never below a limit again.

        Args:
            accuracy: the limit (fraction).

        Returns:
            int | None: index of the look; None when the last look is below.
        """
        below = [place for place, found in enumerate(self.accuracy) if found < accuracy]
        first = below[-1] + 1 if below else 0
        return first if first < len(self.accuracy) else None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for a record."""
        return asdict(self)


def first_weights(seed: int, hidden: int = 64) -> list[np.ndarray]:
    """Draw the weights of 784 inputs, one hidden layer and 10 classes."""
    random, weights = np.random.default_rng(seed), []
    for inputs, outputs in ((784, hidden), (hidden, 10)):
        edge = np.sqrt(6 / (inputs + outputs))
        weights.append(random.uniform(-edge, edge, (inputs, outputs)).astype(np.float32))
        weights.append(np.zeros(outputs, np.float32))
    return weights


def gradients(
    weights: list[np.ndarray], images: np.ndarray, labels: np.ndarray
) -> list[np.ndarray]:
    """Give the gradient of the sum of the images' losses (softmax cross-entropy).

    Args:
        weights: as `first_weights` draws them.
        images: shape (images, 784).
        labels: shape (images,).

    Returns:
        list: one array for each of the weights; zeros for no image.
    """
    inner, inner_bias, outer, outer_bias = weights
    units = np.maximum(images @ inner + inner_bias, 0)
    scores = units @ outer + outer_bias
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    back = (shares @ outer.T) * (units > 0)
    return [images.T @ back, back.sum(axis=0), units.T @ shares, shares.sum(axis=0)]


def train(
    way: Compressor | Averaging,
    comm: Comm,
    data: Dataset,
    steps: int = 400,
    batch: int = 32,
    rate: float = 0.1,
    momentum: float = 0.9,
    seed: int = 0,
    every_steps: int = 16,
    look_every: int = 20,
    alike: bool = True,
    decay: bool = False,
) -> Trial:
    """Train the small net on all ranks in one way; every rank must call.

    A compressor sends the gradients at each step; what averages sends the weights every so many
    steps, each rank having walked with its own gradients and its own momentum. All ranks look at
    a part of the test images.

    Args:
        way: new for each training: a compressor, or `Averaging`, `BlockMomentum`, `Elastic`.
        comm: the ranks.
        data: images of 28 x 28 and labels.
        steps: to make (count).
        batch: images per rank and step (count).
        rate: of SGD, as it is used.
        momentum: of SGD.
        seed: of weights and of the order of samples.
        every_steps: steps between two meetings of what averages (count).
        look_every: steps between two looks at the test images; there is one at the end (count).
        alike: whether all ranks draw from all samples; False gives rank r of p those of the
            classes c with c mod p = r only, as where data must stay where it was made.
        decay: whether the rate falls in equal parts to 0 after the last step, which calms the
            last steps down: then ways differ by less chance.

    Returns:
        Trial: with equal accuracies on all ranks.

    Raises:
        ValueError: on all ranks alike, when a count is out of range or the way is another thing.
    """
    steps, look_every = require_count(steps, "steps"), require_count(look_every, "look_every")
    every_steps, batch = require_count(every_steps, "every_steps"), require_count(batch, "batch")
    then = "Make one with `dlguide.parallel.compression` or `dlguide.parallel.local`."
    right = isinstance(way, Compressor | Averaging)
    require(right, "way", "be a compressor or a scheme that averages", way, then)
    if not alike:  # all ranks know all labels, so all refuse alike
        least = int(np.bincount(data.train_labels % comm.size, minlength=comm.size).min())
        require(batch <= least, "batch", f"be at most the {least} samples of some rank", batch)
    weights, looks, spent = first_weights(seed), [], 0.0
    speeds = [np.zeros_like(weight) for weight in weights]
    images = data.train_images.reshape(len(data.train_labels), -1)
    apart = isinstance(way, Averaging)
    if hasattr(way, "begin"):
        way.begin(weights)
    parts: list[tuple[np.ndarray, int]] = []
    for step in range(1, steps + 1):
        parts = parts or _epoch(data.train_labels, batch, comm, step, seed, alike)
        part, global_size = parts.pop(0)
        now = rate * (1 - (step - 1) / steps) if decay else rate
        start = perf_counter()
        # `allreduce` gives the mean over ranks of what should be summed over the global batch
        share = 1 / max(1, len(part)) if apart else comm.size / global_size
        gs = gradients(weights, images[part], data.train_labels[part])
        for key, (weight, speed, g) in enumerate(zip(weights, speeds, gs, strict=True)):
            g = g * np.float32(share)
            if not apart:
                g = way.allreduce(g, comm, key=key, check=step == 1)
            speed *= momentum
            speed -= now * g
            weight += speed
        if apart and step % every_steps == 0:
            way.meet(weights, comm, step)
        spent += perf_counter() - start
        if step % look_every == 0 or step == steps:
            accuracy = _accuracy(_result(way, weights, comm, step), data, comm)
            looks.append((step, accuracy, way.sent, spent))
    return Trial(repr(way), comm.size, seed, *zip(*looks, strict=True))


def _epoch(
    labels: np.ndarray, batch: int, comm: Comm, step: int, seed: int, alike: bool
) -> list[tuple[np.ndarray, int]]:
    """Give for each step of an epoch this rank's samples, and how many all ranks have."""
    if alike:
        epoch = (step - 1) // -(-len(labels) // (batch * comm.size))
        dealt = datasets.epoch_batches(len(labels), batch, comm.rank, comm.size, epoch, seed)
        return [(part.indices, part.global_size) for part in dealt]
    own = np.random.default_rng([seed, step, comm.rank]).permutation(
        np.flatnonzero(labels % comm.size == comm.rank)
    )
    whole = len(own) // batch * batch
    return [(own[begin : begin + batch], batch * comm.size) for begin in range(0, whole, batch)]


def _result(way: Any, weights: list[np.ndarray], comm: Comm, step: int) -> list[np.ndarray]:
    """Give the weights that the training would leave now, equal on all ranks."""
    if not isinstance(way, Averaging):
        return weights
    if getattr(way, "centre", None) or getattr(way, "model", None):
        copies = [weight.copy() for weight in weights]
        way.finish(copies)
        return copies
    return [sum(comm.allgather(weight)) / np.float32(comm.size) for weight in weights]


def _accuracy(weights: list[np.ndarray], data: Dataset, comm: Comm) -> float:
    part = datasets.shard(len(data.test_labels), comm.rank, comm.size)
    images = data.test_images[part].reshape(-1, 784)
    inner, inner_bias, outer, outer_bias = weights
    scores = np.maximum(images @ inner + inner_bias, 0) @ outer + outer_bias
    right = int((scores.argmax(axis=1) == data.test_labels[part]).sum())
    return float(comm.allreduce(right) / len(data.test_labels))
