"""Layers of one dtype policy, each with random numbers of its own seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from dlguide.models.nets import layer_seeds

_RECURRENT = (keras.layers.SimpleRNN, keras.layers.LSTM, keras.layers.GRU)
_RANDOM = (keras.layers.Dropout, keras.layers.GaussianNoise, *_RECURRENT)
Sizes = Mapping[str, Any]
# Standard deviation of "RandomNormal": Radford et al. 2015, section 4, and GPT-2.
_NORMAL = 0.02


class Net(NamedTuple):
    """A net by name: its builder, the defaults of its sizes and of its dropout, and its start."""

    builder: Callable[[SeededLayers, Sizes, float], keras.Model]
    sizes: Sizes
    dropout: float | None = 0.0
    start: str = "HeNormal"


@dataclass
class SeededLayers:
    """Makes Keras layers of one dtype policy and applies them, each with its own seed.

    The seeds follow from the net's name, `seed` and the order of the layers; no global state is
    read or changed. `start` is a class of `keras.initializers`.
    """

    name: str
    seed: int = 0
    dtype: str = "float32"
    dropout_seed: int = 0
    start: str = "HeNormal"

    def __post_init__(self) -> None:
        self.seeds = layer_seeds(self.name, self.seed)
        self.dropout_seeds = layer_seeds(self.name, self.dropout_seed)

    @property
    def wide(self) -> str:
        """The dtype of inputs and results: float32 where the layers compute in 16 bits."""
        return "float32" if self.dtype.startswith("mixed") else self.dtype

    def initial(self, start: str = "") -> keras.Initializer:
        """Make an initializer with its own seed."""
        start = start or self.start
        options = {"stddev": _NORMAL} if start == "RandomNormal" else {}
        return getattr(keras.initializers, start)(seed=next(self.seeds), **options)

    def __call__(self, kind: type[keras.Layer], x: Any, *args: Any, **options: Any) -> Any:
        """Make a layer of a class and apply it to `x`, or to the list of tensors `x`."""
        if kind.__name__.startswith(("Conv", "Dense", "EinsumDense")) or kind in _RECURRENT:
            # takes a seed in any case: later layers do not depend on the caller's initializer
            options.setdefault("kernel_initializer", self.initial())
        if kind in _RECURRENT:
            options.setdefault("recurrent_initializer", self.initial("Orthogonal"))
        if kind in _RANDOM and "seed" not in options:
            options["seed"] = next(self.dropout_seeds)
        return kind(*args, **{"dtype": self.dtype, **options})(x)

    def attend(self, x: Any, heads: int, causal: bool, name: str) -> Any:
        """Apply multi-head attention of a sequence to itself."""
        start, seed = self.initial(), next(self.dropout_seeds)
        options = {"kernel_initializer": start, "seed": seed, "dtype": self.dtype, "name": name}
        layer = keras.layers.MultiHeadAttention(heads, x.shape[-1] // heads, **options)
        out = layer(x, x, use_causal_mask=causal)
        # Keras copies the initializer with its seed, so that all four kernels would start equal
        for kernel in (weight for weight in layer.weights if weight.name == "kernel"):
            kernel.assign(self.initial()(kernel.shape, dtype=kernel.dtype))
        return out

    def logits(self, x: Any, outputs: int, **options: Any) -> Any:
        """Apply the last dense layer, in float32 also in mixed precision."""
        start = self.start if self.start == "RandomNormal" else "GlorotUniform"
        options = {"kernel_initializer": self.initial(start), "name": "logits", **options}
        return self(keras.layers.Dense, x, outputs, dtype=self.wide, **options)
