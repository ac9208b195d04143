"""Nets of the lessons on model parallelism and overlap: equal stages, layers one by one, sleep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count
from dlguide.parallel import pipeline

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
        require(len(sizes) > 0, "sizes", "hold at least one layer", list(sizes))
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
        _sleep_until(end)

    def backward(self, layer: int, gradient: np.ndarray) -> None:
        """Wait, and write the sum of the gradients."""
        end = perf_counter() + self.backward_s[layer]
        gradient.fill(len(self._images) * self._seen[layer] - self._images.sum())
        _sleep_until(end)

    def update(self, layer: int, gradient: np.ndarray) -> None:
        """Go one step against the gradient."""
        gradient *= gradient.dtype.type(self.rate)
        self.weights[layer] -= gradient


class KerasLayers:
    """A Keras net in pieces that each have weights, forward and backward one by one.

    The net is cut at every layer after which one tensor goes on: a chain into its layers, a
    residual net into its blocks. Layers without weights belong to the one before them.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Callable[[], keras.optimizers.Optimizer],
        loss: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self.pieces = pipeline.cut(model, _cuts(model))
        self.variables = [[v.value for v in piece.trainable_variables] for piece in self.pieces]
        shapes = [[tuple(variable.shape) for variable in row] for row in self.variables]
        self.sizes = [sum(int(np.prod(shape)) for shape in row) for row in shapes]
        dtypes = sorted({variable.dtype.name for row in self.variables for variable in row})
        require(len(dtypes) == 1, "model", "have trained weights of one dtype", dtypes)
        self.names = [_name(piece) for piece in self.pieces]
        self.kinds = [f"{name}: {row}" for name, row in zip(self.names, shapes, strict=True)]
        self.dtype, self.loss = dtypes[0], 0.0
        self._optimizers = [optimizer() for _ in self.pieces]
        alone = not getattr(self._optimizers[0], "global_clipnorm", None)
        then = "Clip each variable on its own, with `clipnorm`."
        require(alone, "optimizer", "not clip by a norm over all layers", "global", then)
        self._passed: list[Any] = [None] * len(self.pieces)
        self._flowing: Any = None
        self._compile(loss or _cross_entropy)

    def _compile(self, loss: Callable[[Any, Any], Any]) -> None:
        import tensorflow as tf

        def forward(piece: Any, last: bool) -> Any:
            @tf.function(autograph=False)
            def traced(inputs: Any, labels: Any) -> Any:
                outputs = piece(inputs, training=True)
                return tf.reduce_sum(loss(labels, outputs)) if last else outputs

            return traced

        def update(piece: Any, optimizer: Any) -> Any:
            variables = piece.trainable_variables
            optimizer.build(variables)

            @tf.function(autograph=False)
            def traced(gradients: list[Any]) -> None:
                optimizer.apply(gradients, variables)

            like = [tf.TensorSpec(variable.shape, variable.dtype) for variable in variables]
            return traced.get_concrete_function(like)

        self._traced = [forward(piece, piece is self.pieces[-1]) for piece in self.pieces]
        # one graph for each size of a batch; there are two at most
        self._graphs: dict[tuple[int, int], Any] = {}
        pairs = zip(self.pieces, self._optimizers, strict=True)
        self._update = [update(piece, optimizer) for piece, optimizer in pairs]

    def begin(self, images: Any, labels: Any) -> int:
        """Take a batch."""
        import tensorflow as tf

        takes = self.pieces[0].inputs[0]
        fits = tuple(images.shape[1:]) == tuple(takes.shape[1:])
        require(fits, "images", f"have samples of shape {takes.shape[1:]}", images.shape[1:])
        must = f"be one for each of {len(images)} images"
        require(len(labels) == len(images), "labels", must, len(labels))
        self._flowing = tf.convert_to_tensor(images, str(takes.dtype))
        self._labels = tf.convert_to_tensor(labels)
        return len(images)

    def forward(self, layer: int) -> None:
        """Compute a piece forward; the last one gives the loss."""
        import tensorflow as tf

        inputs, labels = self._flowing, self._labels
        key = (layer, len(labels))
        if key not in self._graphs:
            self._graphs[key] = self._traced[layer].get_concrete_function(inputs, labels)
        with tf.GradientTape() as tape:
            if layer:
                tape.watch(inputs)
            self._flowing = self._graphs[key](inputs, labels)
        self._passed[layer] = (inputs, self._flowing, tape)
        if layer == len(self.pieces) - 1:
            self.loss = float(self._flowing)
            self._flowing = None

    def backward(self, layer: int, gradient: np.ndarray) -> None:
        """Compute a piece backward."""
        import tensorflow as tf

        inputs, outputs, tape = self._passed[layer]
        self._passed[layer] = None
        wanted = self.variables[layer] + [inputs] * (layer > 0)
        zero = tf.UnconnectedGradients.ZERO
        found = tape.gradient(outputs, wanted, self._flowing, unconnected_gradients=zero)
        self._flowing = found.pop() if layer else None
        start = 0
        for each in found:
            array = tf.convert_to_tensor(each).numpy().reshape(-1)
            gradient[start : start + array.size] = array
            start += array.size

    def update(self, layer: int, gradient: np.ndarray) -> None:
        """Let the piece's optimizer make one step."""
        import tensorflow as tf

        rows = self.variables[layer]
        ends = np.cumsum([int(np.prod(variable.shape)) for variable in rows])
        parts = zip(np.split(gradient, ends[:-1]), rows, strict=True)
        self._update[layer]([tf.constant(part.reshape(row.shape)) for part, row in parts])


def _cuts(model: keras.Model) -> list[str]:
    """Choose the cuts so that every piece has trained weights, and as many as possible."""
    from dlguide.models.graph import graph_of, nodes_of

    points = pipeline.cut_points(model)
    cuts: list[str] = []
    last, has = None, False
    for node in nodes_of(graph_of(model)):
        layer = node.operation
        if getattr(layer, "trainable_weights", None):
            if has and last is not None:
                cuts.append(last)
            last, has = None, True
        if layer.name in points and not node.is_input:
            last = layer.name
    trained = bool(model.trainable_weights)
    require(trained, "model", "have trained weights", f"none in {model.name}")
    return cuts


def _name(piece: keras.Model) -> str:
    named = [layer.name for layer in piece.layers if layer.trainable_weights]
    return named[0] if len(named) == 1 else f"{named[0]} to {named[-1]}"


def _sleep_until(end: float) -> None:
    sleep(max(0.0, end - perf_counter()))


def _cross_entropy(labels: Any, logits: Any) -> Any:
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
