"""Build a net by name and seed; the same arguments give the same weights on every rank."""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches
from numbers import Real
from typing import TYPE_CHECKING, Any

from dlguide.errors import require, require_count, require_known
from dlguide.models import families, imagenet, mnist

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


def further_names(task: str | None = None) -> tuple[str, ...]:
    """List the other nets of the course: for small photographs, clips, series, and those of GANs.

    Args:
        task: only those that are trained for it, such as "classifier", "autoencoder",
            "generator", "discriminator", "forecaster"; None for all.

    Returns:
        tuple: names that `build` takes, small enough for a lesson but for "resnet110", "c3d" and
            the pair of "dcgan64".

    Raises:
        ValueError: when no net has this task.
    """
    if task is not None:
        require_known(task, {net.task for net in families.NETS.values()}, "task")
    return tuple(name for name, net in families.NETS.items() if task in (None, net.task))


def classifier_names() -> tuple[str, ...]:
    """List the nets that tell classes apart and that a lesson can train.

    Returns:
        tuple: names whose nets give one logit a class: `names`, and some of `further_names`.
    """
    return names() + further_names("classifier")


def sample_shape(name: str, **sizes: Any) -> tuple[int, ...]:
    """Tell what one sample looks like that a net takes.

    Args:
        name: one of `names`, `imagenet_names` or `further_names`.
        sizes: as for `build`.

    Returns:
        tuple: the shape without the batch, such as (32, 32, 3).

    Raises:
        ValueError: when there is no such net or size.

    >>> sample_shape("resnet20"), sample_shape("lstm", length=100)
    ((32, 32, 3), (100, 1))
    """
    _require_name(name)
    if name in families.NETS:
        net = families.NETS[name]
        return net.sample(net.resolve(name, sizes))
    large = imagenet.ARCHITECTURES.get(name)
    for size, value in sizes.items():
        fits = value is None or (large is not None and size in ("image", "classes"))
        require(fits, size, f"be left out for {name}", value)
    if large is None:
        return mnist.IMAGE
    image = sizes.get("image")
    image = require_count(large.image if image is None else image, "image", least=large.smallest)
    return (image, image, 3)


def build(
    name: str,
    seed: int = 0,
    dropout: float | None = None,
    dtype: str = "float32",
    dropout_seed: int | None = None,
    image: int | None = None,
    classes: int | None = None,
    **sizes: Any,
) -> keras.Model:
    """Build a net, not yet compiled; a classifier gives logits.

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

    For other tasks (`further_names`), each with `sizes` that can be chosen:

    - "resnet8", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110": residual nets for
      images of 32 x 32 x 3 and 10 classes; image, classes.
    - "cnn_3d", "c3d": three-dimensional convolutions over clips of 8 x 32 x 32 x 1 and of
      16 x 112 x 112 x 3; frames, image, channels, filters, hidden, classes.
    - "autoencoder", "conv_autoencoder": noisy images to logits of clean ones; image, channels,
      hidden or filters, code, noise (standard deviation, added in training only).
    - "dcgan_generator", "dcgan_discriminator" for 28 x 28 x 1 and "dcgan64_generator",
      "dcgan64_discriminator" for 64 x 64 x 3; latent, filters, channels.
    - "rnn", "lstm", "gru": a series to `outputs` numbers; length, features, units, layers.
    - "transformer": the same task; length, features, width, heads, layers, outputs.
    - "causal_transformer": logits of the next token at each position; length, vocabulary, width,
      heads, layers.

    Every random number comes from `seed`, none from a global state: the same arguments give the
    same weights, bit by bit, on every rank. Weights of different dtypes are different draws.

    Args:
        name: one of `names()`, of `imagenet_names()` or of `further_names()`.
        seed: seed of the initial weights, at least 0.
        dropout: share of the units dropped before the last layer, 0 to below 1; None takes the
            net's own, such as 0.25 for the small convolutional nets and 0 for "mlp". "alexnet"
            and "vgg16" drop before each of their two last layers. Autoencoders and GANs have
            none.
        dtype: "float32", "float64", "mixed_float16" or "mixed_bfloat16", for this net only; the
            logits of the mixed ones are float32.
        dropout_seed: seed of the dropout, so that ranks drop different units; None takes `seed`.
        image: height and width of the images (pixels), not for those of 28 x 28; None takes the
            net's own, such as 224 or 299. A smaller one makes a net that small machines can train.
        classes: number of logits, not for those of 28 x 28; None takes the net's own.
        sizes: further sizes of the nets for other tasks (count), as listed above.

    Returns:
        keras.Model: logits of shape (batch, classes) for images of shape
            (batch, image, image, channels), or as its task is.

    Raises:
        ValueError: when the name, dtype or a size is unknown or a number is out of range.

    Source:
        He et al. 2015 (arXiv:1512.03385); Simonyan and Zisserman 2014 (arXiv:1409.1556); Huang
        et al. 2016 (arXiv:1608.06993); Krizhevsky 2014 (arXiv:1404.5997); Szegedy et al. 2014
        (arXiv:1409.4842); the other large ones are those of keras.applications. The modules
        `cifar`, `volumes`, `generative` and `sequences` of this package name those of the rest.
    """
    _require_name(name)
    require_known(dtype, _DTYPES, "dtype")
    require_count(seed, "seed", least=0)
    dropout_seed = require_count(
        seed if dropout_seed is None else dropout_seed, "dropout_seed", least=0
    )
    large = imagenet.ARCHITECTURES.get(name)
    dropout = _share(name, dropout)
    if name in families.NETS:
        sizes = {"image": image, "classes": classes, **sizes}
        return families.assemble(name, seed, dropout, dtype, dropout_seed, sizes)
    for size, value in sizes.items():
        require(False, size, f"be left out for {name}", value)
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


def parameters(name: str, **sizes: Any) -> int:
    """Count the trainable parameters of a net without building it.

    A convolution has (kernel * kernel * inputs + 1) * filters, a dense layer
    (inputs + 1) * outputs, batch normalisation 2 per filter (its moving averages are not
    trained). This is what an allreduce carries in each step, times 4 bytes in float32. The large
    nets are counted with 1000 classes, as published.

    Args:
        name: one of `names()`, of `imagenet_names()` or of `further_names()`.
        sizes: as for `build`, for `further_names()` only.

    Returns:
        int: number of trainable parameters (count).

    Raises:
        ValueError: when there is no such net or size.

    >>> parameters("mlp") == (28 * 28 + 1) * 64 + (64 + 1) * 10
    True
    >>> parameters("lstm", units=50, features=3) == 4 * 50 * (3 + 50 + 1) + 51
    True
    """
    _require_name(name)
    if name in families.NETS:
        return families.parameters(name, sizes)
    for size, value in sizes.items():
        then = "Count a net that you built with `models.count`."
        require(value is None, size, f"be left out for {name}", value, then)
    large = imagenet.ARCHITECTURES.get(name)
    return large.parameters if large else mnist.parameters(name)


def _share(name: str, dropout: Any) -> float:
    """Return the share that a net drops: the caller's, or the net's own."""
    if name in families.NETS:
        own = families.NETS[name].dropout
        if own is None:
            must = f"be left out for {name}, which has none"
            require(dropout is None, "dropout", must, dropout)
            return 0.0
    else:
        large = imagenet.ARCHITECTURES.get(name)
        own = large.dropout if large else mnist.DROPOUT[name]
    dropout = own if dropout is None else dropout
    share = isinstance(dropout, Real) and 0 <= dropout < 1
    require(share, "dropout", "be at least 0 and below 1", dropout)
    return dropout


def _require_name(name: str) -> None:
    small, large, further = names(), imagenet_names(), further_names()
    known = small + large + further
    then = ""
    if isinstance(name, str) and name not in known:
        near = get_close_matches(name, known, n=3)
        ratio = [SequenceMatcher(None, one, name).ratio() for one in near]
        best = sorted(one for one, its in zip(near, ratio, strict=True) if its == max(ratio))
        then = f"Did you mean {' or '.join(best)}? " if best else ""
    require(
        isinstance(name, str) and name in known,
        "name",
        f"be one of {', '.join(sorted(small))}",
        name,
        f"{then}Large nets: {', '.join(large)}. Further nets: {', '.join(further)}.",
    )
