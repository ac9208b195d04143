"""A whole net cut across ranks: its layers in pairs, by column and then by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.collectives import allreduce
from dlguide.collectives.agreement import agree_or_raise
from dlguide.errors import require
from dlguide.parallel import tensor

if TYPE_CHECKING:
    import keras
    from mpi4py.MPI import Comm

# layers that treat each channel on its own, so that they need not know of the cut
_BY_CHANNEL = {"ReLU", "Activation", "MaxPooling2D", "AveragePooling2D"}
_BY_CHANNEL |= {"GlobalAveragePooling2D", "GlobalMaxPooling2D"}


class SplitNet:
    """Trains a sequential net of which each rank holds a part of every weight.

    The first layer with weights is cut by its outputs, the next one by its inputs, and so on in
    pairs, so that nothing is sent inside a pair: forward one allreduce at its end, backward one
    at its start. A last layer without partner ends in an allgather. All ranks must call, with
    the same images. `sent` lists the messages of the last step: direction, collective, and bytes
    of the array.

    Left out: layers other than Dense, Conv2D, Flatten, and those that treat each channel on its
    own; Dropout must have a rate of 0.

    Source:
        Shoeybi et al. 2019 (arXiv:1909.08053), section 3: columns, then rows.
    """

    def __init__(
        self,
        model: keras.Model,
        comm: Comm,
        rate: float,
        momentum: float = 0.0,
        replicas: Comm | None = None,
    ) -> None:
        self.comm, self.rate, self.momentum, self.replicas = comm, rate, momentum, replicas
        self.layers = list(model.layers)
        self.cuts: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}
        self.parts: dict[str, list[Any]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.sent: list[tuple[str, str, int]] = []
        with agree_or_raise(comm):
            self._cut()
        self.speeds = [np.zeros(part.shape, part.dtype.as_numpy_dtype) for part in self.variables]

    @property
    def variables(self) -> list[Any]:
        """This rank's parts, kernel and bias of each layer in order."""
        return [part for layer in self.parts.values() for part in layer]

    @property
    def weight_bytes(self) -> int:
        """What this rank's parts take (bytes)."""
        return sum(part.numpy().nbytes for part in self.variables)

    def __call__(self, images: np.ndarray) -> Any:
        """Compute the logits of all images on all ranks."""
        import tensorflow as tf

        x = tf.convert_to_tensor(images, self.variables[0].dtype)
        by_output = True
        for layer in self.layers:
            kind = type(layer).__name__
            if layer.name not in self.parts:
                x = layer(x)
                continue
            kernel, bias = self.parts[layer.name]
            if kind == "Dense":
                way = tensor.dense_by_column if by_output else tensor.dense_by_row
                x = way(x, kernel, bias, self.comm, told=self._told)
            else:
                way = tensor.convolution_by_output if by_output else tensor.convolution_by_input
                x = way(x, kernel, bias, self.comm, layer.strides[0], layer.padding, self._told)
            x = layer.activation(x)
            by_output = not by_output
        return x if by_output else tensor.gathered(x, self.comm, self._told)

    def step(self, images: np.ndarray, labels: np.ndarray, samples: int | None = None) -> float:
        """Train on one batch."""
        import tensorflow as tf

        self.sent.clear()
        samples = len(images) if samples is None else samples
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self(images))
            total = tf.reduce_sum(losses)
        gradients = tape.gradient(total, self.variables)
        arrays = [np.ascontiguousarray(gradient.numpy()) for gradient in gradients]
        loss = np.array([float(total)])
        if self.replicas is not None:
            for array in (*arrays, loss):
                allreduce(array, self.replicas, check=False)
        for part, speed, array in zip(self.variables, self.speeds, arrays, strict=True):
            speed *= self.momentum
            speed -= self.rate * array / samples
            part.assign_add(speed)
        return float(loss[0]) / samples

    def weights(self) -> dict[str, np.ndarray]:
        """Put the weights of all ranks together; every rank must call."""
        everyone = self.comm.allgather(
            {name: [part.numpy() for part in parts] for name, parts in self.parts.items()}
        )
        cuts = self.comm.allgather(self.cuts)
        whole = {}
        for name in self.parts:
            for place, word in enumerate(("kernel", "bias")):
                pieces = [one[name][place] for one in everyone]
                array = np.empty(self.shapes[f"{name}/{word}"], pieces[0].dtype)
                for cut, piece in zip(cuts, pieces, strict=True):
                    array[cut[name][place]] = piece
                whole[f"{name}/{word}"] = array
        return whole

    def _told(self, *message: Any) -> None:
        self.sent.append(message)

    def _cut(self) -> None:
        """Give this rank its part of each layer; `own` are its features, None for all."""
        import tensorflow as tf

        own: Any = None
        for layer in self.layers:
            kind, everything = type(layer).__name__, (slice(None),)
            if kind in ("Dense", "Conv2D"):
                _require_plain(layer)
                kernel, bias = (np.asarray(weight) for weight in layer.weights)
                if own is None:
                    ranks, rank = self.comm.size, self.comm.rank
                    own = tensor.share(bias.size, ranks, rank, f"units of {layer.name}")
                    cuts = ((..., own), (own,))
                else:
                    cuts, own = ((..., own, slice(None)), everything), None
                self.cuts[layer.name] = cuts
                pair = zip((kernel, bias), cuts, ("kernel", "bias"), strict=True)
                self.parts[layer.name] = [tf.Variable(array[cut]) for array, cut, _ in pair]
                self.shapes |= {
                    f"{layer.name}/{word}": array.shape
                    for array, word in zip((kernel, bias), ("kernel", "bias"), strict=True)
                }
            elif kind == "Flatten":
                if own is not None:
                    # after flattening, a channel's values stand far apart
                    places = np.arange(np.prod(layer.input.shape[1:]))
                    own = places.reshape(layer.input.shape[1:])[..., own].ravel()
            else:
                harmless = kind == "Dropout" and layer.rate == 0
                fits = kind in _BY_CHANNEL or harmless
                then = "Build the net without it."
                require(fits, "model", "be made of layers that can be cut", layer.name, then)


def _require_plain(layer: Any) -> None:
    simple = layer.use_bias and getattr(layer, "groups", 1) == 1
    simple = simple and set(getattr(layer, "dilation_rate", (1,))) == {1}
    strides = getattr(layer, "strides", (1, 1))
    simple = simple and strides[0] == strides[1]
    simple = simple and getattr(layer, "data_format", "channels_last") == "channels_last"
    simple = simple and layer.activation.__name__ != "softmax"
    must = "have plain layers: bias, one stride, no groups, no dilation, channels last, no softmax"
    require(simple, "model", must, layer.name)
