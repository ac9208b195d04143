"""What a learning rate must follow: the size of the batch, and the momentum its change."""

from __future__ import annotations

import math

from dlguide.errors import require_count, require_known, require_positive

SCALING = {"linear": float, "sqrt": math.sqrt, "none": lambda times: 1.0}


def scaled(learning_rate: float, batch: int, base_batch: int, rule: str = "linear") -> float:
    """Scale a rate that was found for one global batch to another one.

    With k = batch / base_batch the rule "linear" gives k times the rate, "sqrt" its square root
    times the rate, and "none" the rate itself.

    For SGD the rule is linear: with k times the batch there are 1/k of the steps, each with a k
    times smaller variance, so k times the rate walks as far. Adam divides a step by the size of
    the gradients itself; its rule is the square root, and multiplied by k it becomes unstable
    early (a mistake seen in many first Horovod scripts). Only the rate is scaled here: the whole
    rule of Malladi et al. also changes 1 - beta_1 and 1 - beta_2 (times k) and epsilon (divided by
    the square root of k).

    Args:
        learning_rate: the rate for `base_batch`.
        batch: the global batch to train with: ranks times batch per rank (count).
        base_batch: the global batch the rate was found for (count).
        rule: "linear", "sqrt" or "none".

    Returns:
        float: the rate for `batch`.

    Raises:
        ValueError: when a count or the rate is not positive, or the rule is not known.

    Source:
        Goyal et al., arXiv:1706.02677, section 2.1; the thesis' experiment 5 (32 x 128 images
        instead of 256, 1.6 instead of 0.1); Malladi et al., arXiv:2205.10287 (Adam).

    >>> scaled(0.1, 32 * 128, 256), scaled(0.1, 1024, 256, "sqrt")
    (1.6, 0.2)
    """
    times = require_count(batch, "batch") / require_count(base_batch, "base_batch")
    factor = SCALING[require_known(rule, SCALING, "rule")]
    return require_positive(learning_rate, "learning_rate") * factor(times)


def momentum_correction(old_rate: float, new_rate: float) -> float:
    """Give the factor by which velocities are multiplied when the rate changes.

    With the rate inside the velocity, as in Keras' SGD and in Caffe,

        v <- m v - lr g,  w <- w + v

    the old steps in v were made with the old rate. After a rise they are too short, after a fall
    too long, until they are forgotten (some 1 / (1 - m) steps). The factor new / old mends that:

        v <- m (new / old) v - new g

    With the rate outside, u <- m u + g, w <- w - lr u, as in PyTorch, nothing is to be mended:
    both give the same weights. `optimizers.momentum_sgd` is of that form, so it needs no factor.

    Args:
        old_rate: the rate of the last update.
        new_rate: the rate of the coming one.

    Returns:
        float: new / old.

    Raises:
        ValueError: when a rate is not positive; a velocity made with a rate of 0 holds nothing.

    Source:
        Goyal et al., arXiv:1706.02677, section 3, remark 2, equations 9 and 10.

    >>> momentum_correction(0.25, 0.5)
    2.0
    """
    return require_positive(new_rate, "new_rate") / require_positive(old_rate, "old_rate")
