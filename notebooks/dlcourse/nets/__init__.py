"""Nets that lessons use, by name and seed: `build`; what `dlguide.models` has is not among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlguide.errors import require_known

if TYPE_CHECKING:
    import keras

__all__ = ["GPTShape", "build"]


def build(
    name: str,
    seed: int = 0,
    dropout: float | None = None,
    dtype: str = "float32",
    dropout_seed: int | None = None,
    **sizes: Any,
) -> keras.Model:
    """Build a net, not yet compiled.

    - "alexnet", "googlenet": photographs; image, classes. `seed` None draws no initial weights.
    - "conv_autoencoder": noisy images to logits of clean ones; image, channels, filters, code,
      noise (standard deviation, added in training only).
    - "dcgan_generator", "dcgan_discriminator" for 28 x 28 x 1; latent, filters, channels.
    - "rnn", "lstm", "gru": a series to `outputs` values; length, features, units, layers.
    - "transformer": the same task; length, features, width, heads, layers, outputs.
    - "causal_transformer": logits of the next token at each position; length, vocabulary, width,
      heads, layers.
    - "gpt": the same task by a net as language models have it today (`GPTShape` has its closed
      forms); length, vocabulary, width, heads, key_value_heads, hidden (0: 8 / 3 of the width),
      layers, tied (1: embeddings and last layer share their weights).

    The other arguments are those of `dlguide.models.build`: the same ones give the same weights,
    bit by bit, on every rank. The autoencoder, the GAN and "gpt" have no dropout.
    """
    from dlcourse.nets import images, sequences
    from dlcourse.nets.seeded import SeededLayers

    nets = {**images.NETS, **sequences.NETS}
    net = nets[require_known(name, nets, "name")]
    dropout = (net.dropout or 0.0) if dropout is None else dropout
    dropout_seed = (seed or 0) if dropout_seed is None else dropout_seed
    make = SeededLayers(name, seed, dtype, dropout_seed, net.start)
    return net.builder(make, {**net.sizes, **sizes}, dropout)


@dataclass(frozen=True)
class GPTShape:
    """The sizes of a GPT, of any size, and what follows from them without building it.

    `dlcourse.nets.sequences` has the net. A block has four matrices of attention and three of
    SwiGLU; with V words, L layers of width d, h heads of d / h of which g have their own keys and
    values, hidden width f and sequences of T tokens

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
        if self.hidden == 0:
            object.__setattr__(self, "hidden", -(-self.width // 3) * 8)

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
