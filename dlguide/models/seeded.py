"""Keras layers whose random numbers come from one seed and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dlguide.models.blocks import Layers

if TYPE_CHECKING:
    import keras

_RECURRENT = ("SimpleRNN", "LSTM", "GRU")
_RANDOM = ("Dropout", "GaussianNoise", *_RECURRENT, "MultiHeadAttention")


class Seeded(Layers):
    """Makes Keras layers of one dtype policy, each with initial weights from a seed of its own.

    The seeds follow from the net's name, `seed` and the order of the layers. So two nets of one
    seed, such as the two of a GAN, do not start alike, and no global state is read or changed.
    """

    def __init__(
        self,
        name: str,
        seed: int,
        dtype: str,
        dropout_seed: int,
        start: str = "GlorotUniform",
        **options: Any,
    ):
        super().__init__(dtype)
        self.start, self.options = start, options
        self.seeds = _numbers(name, seed)
        self.dropout_seeds = _numbers(name, dropout_seed)

    def initial(self, start: str | None = None, **options: Any) -> keras.Initializer:
        """Make an initializer with a seed of its own."""
        import keras

        if start is None:
            start, options = self.start, self.options
        return getattr(keras.initializers, start)(seed=next(self.seeds), **options)

    def __call__(self, kind: str, x: Any, *args: Any, **options: Any) -> Any:
        """Make a layer and apply it to `x`, or to the list of tensors `x`."""
        if kind.startswith(("Conv", "Dense")) or kind in ("EinsumDense", *_RECURRENT):
            options.setdefault("kernel_initializer", self.initial())
        if kind in _RECURRENT:
            options.setdefault("recurrent_initializer", self.initial("Orthogonal"))
        if kind in _RANDOM:
            options["seed"] = next(self.dropout_seeds)
        return super().__call__(kind, x, *args, **options)

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

    @property
    def wide(self) -> str:
        """The dtype of inputs and results: float32 where the layers compute in 16 bits."""
        return "float32" if self.dtype.startswith("mixed") else self.dtype

    def results(self, x: Any, outputs: int, **options: Any) -> Any:
        """Apply the last dense layer, which gives `wide` numbers in mixed precision too."""
        import keras

        start = self.initial("GlorotUniform") if self.start != "RandomNormal" else self.initial()
        options = {"kernel_initializer": start, "name": "logits", **options}
        return keras.layers.Dense(outputs, dtype=self.wide, **options)(x)


def _numbers(name: str, seed: int) -> Iterator[int]:
    """Draw a seed for each layer; the first ones do not depend on how many follow."""
    import numpy as np

    sequence = np.random.SeedSequence([crc32(name.encode()), seed])
    while True:
        yield int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)
