"""Nets that lessons use, by name and seed: `build`; what `dlguide.models` has is not among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlcourse.nets.gpt_shape import GPTShape
from dlguide.errors import require, require_known

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
    - "cnn_3d", "c3d": three-dimensional convolutions over clips of 8 x 32 x 32 x 1 and of
      16 x 112 x 112 x 3; frames, image, channels, filters, hidden, classes.
    - "autoencoder", "conv_autoencoder": noisy images to logits of clean ones; image, channels,
      hidden or filters, code, noise (standard deviation, added in training only).
    - "dcgan_generator", "dcgan_discriminator" for 28 x 28 x 1 and "dcgan64_generator",
      "dcgan64_discriminator" for 64 x 64 x 3; latent, filters, channels.
    - "rnn", "lstm", "gru": a series to `outputs` values; length, features, units, layers.
    - "transformer": the same task; length, features, width, heads, layers, outputs.
    - "causal_transformer": logits of the next token at each position; length, vocabulary, width,
      heads, layers.
    - "gpt": the same task by a net as language models have it today (`GPTShape` has its closed
      forms); length, vocabulary, width, heads, key_value_heads, hidden (0: 8 / 3 of the width),
      layers, tied (1: embeddings and last layer share their weights).

    The other arguments are those of `dlguide.models.build`: the same ones give the same weights,
    bit by bit, on every rank. Autoencoders, GANs and "gpt" have no dropout.
    """
    from dlcourse.nets import gpt, images, sequences
    from dlcourse.nets.seeded import SeededLayers

    nets = {**images.NETS, **sequences.NETS, **gpt.NETS}
    net = nets[require_known(name, nets, "name")]
    for size in sizes:
        require_known(size, net.sizes, f"size of {name}")
    if net.dropout is None:
        require(dropout is None, "dropout", f"be left out for {name}, which has none", dropout)
    dropout = (net.dropout or 0.0) if dropout is None else dropout
    dropout_seed = (seed or 0) if dropout_seed is None else dropout_seed
    make = SeededLayers(name, seed, dtype, dropout_seed, net.start)
    return net.builder(make, {**net.sizes, **sizes}, dropout)
