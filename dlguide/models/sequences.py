"""Nets for sequences: recurrent ones, and transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dlguide.errors import require
from dlguide.models.described import Described, Size
from dlguide.models.seeded import Seeded

if TYPE_CHECKING:
    import keras

# Keras' layer, and its gates: blocks of units that each have a kernel of their own.
_CELLS = {"rnn": ("SimpleRNN", 1), "lstm": ("LSTM", 4), "gru": ("GRU", 3)}
_BLOCKS = {"width": 32, "heads": 4, "layers": 2}
NETS = {
    **{
        name: Described(
            task="forecaster",
            sizes={"length": 32, "features": 1, "units": 32, "layers": 1, "outputs": 1},
            inputs=("length", "features"),
            dropout=0.0,
        )
        for name in _CELLS
    },
    "transformer": Described(
        task="forecaster",
        sizes={"length": 32, "features": 1, **_BLOCKS, "outputs": 1},
        inputs=("length", "features"),
        dropout=0.0,
    ),
    "causal_transformer": Described(
        task="predictor of tokens",
        sizes={"length": 64, "vocabulary": 128, **_BLOCKS},
        inputs=("length",),
        dropout=0.0,
    ),
}
START: dict[str, Any] = {"start": "GlorotUniform"}


def assemble(name: str, make: Seeded, sizes: Mapping[str, Size], dropout: float) -> keras.Model:
    """Put a net for sequences together.

    - "rnn", "lstm", "gru": recurrent layers of `units`; from the state after the last step one
      dense layer gives `outputs` numbers, such as the next values of a series, or logits.
    - "transformer": the same task. Steps become vectors of `width` with a learned position
      added; each block is multi-head attention and then two dense layers of 4 width and width,
      both with layer normalisation before and a shortcut around; the mean over the steps goes
      to the dense layer.
    - "causal_transformer": whole numbers below `vocabulary` become, at each position, logits of
      the next one. No position sees a later one. Embeddings are scaled by a learned vector.

    Normalisation before the attention, not after it as in the paper, trains without warmup. GRU
    has its reset gate after the recurrent product (Keras' reset_after), which gives it a second
    bias; Cho et al. have it before.

    Source:
        Hochreiter and Schmidhuber, Neural Computation 9 (1997), 1735-1780; Cho et al. 2014
        (arXiv:1406.1078); Vaswani et al. 2017 (arXiv:1706.03762), section 3; Xiong et al. 2020
        (arXiv:2002.04745) on where to normalise; Radford et al. 2019 (GPT-2).
    """
    import keras

    tokens = name == "causal_transformer"
    dtype = "int32" if tokens else make.wide
    inputs = keras.Input(NETS[name].sample(sizes), dtype=dtype, name="sequence")
    if name in _CELLS:
        x = _recurrent(make, inputs, _CELLS[name][0], sizes)
        x = make("Dropout", x, dropout, name="dropout")
    else:
        x = _transformed(make, inputs, sizes, dropout, tokens)
    if tokens:
        x = make.results(x, int(sizes["vocabulary"]), use_bias=False)
    else:
        x = make.results(x, int(sizes["outputs"]), name="outputs")
    return keras.Model(inputs, x, name=name)


def _recurrent(make: Seeded, x: Any, kind: str, sizes: Mapping[str, Size]) -> Any:
    layers = int(sizes["layers"])
    for number in range(1, layers + 1):
        every_step = number < layers
        name = f"{kind.lower()}{number}"
        x = make(kind, x, int(sizes["units"]), return_sequences=every_step, name=name)
    return x


def _transformed(
    make: Seeded, x: Any, sizes: Mapping[str, Size], dropout: float, tokens: bool
) -> Any:
    length, width, heads = (int(sizes[one]) for one in ("length", "width", "heads"))
    then = f"Take {width - width % heads or heads}."
    require(width % heads == 0, "width", f"be a multiple of the {heads} heads", width, then)
    # a bias for each position and unit is a learned position that is added
    added = {
        "output_shape": (length, width),
        "bias_axes": "ld",
        "bias_initializer": make.initial("RandomNormal", stddev=0.02),
        "name": "positions",
    }
    if tokens:
        start = make.initial("RandomNormal", stddev=0.02)
        vocabulary = int(sizes["vocabulary"])
        x = make("Embedding", x, vocabulary, width, start, name="tokens")
        x = make("EinsumDense", x, "bld,d->bld", kernel_initializer="ones", **added)
    else:
        x = make("EinsumDense", x, "blf,fd->bld", **added)
    x = make("Dropout", x, dropout, name="dropout")
    for number in range(1, int(sizes["layers"]) + 1):
        name = f"block{number}"
        y = make("LayerNormalization", x, epsilon=1e-5, name=f"{name}_norm1")
        y = make.attend(y, heads, tokens, f"{name}_attention")
        y = make("Dropout", y, dropout, name=f"{name}_dropout1")
        x = make("Add", [x, y], name=f"{name}_add1")
        y = make("LayerNormalization", x, epsilon=1e-5, name=f"{name}_norm2")
        y = make("Dense", y, 4 * width, activation="relu", name=f"{name}_dense1")
        y = make("Dense", y, width, name=f"{name}_dense2")
        y = make("Dropout", y, dropout, name=f"{name}_dropout2")
        x = make("Add", [x, y], name=f"{name}_add2")
    x = make("LayerNormalization", x, epsilon=1e-5, name="norm")
    return x if tokens else make("GlobalAveragePooling1D", x, name="mean")


def parameters(name: str, sizes: Mapping[str, Size]) -> int:
    """Count the trainable parameters from the closed form.

    With f features and u units a recurrent layer has

        rnn u (f + u + 1)    lstm 4 u (f + u + 1)    gru 3 u (f + u + 2)

    and a block of a transformer of width d has 12 d d + 13 d: four kernels of d d in the
    attention, two of 4 d d after it, biases 4 d + 5 d, two normalisations of 2 d.

    Args:
        name: a key of `NETS`.
        sizes: those of the net.

    Returns:
        int: number of trainable parameters (count).
    """
    size = {key: int(value) for key, value in sizes.items()}
    if name in _CELLS:
        units, inputs, total = size["units"], size["features"], 0
        for _ in range(size["layers"]):
            biases = 2 if name == "gru" else 1
            total += _CELLS[name][1] * units * (inputs + units + biases)
            inputs = units
        return total + (units + 1) * size["outputs"]
    width = size["width"]
    blocks = size["layers"] * (12 * width**2 + 13 * width) + 2 * width
    positions = size["length"] * width
    if name == "transformer":
        first, last = size["features"] * width, (width + 1) * size["outputs"]
        return first + positions + blocks + last
    return 2 * size["vocabulary"] * width + width + positions + blocks
