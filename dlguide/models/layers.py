"""Keras layers of one dtype policy whose random numbers come from one seed and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    import keras

_RECURRENT = ("SimpleRNN", "LSTM", "GRU")
_RANDOM = ("Dropout", "GaussianNoise", *_RECURRENT, "MultiHeadAttention")
# Standard deviation of "RandomNormal": Radford et al. 2015, section 4, and GPT-2.
_NORMAL = 0.02


class SeededLayers:
    """Makes Keras layers of one dtype policy and applies them, each with its own seed.

    The seeds follow from the net's name, `seed` and the order of the layers. So two nets with one
    seed, such as the two of a GAN, do not start alike, and no global state is read or changed.
    `start` is the initializer of kernels: a class of `keras.initializers`, or "zeros" for a net
    that gets its initial weights later.
    """

    def __init__(
        self,
        name: str,
        seed: int = 0,
        dtype: str = "float32",
        dropout_seed: int = 0,
        start: str = "HeNormal",
    ):
        self.name, self.seed, self.dtype = name, seed, dtype
        self.dropout_seed, self.start = dropout_seed, start
        self.seeds = layer_seeds(name, seed)
        self.dropout_seeds = layer_seeds(name, dropout_seed)

    @property
    def wide(self) -> str:
        """The dtype of inputs and results: float32 where the layers compute in 16 bits."""
        return "float32" if self.dtype.startswith("mixed") else self.dtype

    def initial(self, start: str = "") -> keras.Initializer | str:
        """Make an initializer with its own seed."""
        import keras

        start = start or self.start
        if start == "zeros":
            return start
        options = {"stddev": _NORMAL} if start == "RandomNormal" else {}
        return getattr(keras.initializers, start)(seed=next(self.seeds), **options)

    def __call__(self, kind: str, x: Any, *args: Any, **options: Any) -> Any:
        """Make a layer and apply it to `x`, or to the list of tensors `x`."""
        import keras

        if kind.startswith(("Conv", "Dense")) or kind in ("EinsumDense", *_RECURRENT):
            # takes a seed in any case: later layers do not depend on the caller's initializer
            options.setdefault("kernel_initializer", self.initial())
        if kind in _RECURRENT:
            options.setdefault("recurrent_initializer", self.initial("Orthogonal"))
        if kind in _RANDOM and "seed" not in options:
            options["seed"] = next(self.dropout_seeds)
        return getattr(keras.layers, kind)(*args, **{"dtype": self.dtype, **options})(x)

    def convolve(self, x: Any, filters: int, kernel: int, name: str, **options: Any) -> Any:
        """Apply a convolution with bias and ReLU."""
        options.setdefault("padding", "same")
        return self("Conv2D", x, filters, kernel, activation="relu", name=name, **options)

    def normalised(self, x: Any, filters: int, kernel: int, strides: int, name: str) -> Any:
        """Apply a convolution without bias, then batch normalisation."""
        if strides > 1 and kernel > 1:
            # Padding "same" would pad one side only; the papers pad both.
            x = self("ZeroPadding2D", x, kernel // 2, name=f"{name}_pad")
            padding = "valid"
        else:
            padding = "same"
        x = self("Conv2D", x, filters, kernel, strides, padding, use_bias=False, name=name)
        return self("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=f"{name}_norm")

    def attend(self, x: Any, heads: int, causal: bool, name: str) -> Any:
        """Apply multi-head attention of a sequence to itself."""
        import keras

        layer = keras.layers.MultiHeadAttention(
            heads,
            x.shape[-1] // heads,
            kernel_initializer=self.initial(),
            seed=next(self.dropout_seeds),
            dtype=self.dtype,
            name=name,
        )
        out = layer(x, x, use_causal_mask=causal)
        # Keras copies the initializer with its seed, so that all four kernels would start equal
        for kernel in (weight for weight in layer.weights if weight.name == "kernel"):
            kernel.assign(self.initial()(kernel.shape, dtype=kernel.dtype))
        return out

    def logits(self, x: Any, outputs: int, **options: Any) -> Any:
        """Apply the last dense layer, in float32 also in mixed precision."""
        start = self.start if self.start in ("RandomNormal", "zeros") else "GlorotUniform"
        options = {"kernel_initializer": self.initial(start), "name": "logits", **options}
        return self("Dense", x, outputs, dtype=self.wide, **options)


def layer_seeds(name: str, seed: int) -> Iterator[int]:
    """Draw a seed for each layer; the first ones do not depend on how many follow."""
    import numpy as np

    sequence = np.random.SeedSequence([crc32(name.encode()), seed])
    while True:
        yield int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)
