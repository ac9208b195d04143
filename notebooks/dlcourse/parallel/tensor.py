"""Tensor parallelism: each rank holds some columns, rows or channels of every layer's weights.

Every rank must call each function at the same point, forward and backward. A layer cut by its
outputs takes `copy_to_region(inputs)`, a layer cut by its inputs ends in `reduce_from_region`; in
pairs, one after the other, nothing is sent between the two.

Source:
    Shoeybi et al. 2019 (arXiv:1909.08053), section 3: the functions f and g of Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from dlcourse.parallel.mesh import copies_mesh
from dlguide.collectives import allreduce
from dlguide.data.datasets import shard
from dlguide.errors import require

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm

# called for each message: (direction, collective, bytes of the array)
OnMessage = Callable[[str, str, int], None]

# layers that treat each channel separately, and need not know of the cut
_BY_CHANNEL = {"ReLU", "Activation", "MaxPooling2D", "AveragePooling2D"}
_BY_CHANNEL |= {"GlobalAveragePooling2D", "GlobalMaxPooling2D"}


def reduce_from_region(part: Any, comm: Comm, on_message: OnMessage | None = None) -> Any:
    """Sum a tensor over ranks; backward each rank takes the gradient as it is."""

    @tf.custom_gradient
    def add(part: Any) -> tuple[Any, Any]:
        return _allreduce(part, comm, "forward", on_message), lambda gradient: gradient

    return add(part)


def copy_to_region(whole: Any, comm: Comm, on_message: OnMessage | None = None) -> Any:
    """Return a tensor that all ranks have; backward its gradient is summed over ranks."""

    @tf.custom_gradient
    def copy(whole: Any) -> tuple[Any, Any]:
        backward = lambda gradient: _allreduce(gradient, comm, "backward", on_message)  # noqa: E731
        return tf.identity(whole), backward

    return copy(whole)


def gather_from_region(part: Any, comm: Comm, on_message: OnMessage | None = None) -> Any:
    """Join the ranks' parts of the last dimension; backward each rank takes its part."""

    @tf.custom_gradient
    def gather(part: Any) -> tuple[Any, Any]:
        parts = comm.allgather(part.numpy())
        ends = np.cumsum([each.shape[-1] for each in parts])
        own = slice(ends[comm.rank] - parts[comm.rank].shape[-1], ends[comm.rank])
        whole = np.concatenate(parts, axis=-1)
        if on_message is not None:
            on_message("forward", "allgather", whole.nbytes)
        return tf.constant(whole), lambda gradient: gradient[..., own]

    return gather(part)


def _allreduce(tensor: Any, comm: Comm, direction: str, on_message: OnMessage | None) -> Any:

    array = tensor.numpy().copy()
    if on_message is not None:
        on_message(direction, "allreduce", array.nbytes)
    return tf.constant(allreduce(array, comm, check=False))


class TensorParallelModel:
    """Trains a sequential net of which each rank holds a part of every weight.

    The first layer with weights is cut by its outputs, the next one by its inputs, and so on in
    pairs: forward one allreduce at the end of a pair, backward one at its start. A last layer
    without partner ends in an allgather. With `copies` the ranks are a grid of data x tensor: each
    copy takes its part of the batch. All ranks must call, with the same images. `sent` lists the
    messages of the last step: direction, collective, and bytes of the array.

    Supports Dense and Conv2D with a bias and without groups, dilation and softmax, Flatten, layers
    that treat each channel separately, and Dropout with a rate of 0.

    Args:
        model: a sequential Keras model that returns logits, equal on all ranks.
        rate: learning rate of SGD.
        copies: nets side by side (count); the ranks of a copy are neighbours.
            Several copies of several ranks make communicators, which `mesh.free()` frees.
    """

    def __init__(self, model: keras.Model, comm: Comm, rate: float, copies: int = 1) -> None:
        self.rate, self.mesh = rate, copies_mesh(comm, copies)
        comm = self.comm = self.mesh.along("model")
        self.layers = list(model.layers)
        self.cuts: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}
        self.parts: dict[str, list[Any]] = {}
        self.sent: list[tuple[str, str, int]] = []
        self._cut()
        # this rank's parts, kernel and bias of each layer in order
        self.variables = [part for parts in self.parts.values() for part in parts]

    @property
    def weight_bytes(self) -> int:
        """Size of this rank's parts (bytes)."""
        return sum(part.numpy().nbytes for part in self.variables)

    def __call__(self, images: np.ndarray) -> Any:
        """Compute the logits of all images on all ranks."""
        x = tf.convert_to_tensor(images, self.variables[0].dtype)
        by_output = True
        for layer in self.layers:
            if layer.name not in self.parts:
                x = layer(x)
                continue
            kernel, bias = self.parts[layer.name]
            if by_output:
                x = copy_to_region(x, self.comm, self._on_message)
            if type(layer).__name__ == "Dense":
                x = x @ kernel
            else:
                x = tf.nn.conv2d(x, kernel, layer.strides[0], layer.padding.upper())
            if not by_output:
                x = reduce_from_region(x, self.comm, self._on_message)
            x = layer.activation(x + bias)
            by_output = not by_output
        return x if by_output else gather_from_region(x, self.comm, self._on_message)

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Train on one batch, the same on all ranks, and return its mean loss; all must call."""
        self.sent.clear()
        copies, samples = self.mesh.along("data"), len(images)
        part = shard(samples, copies.rank, copies.size)
        with tf.GradientTape() as tape:
            outputs = self(images[part])
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels[part], outputs)
            total = tf.reduce_sum(losses)
        gradients = tape.gradient(total, self.variables)
        arrays = [np.ascontiguousarray(gradient.numpy()) for gradient in gradients]
        loss = np.array([float(total)])
        for array in (*arrays, loss) if copies.size > 1 else ():
            allreduce(array, copies, check=False)
        for part, array in zip(self.variables, arrays, strict=True):
            part.assign_sub(self.rate * array / samples)
        return float(loss[0]) / samples

    def weights(self) -> dict[str, np.ndarray]:
        """Return the whole weights, by layer and kind; every rank must call."""
        own = {name: [part.numpy() for part in parts] for name, parts in self.parts.items()}
        everyone = self.comm.allgather((self.cuts, own))
        whole = {}
        for layer in self.layers:
            for place, word in enumerate(("kernel", "bias") if layer.name in own else ()):
                array = np.array(layer.weights[place])
                for cuts, parts in everyone:
                    array[cuts[layer.name][place]] = parts[layer.name][place]
                whole[f"{layer.name}/{word}"] = array
        return whole

    def _on_message(self, *message: Any) -> None:
        self.sent.append(message)

    def _cut(self) -> None:
        """Take this rank's part of each layer; `own` are its features, None for all."""
        own: Any = None
        for layer in self.layers:
            kind, everything = type(layer).__name__, (slice(None),)
            if kind in ("Dense", "Conv2D"):
                kernel, bias = (np.asarray(weight) for weight in layer.weights)
                if own is None:
                    own = shard(bias.size, self.comm.rank, self.comm.size)
                    cuts = ((..., own), (own,))
                else:
                    cuts, own = ((..., own, slice(None)), everything), None
                self.cuts[layer.name] = cuts
                self.parts[layer.name] = [tf.Variable(kernel[cuts[0]]), tf.Variable(bias[cuts[1]])]
            elif kind == "Flatten":
                if own is not None:
                    # after flattening, a channel's values are not adjacent
                    places = np.arange(np.prod(layer.input.shape[1:]))
                    own = places.reshape(layer.input.shape[1:])[..., own].ravel()
            else:
                fits = kind in _BY_CHANNEL or (kind == "Dropout" and layer.rate == 0)
                then = "Build the net without it."
                require(fits, "model", "be made of layers that can be cut", layer.name, then)
