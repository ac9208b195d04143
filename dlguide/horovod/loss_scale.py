"""Loss scaling on ranks: when one rank's gradients overflow, all ranks skip the step.

`LossScaleOptimizer` decides from the gradients it is given whether to apply them. Around a
distributed optimizer these are still each rank's own, so that one rank would skip while the
others wait for it. Its `check_finite` therefore asks all ranks when, and only when, the optimizer
inside is distributed. (Keras puts a loss scale around the optimizer by itself when the policy is
`mixed_float16`.)
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from dlguide.horovod.collectives import allreduce
from dlguide.horovod.native import Min, communicates


def exchanges(optimizer: Any) -> list[Any]:
    """Return how an optimizer, or those it hands its gradients to, exchange them."""
    own = vars(optimizer).get("_exchange")
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", [])]
    return ([own] if own else []) + [
        e for each in inner if each is not None for e in exchanges(each)
    ]


def agree_on_finite() -> None:
    """Make `LossScaleOptimizer.check_finite` ask all ranks around a distributed optimizer."""
    plain = keras.optimizers.LossScaleOptimizer.check_finite
    if getattr(plain, "asks_all_ranks", False):
        return

    def check_finite(self: Any, grads: list[Any]) -> Any:
        finite = plain(self, grads)
        for exchange in exchanges(self.inner_optimizer):
            process_set = exchange.reduction.process_set
            if communicates(process_set):
                everywhere = allreduce(
                    tf.cast(finite, tf.int32), "loss_scale.finite", op=Min, process_set=process_set
                )
                finite = tf.cast(everywhere, tf.bool)
        return finite

    check_finite.asks_all_ranks = True
    keras.optimizers.LossScaleOptimizer.check_finite = check_finite
