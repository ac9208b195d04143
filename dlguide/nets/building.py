"""Build a net by name and seed; the same arguments give the same weights on every rank."""

from __future__ import annotations

from difflib import get_close_matches
from numbers import Real
from typing import TYPE_CHECKING

from dlguide.checks import require, require_count, require_known
from dlguide.nets import imagenet, mnist

if TYPE_CHECKING:
    import keras

_DTYPES = ("float32", "float64", "mixed_bfloat16", "mixed_float16")


def names() -> tuple[str, ...]:
    """List the small nets of the course, for images of 28 x 28 x 1.

    Returns:
        tuple: names that `build` takes; `imagenet_names` has the larger ones.
    """
    return tuple(mnist.DROPOUT)


def imagenet_names() -> tuple[str, ...]:
    """List the large nets of the guide, for photographs of 224 x 224 x 3.

    Returns:
        tuple: names that `build` takes, too large to train in a lesson.
    """
    return tuple(imagenet.ARCHITECTURES)


def build(
    name: str,
    seed: int = 0,
    dropout: float | None = None,
    dtype: str = "float32",
    dropout_seed: int | None = None,
    image: int | None = None,
    classes: int | None = None,
) -> keras.Model:
    """Build a net that gives logits, not yet compiled.

    For images of 28 x 28 x 1 and 10 classes:

    - "mnist_cnn": convolution 32, pooling, convolution 64, pooling, dense 128, dropout, dense 10;
      kernels of 5 x 5, ReLU after each layer but the last.
    - "mnist_cnn_bn": the same with batch normalisation after each convolution. Its statistics
      are those of one rank's batch, so p ranks do not equal one process with the global batch.
    - "mlp": dense 64, dense 10; for lessons that must be quick.

    For photographs and 1000 classes, as their papers and torchvision have them
    (`imagenet_names`): "resnet50" has its stride in the first convolution of a block (He et al.),
    "resnet50_v1.5" in the 3 x 3 one; no convolution has a bias before batch normalisation.
    "alexnet" is the version without groups; "googlenet" is without its two auxiliary heads and
    without local response normalisation. Their convolutions start from He's normal distribution.

    Every random number comes from `seed`, none from a global state: the same arguments give the
    same weights, bit by bit, on every rank. Weights of different dtypes are different draws.

    Args:
        name: one of `names()` or of `imagenet_names()`.
        seed: seed of the initial weights, at least 0.
        dropout: share of the units dropped before the last layer, 0 to below 1; None takes the
            net's own, such as 0.25 for the small convolutional nets and 0 for "mlp". "alexnet"
            and "vgg16" drop before each of their two last layers.
        dtype: "float32", "float64", "mixed_float16" or "mixed_bfloat16", for this net only; the
            logits of the mixed ones are float32.
        dropout_seed: seed of the dropout, so that ranks drop different units; None takes `seed`.
        image: height and width of the images (pixels), for the large nets only; None takes the
            net's own, 224 or 299. A smaller one makes a net that small machines can train.
        classes: number of logits, for the large nets only; None takes 1000.

    Returns:
        keras.Model: logits of shape (batch, classes) for images of shape
            (batch, image, image, channels).

    Raises:
        ValueError: when the name or dtype is unknown or a number is out of range.

    Source:
        He et al. 2015 (arXiv:1512.03385); Simonyan and Zisserman 2014 (arXiv:1409.1556); Huang
        et al. 2016 (arXiv:1608.06993); Krizhevsky 2014 (arXiv:1404.5997); Szegedy et al. 2014
        (arXiv:1409.4842); the others are those of keras.applications.
    """
    _require_name(name)
    require_known(dtype, _DTYPES, "dtype")
    require_count(seed, "seed", least=0)
    dropout_seed = require_count(
        seed if dropout_seed is None else dropout_seed, "dropout_seed", least=0
    )
    large = imagenet.ARCHITECTURES.get(name)
    own = large.dropout if large else mnist.DROPOUT[name]
    dropout = own if dropout is None else dropout
    share = isinstance(dropout, Real) and 0 <= dropout < 1
    require(share, "dropout", "be at least 0 and below 1", dropout)
    if large is None:
        fixed = f"be left out for {name}, whose images and classes are fixed"
        require(image is None, "image", fixed, image)
        require(classes is None, "classes", fixed, classes)
        return mnist.assemble(name, seed, dropout, dtype, dropout_seed)
    image = require_count(large.image if image is None else image, "image", least=large.smallest)
    classes = require_count(1000 if classes is None else classes, "classes")
    model = imagenet.assemble(name, image, classes, dropout, dtype, dropout_seed)
    imagenet.draw(model, seed)
    return model


def parameters(name: str) -> int:
    """Count the trainable parameters of a net without building it.

    A convolution has (kernel * kernel * inputs + 1) * filters, a dense layer
    (inputs + 1) * outputs, batch normalisation 2 per filter (its moving averages are not
    trained). This is what an allreduce carries in each step, times 4 bytes in float32. The large
    nets are counted with 1000 classes, as published.

    Args:
        name: one of `names()` or of `imagenet_names()`.

    Returns:
        int: number of trainable parameters (count).

    Raises:
        ValueError: when there is no such net.

    >>> parameters("mlp") == (28 * 28 + 1) * 64 + (64 + 1) * 10
    True
    """
    _require_name(name)
    large = imagenet.ARCHITECTURES.get(name)
    return large.parameters if large else mnist.parameters(name)


def _require_name(name: str) -> None:
    small, large = names(), imagenet_names()
    near = get_close_matches(name, small + large, n=1) if isinstance(name, str) else []
    then = f"Did you mean {near[0]}? " if near else ""
    require(
        isinstance(name, str) and name in small + large,
        "name",
        f"be one of {', '.join(sorted(small))}",
        name,
        f"{then}Large nets: {', '.join(large)}.",
    )
