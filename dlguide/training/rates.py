"""The learning rate of a training, and the optimizer that follows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlguide.errors import require_known, require_positive
from dlguide.training.schedules_collapsed import Collapsed
from dlguide.training.schedules_keras import as_keras
from dlguide.training.schedules_recipe import Recipe

if TYPE_CHECKING:
    import keras

# Name -> learning rate for one rank, and the rule by which it follows the ranks. The rates are
# chosen for mnist_cnn with batches of 100 and 2 epochs, which Adam's usual 0.001 leaves unfinished.
OPTIMIZERS = {"adam": (0.0015, "sqrt"), "sgd": (0.05, "linear")}
_FACTORS = {"linear": float, "sqrt": math.sqrt, "none": lambda ranks: 1.0}


def scaled_rate(
    optimizer: str,
    ranks: int,
    learning_rate: float | None = None,
    rate_scaling: str | None = None,
) -> float:
    """Give the learning rate for a global batch that is `ranks` times as large.

    For SGD the rule is linear: p ranks make 1/p of the steps, each with a p times smaller
    variance, so p times the rate walks as far. Adam divides a step by the size of the gradients
    itself; its rule is the square root, and multiplied by p it becomes unstable early (a mistake
    seen in many first Horovod scripts). Only the rate is scaled here: the whole rule of the source
    also changes 1 - beta_1 and 1 - beta_2 (times p) and epsilon (divided by the square root of p).

    Source:
        Goyal et al., arXiv:1706.02677, section 2.1 (SGD); Malladi et al., arXiv:2205.10287 (Adam).

    >>> scaled_rate("sgd", 4, 0.1), scaled_rate("adam", 4, 0.001)
    (0.4, 0.002)
    """
    own_rate, own_rule = OPTIMIZERS[require_known(optimizer, OPTIMIZERS, "optimizer")]
    rule = own_rule if rate_scaling is None else rate_scaling
    factor = _FACTORS[require_known(rule, _FACTORS, "rate_scaling")](ranks)
    rate = own_rate if learning_rate is None else require_positive(learning_rate, "learning_rate")
    return rate * factor


def make_optimizer(
    optimizer: str | Callable[..., keras.Optimizer],
    ranks: int,
    learning_rate: float | None = None,
    rate_scaling: str | None = None,
    dtype: str = "float32",
    schedule: Recipe | Collapsed | None = None,
    steps_per_epoch: int = 1,
) -> keras.Optimizer:
    """Build the optimizer of one rank, not yet connected to the others.

    With half precision the losses are scaled up and the gradients down again, which keeps small
    ones from becoming 0; where one is not finite the step is left out. That is decided inside
    the optimizer that sums over ranks, so by all ranks alike.
    """
    import keras

    rate = None if schedule is None else as_keras(rates_of(schedule).at(steps_per_epoch))
    if callable(optimizer):
        options = {}
        if isinstance(schedule, Collapsed):
            options["weight_decay"] = as_keras(schedule.weight_decay.at(steps_per_epoch))
        rule = optimizer(*(() if schedule is None else (rate,)), **options)
    else:
        if rate is None:
            rate = scaled_rate(optimizer, ranks, learning_rate, rate_scaling)
        sgd = optimizer == "sgd"
        rule = keras.optimizers.SGD(rate, momentum=0.9) if sgd else keras.optimizers.Adam(rate)
    scales = isinstance(rule, keras.optimizers.LossScaleOptimizer)
    wanted = dtype == "mixed_float16" and not scales
    return keras.optimizers.LossScaleOptimizer(rule) if wanted else rule


def rates_of(schedule: Recipe | Collapsed) -> Recipe:
    """Give the learning rate's part of a schedule."""
    return schedule.rates if isinstance(schedule, Collapsed) else schedule
