"""A small GPT as it is built today, and its parameters and multiply-adds by closed form.

Rotary embeddings instead of learned positions, fewer heads for keys and values than for queries,
SwiGLU, RMS normalisation before each part, no biases.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from dlcourse.nets.gpt_shape import GPTShape
from dlcourse.nets.seeded import Net, SeededLayers, Sizes

_SIZES = {
    "length": 64, "vocabulary": 128, "width": 64, "heads": 4, "key_value_heads": 2, "hidden": 0,
    "layers": 2, "tied": 0,
}  # fmt: skip
_EPSILON = 1e-5


def gpt(make: SeededLayers, sizes: Sizes, dropout: float) -> keras.Model:
    """Build a decoder of `layers` blocks that gives the logits of the next token.

    Each block adds, to its input, attention of the normalised input and then SwiGLU of the
    normalised sum. Kernels start from a normal distribution of 0.02; those that end a branch are
    smaller by the square root of the number of branches, as in GPT-2.

    Source:
        Touvron et al. 2023 (arXiv:2302.13971), section 2.2; rotary embeddings: Su et al. 2021
        (arXiv:2104.09864), the halves of a head rotated as one, as GPT-NeoX does; groups of heads:
        Ainslie et al. 2023 (arXiv:2305.13245); SwiGLU: Shazeer 2020 (arXiv:2002.05202).
    """
    net = GPTShape(**sizes)
    width, head = net.width, net.width // net.heads
    cos, sin = rotations(net.length, head, "float64" if make.dtype == "float64" else "float32")

    def rotate(x: Any, scale: float = 1.0) -> Any:
        return x * (scale * cos) + ops.roll(x, head // 2, axis=-1) * (scale * sin)

    def project(x: Any, heads: int, name: str) -> Any:
        shape = (net.length, heads, head)
        return make(keras.layers.EinsumDense, x, "bld,dhk->blhk", output_shape=shape, name=name)

    def add(x: Any, branch: Any, name: str) -> Any:
        """Project a branch back to the width and add it."""
        deviation = 0.02 / (2 * net.layers) ** 0.5
        start = keras.initializers.RandomNormal(stddev=deviation, seed=next(make.seeds))
        options = {"use_bias": False, "kernel_initializer": start, "name": f"{name}_out"}
        return make(
            keras.layers.Add,
            [x, make(keras.layers.Dense, branch, width, **options)],
            name=f"{name}_add",
        )

    inputs = keras.Input((net.length,), dtype="int32", name="tokens_in")
    kind = keras.layers.ReversibleEmbedding if net.tied else keras.layers.Embedding
    start, options = make.initial("RandomNormal"), {"dtype": make.dtype, "name": "tokens"}
    tokens = kind(net.vocabulary, width, embeddings_initializer=start, **options)
    x = tokens(inputs)
    for number in range(1, net.layers + 1):
        name = f"block{number}"
        y = make(keras.layers.RMSNormalization, x, epsilon=_EPSILON, name=f"{name}_norm1")
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
        y = make(keras.layers.Reshape, y, (net.length, width), name=f"{name}_heads")
        x = add(x, y, f"{name}_attention")
        y = make(keras.layers.RMSNormalization, x, epsilon=_EPSILON, name=f"{name}_norm2")
        gate = make(keras.layers.Dense, y, net.hidden, use_bias=False, name=f"{name}_gate")
        gate = make(keras.layers.Activation, gate, "silu", name=f"{name}_silu")
        up = make(keras.layers.Dense, y, net.hidden, use_bias=False, name=f"{name}_up")
        y = make(keras.layers.Multiply, [gate, up], name=f"{name}_swiglu")
        x = add(x, y, f"{name}_mlp")
    x = make(keras.layers.RMSNormalization, x, epsilon=_EPSILON, name="norm")
    if net.tied:
        x = tokens(x, reverse=True)
        x = make(keras.layers.Activation, x, "linear", dtype=make.wide, name="logits")
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


NETS = {"gpt": Net(gpt, _SIZES, None, "RandomNormal")}
