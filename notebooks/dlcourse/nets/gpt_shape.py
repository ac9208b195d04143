"""The sizes of a GPT as it is built today: its parameters and multiply-adds by closed form."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dlguide.errors import require, require_count


@dataclass(frozen=True)
class GPTShape:
    """The sizes of a GPT, of any size, and what follows from them without building it.

    `dlcourse.nets.gpt` has the net. A block has four matrices of attention and three of SwiGLU;
    with V words, L layers of width d, h heads of d / h of which g have their own keys and values,
    hidden width f and sequences of T tokens

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
        for name in (field.name for field in fields(self)):
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
