"""Optimizers for large batches: momentum as the papers have it, LARS and LAMB, for Keras 3.

All three are Keras optimizers: they take a rate or a schedule, work with `jit_compile`, mixed
precision, loss scales, gradient accumulation and `hvd.DistributedOptimizer`, and are saved with
the model. Weight decay stands inside the update, where the papers have it. Biases and the
parameters of normalisation layers have neither decay nor a rate of their own, as in the usual
implementations (the papers leave that open): all variables of one dimension, and those of the
names `EXCLUDED`.

A gradient that is not finite makes the weights of its layer NaN, which `fit` reports; with
`keras.optimizers.LossScaleOptimizer` the whole update is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dlguide.errors import require_known
from dlguide.training.optimizers_keras import EXCLUDED, classes
from dlguide.training.schedules_keras import as_keras, keras_class
from dlguide.training.schedules_recipe import Recipe, Schedule

if TYPE_CHECKING:
    import keras


# Name -> learning rate, chosen for mnist_cnn with batches of 100 and 2 epochs, which Adam's usual
# 0.001 leaves unfinished.
OPTIMIZERS = {"adam": 0.0015, "sgd": 0.05}


def make(
    optimizer: str | Callable[..., keras.optimizers.Optimizer],
    learning_rate: Any = None,
    dtype: str = "float32",
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Build the optimizer of one rank, not yet connected to the others.

    With half precision the losses are scaled up and the gradients down again, which keeps small
    ones from becoming 0; a step whose gradients are not finite is left out. That is decided
    inside the optimizer that sums over ranks, so by all ranks alike.

    Args:
        optimizer: "adam", "sgd" (momentum 0.9), or a function that returns one; it is called
            with the learning rate unless that is None.
        learning_rate: a number or one of our schedules; None for the optimizer's own.
        dtype: of the model; "mixed_float16" scales losses.
        options: for a function, such as `weight_decay`.
    """
    import keras

    rate = _for_keras(learning_rate)
    if callable(optimizer):
        options = {name: _for_keras(value) for name, value in options.items()}
        made = optimizer(*(() if rate is None else (rate,)), **options)
    else:
        rate = (
            OPTIMIZERS[require_known(optimizer, OPTIMIZERS, "optimizer")] if rate is None else rate
        )
        sgd = optimizer == "sgd"
        made = keras.optimizers.SGD(rate, momentum=0.9) if sgd else keras.optimizers.Adam(rate)
    scales = isinstance(made, keras.optimizers.LossScaleOptimizer)
    wanted = dtype == "mixed_float16" and not scales
    return keras.optimizers.LossScaleOptimizer(made) if wanted else made


def momentum_sgd(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: Any = 1e-4,
    exclude: Sequence[str] = EXCLUDED,
    correct_momentum: bool = True,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Make gradient descent with momentum whose velocity holds no learning rate.

        u <- m u + g + decay w
        w <- w - rate u

    A new rate acts at once on all of u, which is what momentum correction gives Keras' own SGD.
    While the rate stays the same both do the same. Keras' `weight_decay` does not: it shortens
    the weights by rate x decay apart from the momentum, 1 / (1 - m) times less.

    Source:
        Goyal et al., arXiv:1706.02677, section 3, remarks 1 and 2, equations 9 and 10.
    """
    return classes().MomentumSGD(
        _for_keras(learning_rate),
        momentum=momentum,
        weight_decay=_for_keras(weight_decay),
        exclude=exclude,
        correct_momentum=correct_momentum,
        **options,
    )


def lars(
    learning_rate: Any,
    momentum: float = 0.9,
    weight_decay: Any = 1e-4,
    trust: float = 0.001,
    epsilon: float = 0.0,
    exclude: Sequence[str] = EXCLUDED,
    correct_momentum: bool = False,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Make LARS: momentum with a rate for each layer, in proportion to its weights.

        local = trust |w| / (|g| + decay |w| + epsilon)
        v <- m v + rate local (g + decay w)
        w <- w - v

    So a gradient moves each layer by at most rate x trust of its own length, however large the
    gradient is, and rates are much higher than with plain momentum. Where |w| or |g| is 0, local
    is 1, as in the usual implementations: by the formula zero weights would stay 0 for ever.

    Biases go by the full rate. Where that is too much for them, as in nets without normalisation
    layers, lower the rate and raise `trust` by the same factor: the layers' steps stay the same.

    Source:
        You, Gitman and Ginsburg, arXiv:1708.03888, equation 6 and algorithm 1.
    """
    return classes().LARS(
        _for_keras(learning_rate),
        momentum=momentum,
        weight_decay=_for_keras(weight_decay),
        trust=trust,
        epsilon=epsilon,
        exclude=exclude,
        correct_momentum=correct_momentum,
        **options,
    )


def lamb(
    learning_rate: Any = 0.001,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    weight_decay: Any = 0.01,
    norm_limits: Sequence[float] | None = None,
    exclude: Sequence[str] = EXCLUDED,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Make LAMB: Adam's direction, with a length in proportion to each layer's weights.

        m <- b1 m + (1 - b1) g,        v <- b2 v + (1 - b2) g^2
        r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + decay w
        w <- w - rate phi(|w|) / |r| r

    Where phi(|w|) or |r| is 0, their ratio is 1. `keras.optimizers.Lamb`, of which this is a
    subclass, is the same without decay and exceptions; but it takes its `weight_decay` off the
    weights beforehand, so that r and its length know nothing of it, and it has no limits.
    Variables must be of single precision, as mixed policies keep them.

    Source:
        You et al., arXiv:1904.00962, algorithm 2.
    """
    return classes().LAMB(
        _for_keras(learning_rate),
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        weight_decay=_for_keras(weight_decay),
        norm_limits=norm_limits,
        exclude=exclude,
        **options,
    )


def register() -> dict[str, type]:
    """Tell Keras of these optimizers and of our schedules, before it opens a model that has
    them.
    """
    known = [*vars(classes()).values(), keras_class()]
    return {f"dlguide>{one.__name__}": one for one in known}


def _for_keras(value: Any) -> Any:
    """Turn our schedules into Keras'; a recipe, whose steps are not fixed, is refused there."""
    return as_keras(value) if isinstance(value, Schedule | Recipe) else value
