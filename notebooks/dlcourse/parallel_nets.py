"""Nets of the lessons on model parallelism and overlap: equal stages, and layers that sleep."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count

if TYPE_CHECKING:
    import keras


def deep_mlp(
    width: int = 768, blocks: int = 6, seed: int = 0, dtype: str = "float32"
) -> keras.Model:
    """Build a net of equal dense layers, for images of 28 x 28 x 1 and 10 classes.

    The images shrink to 4 x 4 pixels first, so that the first layer is about as small as the last
    one; any even number of blocks makes two stages of equal work.
    """
    import keras

    require_count(width, "width")
    require_count(blocks, "blocks")
    seeds = iter(np.random.SeedSequence(seed).generate_state(blocks + 2) >> 1)

    def dense(units: int, name: str, activation: str | None = "relu") -> keras.layers.Dense:
        start = keras.initializers.HeNormal(seed=int(next(seeds)))
        return keras.layers.Dense(
            units, activation, kernel_initializer=start, dtype=dtype, name=name
        )

    net = [
        keras.Input((28, 28, 1), dtype=dtype, name="images"),
        keras.layers.AveragePooling2D(7, dtype=dtype, name="shrink"),
        keras.layers.Flatten(dtype=dtype, name="flatten"),
    ]
    net += [dense(width, f"hidden{number}") for number in range(blocks + 1)]
    return keras.Sequential([*net, dense(10, "logits", None)], name="deep_mlp")


class SleepingLayers:
    """A net that sleeps for given times instead of computing, as if on an accelerator.

    The core of the process is free while a layer "computes", which overlap needs and a small
    machine does not have otherwise. Every weight w of every layer learns the mean of the samples
    x: loss 1/2 (w - x)**2, so that results can be checked.
    """

    def __init__(
        self,
        forward_s: Sequence[float],
        backward_s: Sequence[float],
        sizes: Sequence[int],
        rate: float = 0.1,
        dtype: str = "float32",
    ) -> None:
        for name, row in (("forward_s", forward_s), ("backward_s", backward_s)):
            must = f"hold one time for each of {len(sizes)} layers"
            require(len(row) == len(sizes), name, must, len(row))
        self.sizes = [require_count(size, "sizes") for size in sizes]
        self.forward_s, self.backward_s = list(forward_s), list(backward_s)
        self.rate, self.dtype, self.loss = rate, dtype, 0.0
        self.names = [f"layer {layer}" for layer in range(len(self.sizes))]
        self.kinds = [f"{name}: {size}" for name, size in zip(self.names, self.sizes, strict=True)]
        self.weights = [np.zeros(size, dtype) for size in self.sizes]
        self._seen = [0.0] * len(self.sizes)
        self._images = np.zeros(0)

    def begin(self, images: Any, labels: Any = None) -> int:
        """Take the numbers that are the samples."""
        self._images = np.asarray(images, float).ravel()
        require(np.isfinite(self._images).all(), "images", "be finite numbers", images)
        self.loss = 0.0
        return len(self._images)

    def forward(self, layer: int) -> None:
        """Wait, and read the layer's weights."""
        end = perf_counter() + self.forward_s[layer]
        seen = self._seen[layer] = float(self.weights[layer][0])
        self.loss += float(((seen - self._images) ** 2).sum()) / 2
        sleep(max(0.0, end - perf_counter()))

    def backward(self, layer: int, gradient: np.ndarray) -> None:
        """Wait, and write the sum of the gradients."""
        end = perf_counter() + self.backward_s[layer]
        gradient.fill(len(self._images) * self._seen[layer] - self._images.sum())
        sleep(max(0.0, end - perf_counter()))

    def update(self, layer: int, gradient: np.ndarray) -> None:
        """Go one step against the gradient."""
        gradient *= gradient.dtype.type(self.rate)
        self.weights[layer] -= gradient
