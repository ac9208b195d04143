"""Nets for sequences: recurrent ones, and transformers."""

from __future__ import annotations

from typing import Any

import keras

from dlcourse.nets.seeded import Net, SeededLayers, Sizes
from dlguide.errors import require

_CELLS = {"rnn": keras.layers.SimpleRNN, "lstm": keras.layers.LSTM, "gru": keras.layers.GRU}
_BLOCKS = {"width": 32, "heads": 4, "layers": 2}


def recurrent(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
    """Build recurrent layers of `units`, and one dense layer after the last step.

    It gives `outputs` values, such as the next ones of a series, or logits. GRU has its reset gate
    after the recurrent product (Keras' reset_after), which gives it a second bias; Cho et al. have
    it before.

    Source:
        Hochreiter and Schmidhuber, Neural Computation 9 (1997), 1735-1780; Cho et al. 2014
        (arXiv:1406.1078).
    """
    shape = (sizes["length"], sizes["features"])
    inputs = x = keras.Input(shape, dtype=make.wide, name="sequence")
    kind, layers = _CELLS[make.name], sizes["layers"]
    for number in range(1, layers + 1):
        every_step, name = number < layers, f"{kind.__name__.lower()}{number}"
        x = make(kind, x, sizes["units"], return_sequences=every_step, name=name)
    x = make(keras.layers.Dropout, x, dropout, name="dropout")
    x = make.logits(x, sizes["outputs"], name="outputs")
    return keras.Model(inputs, x, name=make.name)


def transformer(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a transformer for a series, or a causal one for tokens.

    - "transformer": steps become vectors of `width` with a learned position added; each block is
      multi-head attention and then two dense layers of 4 width and width, both with layer
      normalisation before and a shortcut around; the mean over the steps goes to a dense layer
      of `outputs` values.
    - "causal_transformer": whole numbers below `vocabulary` become, at each position, logits of
      the next one. No position sees a later one. Embeddings are scaled by a learned vector.

    Normalisation before the attention, not after it as in the paper, trains without warmup.

    Source:
        Vaswani et al. 2017 (arXiv:1706.03762), section 3; Xiong et al. 2020 (arXiv:2002.04745)
        on where to normalise; Radford et al. 2019 (GPT-2).
    """
    tokens = make.name == "causal_transformer"
    shape = (sizes["length"],) if tokens else (sizes["length"], sizes["features"])
    inputs = keras.Input(shape, dtype="int32" if tokens else make.wide, name="sequence")
    x = _blocks(make, inputs, sizes, dropout, tokens)
    if tokens:
        x = make.logits(x, sizes["vocabulary"], use_bias=False)
    else:
        x = make(keras.layers.GlobalAveragePooling1D, x, name="mean")
        x = make.logits(x, sizes["outputs"], name="outputs")
    return keras.Model(inputs, x, name=make.name)


def _blocks(make: SeededLayers, x: Any, sizes: Sizes, dropout: float, tokens: bool) -> Any:
    length, width, heads = (sizes[one] for one in ("length", "width", "heads"))
    then = f"Take {width - width % heads or heads}."
    require(width % heads == 0, "width", f"be a multiple of the {heads} heads", width, then)
    # a bias for each position and unit is a learned position that is added
    added = {
        "output_shape": (length, width),
        "bias_axes": "ld",
        "bias_initializer": make.initial("RandomNormal"),
        "name": "positions",
    }
    if tokens:
        start = make.initial("RandomNormal")
        vocabulary = sizes["vocabulary"]
        x = make(keras.layers.Embedding, x, vocabulary, width, start, name="tokens")
        x = make(keras.layers.EinsumDense, x, "bld,d->bld", kernel_initializer="ones", **added)
    else:
        x = make(keras.layers.EinsumDense, x, "blf,fd->bld", **added)
    x = make(keras.layers.Dropout, x, dropout, name="dropout")
    for number in range(1, sizes["layers"] + 1):
        name = f"block{number}"
        y = make(keras.layers.LayerNormalization, x, epsilon=1e-5, name=f"{name}_norm1")
        y = make.attend(y, heads, tokens, f"{name}_attention")
        y = make(keras.layers.Dropout, y, dropout, name=f"{name}_dropout1")
        x = make(keras.layers.Add, [x, y], name=f"{name}_add1")
        y = make(keras.layers.LayerNormalization, x, epsilon=1e-5, name=f"{name}_norm2")
        y = make(keras.layers.Dense, y, 4 * width, activation="relu", name=f"{name}_dense1")
        y = make(keras.layers.Dense, y, width, name=f"{name}_dense2")
        y = make(keras.layers.Dropout, y, dropout, name=f"{name}_dropout2")
        x = make(keras.layers.Add, [x, y], name=f"{name}_add2")
    return make(keras.layers.LayerNormalization, x, epsilon=1e-5, name="norm")


def _series(**sizes: int) -> Sizes:
    return {"length": 32, "features": 1, **sizes, "outputs": 1}


_TOKENS = {"length": 64, "vocabulary": 128, **_BLOCKS}
NETS = {
    **{name: Net(recurrent, _series(units=32, layers=1), start="GlorotUniform") for name in _CELLS},
    "transformer": Net(transformer, _series(**_BLOCKS), start="GlorotUniform"),
    "causal_transformer": Net(transformer, _TOKENS, start="GlorotUniform"),
}
