"""Nets by name and seed; the same arguments give the same weights on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dlguide.errors import require, require_count, require_known

if TYPE_CHECKING:
    import keras

DTYPES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")
Size = int | float
Sizes = Mapping[str, Size]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class NetSpec:
    """A net before it is built.

    `inputs` is the shape of one sample, made of numbers and names of `sizes`; `least` the smallest
    value of a size where that is not 1; `start` the initializer of its kernels.
    """

    name: str
    task: str
    parameters: int
    inputs: tuple[str | int, ...]
    sizes: Sizes = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    dropout: float | None = 0.0
    start: str = "HeNormal"

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Size]:
        """Check the sizes that a caller gave and complete them by the defaults."""
        chosen = dict(self.sizes)
        takes = f"{self.name} takes {', '.join(self.sizes)}."
        then = takes if self.sizes else f"The sizes of {self.name} are fixed."
        for size, value in given.items():
            if value is None:
                continue
            require(size in self.sizes, size, f"be left out for {self.name}", value, then)
            if isinstance(self.sizes[size], float):
                number = isinstance(value, Real) and isfinite(value) and value >= 0
                require(number, size, "be a number of at least 0", value)
                chosen[size] = float(value)
            else:
                chosen[size] = require_count(value, size, least=self.least.get(size, 1))
        return chosen

    def shape(self, sizes: Sizes) -> Shape:
        """Return the shape of one sample."""
        return tuple(one if isinstance(one, int) else int(sizes[one]) for one in self.inputs)


# Builds a net from its layers, the shape of one sample, its sizes and the share of dropout.
Builder = Callable[["SeededLayers", Shape, Sizes, float], "keras.Model"]
NETS: dict[str, NetSpec] = {}
_BUILDERS: dict[str, Builder] = {}


def register(*specs: NetSpec) -> Callable[[Builder], Builder]:
    """Make the nets that a function builds known by their names."""

    def add(builder: Builder) -> Builder:
        for spec in specs:
            NETS[spec.name], _BUILDERS[spec.name] = spec, builder
        return builder

    return add


def spec(name: str) -> NetSpec:
    """Return the specification of a net: its task, parameters and default sizes.

    Raises:
        ValueError: when there is no such net.
    """
    return NETS[require_known(name, NETS, "name")]


def names(*tasks: str) -> tuple[str, ...]:
    """List the nets that `build` takes, of all tasks or of these.

    Tasks are "digits": classifiers of images of 28 x 28 x 1; "classifier": other classifiers that a
    small machine can train (but "resnet110" and "c3d"); "imagenet": classifiers of photographs in
    1000 classes; "autoencoder", "generator", "discriminator", "forecaster", "language model".

    Returns:
        tuple: names.

    Raises:
        ValueError: when no net has one of these tasks.
    """
    for task in tasks:
        require_known(task, {net.task for net in NETS.values()}, "task")
    return tuple(name for name, net in NETS.items() if not tasks or net.task in tasks)


def parameters(name: str) -> int:
    """Return the number of trainable parameters of a net at its default sizes.

    This is what an allreduce carries in each step, times 4 bytes in float32; moving averages of
    batch normalisation are not trained. For other sizes build the net and `count` it.

    Raises:
        ValueError: when there is no such net.

    >>> parameters("mlp") == (28 * 28 + 1) * 64 + (64 + 1) * 10
    True
    """
    return spec(name).parameters


def sample_shape(name: str, **sizes: Any) -> tuple[int, ...]:
    """Return the shape of one sample that a net of these `sizes` takes, without the batch.

    Raises:
        ValueError: when there is no such net or size.

    >>> sample_shape("resnet20"), sample_shape("lstm", length=100)
    ((32, 32, 3), (100, 1))
    """
    net = spec(name)
    return net.shape(net.resolve(sizes))


def build(
    name: str,
    seed: int = 0,
    dropout: float | None = None,
    dtype: str = "float32",
    dropout_seed: int | None = None,
    **sizes: Any,
) -> keras.Model:
    """Build a net, not yet compiled; a classifier gives logits.

    For images of 28 x 28 x 1 and 10 classes (`names("digits")`):

    - "mnist_cnn": convolution 32, pooling, convolution 64, pooling, dense 128, dropout, dense 10;
      kernels of 5 x 5, ReLU after each layer but the last.
    - "mnist_cnn_bn": the same with batch normalisation after each convolution. Its statistics
      are those of one rank's batch, so p ranks do not equal one process with the global batch.
    - "mlp": dense 64, dense 10; for lessons that must be quick.

    For photographs and 1000 classes, as their papers and torchvision have them
    (`names("imagenet")`; sizes: image, classes): "resnet50" has its stride in the first
    convolution of a block (He et al.), "resnet50_v1.5" in the 3 x 3 one; no convolution has a
    bias before batch normalisation. "alexnet" is the version without groups; "googlenet" is
    without its two auxiliary heads and without local response normalisation. Their convolutions
    start from He's normal distribution.

    For other tasks:

    - "resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110": residual nets for
      images of 32 x 32 x 3 and 10 classes; image, classes.
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

    Every random number comes from `seed`, none from a global state: the same arguments give the
    same weights, bit by bit, on every rank. Weights of different dtypes are different draws.

    Args:
        dropout: share of the units dropped before the last layer ("alexnet", "vgg16", "vgg19": the
            two last layers); None takes the net's default, such as 0.25 for the small
            convolutional nets and 0 for "mlp". Autoencoders and GANs have none.
        dtype: "float32", "float64", "mixed_float16" or "mixed_bfloat16", for this net only; the
            logits of the mixed ones are float32.
        dropout_seed: seed of the dropout, so that ranks drop different units; None takes `seed`.
        sizes: sizes of the net as listed above (count), None for the default: `image` is the
            height and width (pixels), `classes` the number of logits.

    Returns:
        keras.Model: logits of shape (batch, classes) for images of shape
            (batch, image, image, channels), or as its task is.

    Raises:
        ValueError: when the name, dtype or a size is unknown or a number is out of range.

    Source:
        He et al. 2015 (arXiv:1512.03385); Simonyan and Zisserman 2014 (arXiv:1409.1556); Huang
        et al. 2016 (arXiv:1608.06993); Krizhevsky 2014 (arXiv:1404.5997); Szegedy et al. 2014
        (arXiv:1409.4842); the other large ones are those of keras.applications.
    """
    net = spec(name)
    require_known(dtype, DTYPES, "dtype")
    require_count(seed, "seed", least=0)
    dropout_seed = seed if dropout_seed is None else dropout_seed
    require_count(dropout_seed, "dropout_seed", least=0)
    if net.dropout is None:
        require(dropout is None, "dropout", f"be left out for {name}, which has none", dropout)
    dropout = (net.dropout or 0.0) if dropout is None else dropout
    share = isinstance(dropout, Real) and 0 <= dropout < 1
    require(share, "dropout", "be at least 0 and below 1", dropout)
    chosen = net.resolve(sizes)
    make = SeededLayers(name, seed, dtype, dropout_seed, net.start)
    return _BUILDERS[name](make, net.shape(chosen), chosen, float(dropout))


def set_momentum(model: keras.Model, momentum: float) -> int:
    """Set the momentum of the moving averages of batch normalisation, before training.

        average <- momentum average + (1 - momentum) batch's value

    About 1 / (1 - momentum) batches count; the guide's training with large batches has 0.95.
    Caffe calls it `moving_average_fraction`; PyTorch's `momentum` is 1 minus this one.

    Returns:
        int: layers of batch normalisation that were changed, in models inside the model too.

    Raises:
        ValueError: unless it is at least 0 and below 1.

    Source:
        PRACE Best Practice Guide Deep Learning (2019), 6.2.6; Ioffe and Szegedy,
        arXiv:1502.03167, section 3.1.
    """
    import keras

    require(0 <= momentum < 1, "momentum", "be at least 0 and below 1", momentum)
    kind = keras.layers.BatchNormalization
    found = [layer for layer in model._flatten_layers() if isinstance(layer, kind)]
    for layer in found:
        layer.momentum = float(momentum)
    return len(found)


# --- layers of one dtype policy whose random numbers come from one seed and nothing else ---

_RECURRENT = ("SimpleRNN", "LSTM", "GRU")
_RANDOM = ("Dropout", "GaussianNoise", *_RECURRENT, "MultiHeadAttention")
# Standard deviation of "RandomNormal": Radford et al. 2015, section 4, and GPT-2.
_NORMAL = 0.02


@dataclass
class SeededLayers:
    """Makes Keras layers of one dtype policy and applies them, each with its own seed.

    The seeds follow from the net's name, `seed` and the order of the layers; no global state is
    read or changed. `start` is a class of `keras.initializers`, or "zeros" if weights come later.
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
        padding = "same"
        if strides > 1 and kernel > 1:
            # Padding "same" would pad one side only; the papers pad both.
            x = self("ZeroPadding2D", x, kernel // 2, name=f"{name}_pad")
            padding = "valid"
        x = self("Conv2D", x, filters, kernel, strides, padding, use_bias=False, name=name)
        return self("BatchNormalization", x, momentum=0.9, epsilon=1e-5, name=f"{name}_norm")

    def attend(self, x: Any, heads: int, causal: bool, name: str) -> Any:
        """Apply multi-head attention of a sequence to itself."""
        import keras

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
        start = self.start if self.start in ("RandomNormal", "zeros") else "GlorotUniform"
        options = {"kernel_initializer": self.initial(start), "name": "logits", **options}
        return self("Dense", x, outputs, dtype=self.wide, **options)


def layer_seeds(name: str, seed: int) -> Iterator[int]:
    """Draw a seed for each layer; the first ones do not depend on how many follow."""
    import numpy as np

    sequence = np.random.SeedSequence([crc32(name.encode()), seed])
    while True:
        yield int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)
