"""A small GPT as it is built today, and its parameters and multiply-adds by closed form.

Rotary embeddings instead of learned positions, fewer heads for keys and values than for queries,
SwiGLU, RMS normalisation before each part, no biases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dlguide.errors import require, require_count
from dlguide.models.registry import NetSpec, SeededLayers, Shape, Sizes, register

if TYPE_CHECKING:
    import keras

_SIZES = {
    "length": 64, "vocabulary": 128, "width": 64, "heads": 4, "key_value_heads": 2, "hidden": 0,
    "layers": 2, "tied": 0,
}  # fmt: skip
_EPSILON = 1e-5


@dataclass(frozen=True)
class GPTShape:
    """The sizes of a GPT, of any size, and what follows from them without building it.

    `gpt` has the net. A block has four matrices of attention and three of SwiGLU; with V words, L
    layers of width d, h heads of d / h of which g have keys and values of their own, hidden width
    f and sequences of T tokens

        parameters         L (2 d d + 2 d d g / h + 3 d f + 2 d) + d + V d, and V d more if untied
        multiply-adds      T L (2 d d + 2 d d g / h + 3 d f) + T V d + 2 L T T d     a sequence

    the last term being the attention between all pairs of positions: a causal mask hides half of
    them, but they are computed. Training takes three times as many, or 6 flops for each parameter
    and token ("6 N D") when that term, the embeddings and the vectors are left out.

    For planning only, `experts` puts so many SwiGLUs of width f into each block, of which each
    token passes `active`; their router is left out.

    Args:
        hidden: 0 takes 8 / 3 of the width, rounded up to a multiple of 8.
        tied: whether the last layer has the weights of the embeddings.

    Raises:
        ValueError: when a size is out of range or does not divide.

    Source:
        Kaplan et al. 2020 (arXiv:2001.08361), section 2.1, for 6 N D.

    >>> llama = GPTShape(8192, 128_256, 16_384, 128, 8, 53_248, 126)  # Llama 3 405B
    >>> round(llama.parameters / 1e9, 2)
    405.85
    """

    length: int = 64
    vocabulary: int = 128
    width: int = 64
    heads: int = 4
    key_value_heads: int = 2
    hidden: int = 0
    layers: int = 2
    tied: int = 0
    experts: int = 1
    active: int = 1

    def __post_init__(self) -> None:
        for name in (*_SIZES, "experts", "active"):
            require_count(getattr(self, name), name, least=0 if name in ("hidden", "tied") else 1)
        if self.hidden == 0:
            object.__setattr__(self, "hidden", -(-self.width // 3) * 8)
        width, heads, groups = self.width, self.heads, self.key_value_heads
        fits = width % (2 * heads) == 0
        nearest = max(1, round(width / (2 * heads))) * 2 * heads
        must = f"be a multiple of twice the {heads} heads, which rotate pairs"
        require(fits, "width", must, width, f"Take {nearest}.")
        divisors = [n for n in range(1, heads + 1) if heads % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - groups))
        must = f"divide the {heads} heads"
        require(groups in divisors, "key_value_heads", must, groups, f"Take {nearest}.")
        require(self.tied in (0, 1), "tied", "be 0 or 1", self.tied)
        must = f"be at most the {self.experts} experts"
        require(self.active <= self.experts, "active", must, self.active)

    @property
    def attention(self) -> int:
        """Parameters of the attention of one block."""
        return 2 * self.width**2 + 2 * self.width**2 * self.key_value_heads // self.heads

    @property
    def swiglu(self) -> int:
        """Parameters of one SwiGLU."""
        return 3 * self.width * self.hidden

    @property
    def parameters(self) -> int:
        """All trainable parameters."""
        block = self.attention + self.experts * self.swiglu + 2 * self.width
        embeddings = (2 - self.tied) * self.vocabulary * self.width
        return self.layers * block + self.width + embeddings

    @property
    def multiplied(self) -> int:
        """The N of 6 N D: parameters that each token is multiplied by.

        Those of matrices, with the last layer and without the embeddings, which are looked up.
        """
        block = self.attention + self.active * self.swiglu
        return self.layers * block + self.vocabulary * self.width

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of one sequence forward."""
        between = 2 * self.layers * self.length * self.width
        return self.length * (self.multiplied + between)

    @property
    def training_flops(self) -> int:
        """Flops of the products of a training step for one sequence: 6 for each multiply-add."""
        return 6 * self.multiply_adds


@register(
    NetSpec(
        "gpt", "language model", 108_864, ("length",), _SIZES, {"hidden": 0, "tied": 0},
        dropout=None, start="RandomNormal",
    )
)  # fmt: skip
def gpt(make: SeededLayers, shape: Shape, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a decoder of `layers` blocks that gives the logits of the next token.

    Each block adds, to its input, attention of the normalised input and then SwiGLU of the
    normalised sum. Kernels start from a normal distribution of 0.02; those that end a branch are
    smaller by the square root of the number of branches, as in GPT-2.

    Source:
        Touvron et al. 2023 (arXiv:2302.13971), section 2.2; rotary embeddings: Su et al. 2021
        (arXiv:2104.09864), the halves of a head rotated as one, as GPT-NeoX does; groups of heads:
        Ainslie et al. 2023 (arXiv:2305.13245); SwiGLU: Shazeer 2020 (arXiv:2002.05202).
    """
    import keras
    from keras import ops

    net = GPTShape(**{name: int(size) for name, size in sizes.items()})
    width, head = net.width, net.width // net.heads
    cos, sin = rotations(net.length, head, "float64" if make.dtype == "float64" else "float32")

    def rotate(x: Any, scale: float = 1.0) -> Any:
        return x * (scale * cos) + ops.roll(x, head // 2, axis=-1) * (scale * sin)

    def project(x: Any, heads: int, name: str) -> Any:
        shape = (net.length, heads, head)
        return make("EinsumDense", x, "bld,dhk->blhk", output_shape=shape, name=name)

    def add(x: Any, branch: Any, name: str) -> Any:
        """Project a branch back to the width and add it."""
        deviation = 0.02 / (2 * net.layers) ** 0.5
        start = keras.initializers.RandomNormal(stddev=deviation, seed=next(make.seeds))
        options = {"use_bias": False, "kernel_initializer": start, "name": f"{name}_out"}
        return make("Add", [x, make("Dense", branch, width, **options)], name=f"{name}_add")

    inputs = keras.Input(shape, dtype="int32", name="tokens_in")
    kind = keras.layers.ReversibleEmbedding if net.tied else keras.layers.Embedding
    start, options = make.initial("RandomNormal"), {"dtype": make.dtype, "name": "tokens"}
    tokens = kind(net.vocabulary, width, embeddings_initializer=start, **options)
    x = tokens(inputs)
    for number in range(1, net.layers + 1):
        name = f"block{number}"
        y = make("RMSNormalization", x, epsilon=_EPSILON, name=f"{name}_norm1")
        q = project(y, net.heads, f"{name}_query")
        k = project(y, net.key_value_heads, f"{name}_key")
        v = project(y, net.key_value_heads, f"{name}_value")
        q, k = (
            one if one.dtype == v.dtype else ops.cast(one, v.dtype)
            for one in (rotate(q, head**-0.5), rotate(k))  # Keras' own scale is rounded to float32
        )
        if k.shape[2] == 1 < q.shape[2]:  # Keras repeats them for two groups and more only
            k, v = (ops.repeat(one, q.shape[2], axis=2) for one in (k, v))
        y = ops.dot_product_attention(q, k, v, scale=1.0, is_causal=True)
        y = make("Reshape", y, (net.length, width), name=f"{name}_heads")
        x = add(x, y, f"{name}_attention")
        y = make("RMSNormalization", x, epsilon=_EPSILON, name=f"{name}_norm2")
        gate = make("Dense", y, net.hidden, use_bias=False, name=f"{name}_gate")
        gate = make("Activation", gate, "silu", name=f"{name}_silu")
        up = make("Dense", y, net.hidden, use_bias=False, name=f"{name}_up")
        y = make("Multiply", [gate, up], name=f"{name}_swiglu")
        x = add(x, y, f"{name}_mlp")
    x = make("RMSNormalization", x, epsilon=_EPSILON, name="norm")
    if net.tied:
        x = tokens(x, reverse=True)
        x = make("Activation", x, "linear", dtype=make.wide, name="logits")
    else:
        x = make.logits(x, net.vocabulary, use_bias=False)
    return keras.Model(inputs, x, name=make.name)


def rotations(length: int, head: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin, (length, 1, head), that rotate a head: x cos + (x rolled by half) sin.

    Value i of the first half and value i of the second are turned together by the angle
    t 10000^(-2 i / head) at position t: products depend on the distance of positions only.
    """
    angles = np.arange(length)[:, None] * 10000.0 ** (-2 * np.arange(head // 2) / head)
    cos, sin = np.cos(angles), np.sin(angles)
    pair = np.concatenate([cos, cos], 1), np.concatenate([-sin, sin], 1)
    return tuple(each[:, None].astype(dtype) for each in pair)
