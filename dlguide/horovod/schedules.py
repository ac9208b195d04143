"""Callbacks that change the learning rate by epoch or batch, with momentum correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from dlguide.errors import require, require_count, require_positive
from dlguide.horovod.native import native


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Set the learning rate to `initial_lr * multiplier` within a range of epochs.

    With `staircase` at the first batch of each epoch, otherwise at each batch, where the epoch is
    epoch + batch / steps_per_epoch. Momentum correction keeps the velocity, which holds the old
    rate as a factor, in step with the new one (SGD with momentum, RMSprop):

        v <- m (lr_new / lr_old) v - lr_new g

    The velocity is scaled, not the momentum, since Keras compiles the momentum into the step; the
    two differ only in the last term of Nesterov's rule.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch, or a number m for m ** (epoch - start_epoch).
        start_epoch: the first epoch in which the rate is set.
        end_epoch: the first epoch in which it is left alone again; None for never.
        staircase: set it once an epoch.
        momentum_correction: scale the velocity.
        steps_per_epoch: batches an epoch; None takes them from `fit`.

    Raises:
        ValueError: when `initial_lr` is missing, or the optimizer's rate is a schedule of Keras.

    Source:
        Goyal et al., Accurate, Large Minibatch SGD (2017), sections 2.2 and 3.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = require_positive(initial_lr, "initial_lr")
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        if callable(multiplier):
            self.multiplier = multiplier
        else:
            self.multiplier = lambda epoch: multiplier ** (epoch - start_epoch)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Find the steps of an epoch, and see that the rate can be set."""
        rate = getattr(_stepping(self.model.optimizer), "_learning_rate", None)
        require(
            isinstance(rate, keras.Variable),
            "learning_rate",
            "be a number where a callback sets it",
            rate,
            "Give the optimizer a number, or leave the callback out.",
        )
        if not self.staircase and not self.steps_per_epoch:
            steps = (self.params or {}).get("steps")
            then = "Pass it: `fit` does not know how many batches an epoch has."
            require(bool(steps), "steps_per_epoch", "be known", steps, then)
            self.steps_per_epoch = steps

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Remember the epoch."""
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Set the rate for this batch."""
        ended = self.end_epoch is not None and self.current_epoch >= self.end_epoch
        if self.current_epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            self._set_rate(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set_rate(self.current_epoch)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Log the rate as `lr`."""
        if logs is not None:
            logs["lr"] = self._rate()

    def _rate(self) -> float:
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _set_rate(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = self._rate()
        optimizer.learning_rate = self.initial_lr * self.multiplier(epoch)
        new = self._rate()
        if self.momentum_correction and old and new != old:
            for velocity in _velocities(_stepping(optimizer)):
                velocity.assign(velocity * (new / old))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raise the learning rate batch by batch from `initial_lr` / p to `initial_lr`.

        lr(e) = initial_lr / p * (1 + e (p - 1) / warmup_epochs),  e = epoch + (batch + 1) / steps

    so that the last batch of the warmup runs at exactly `initial_lr`.

    Args:
        initial_lr: the rate to arrive at, usually the single process' rate times p.
        warmup_epochs: how long it takes (epochs).
        momentum_correction: scale the velocity with the rate.
        steps_per_epoch: batches an epoch; None takes them from `fit`.
        verbose: 1 prints a line on rank 0 when it is done.

    Source:
        Goyal et al., Accurate, Large Minibatch SGD (2017), section 2.2.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.warmup_epochs = require_count(warmup_epochs, "warmup_epochs")
        self.verbose = verbose
        super().__init__(
            initial_lr,
            self._fraction,
            end_epoch=self.warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def _fraction(self, epoch: float) -> float:
        ranks = native.size()
        done = epoch + 1 / self.steps_per_epoch
        return (1 + done * (ranks - 1) / self.warmup_epochs) / ranks

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Log the rate, and say when the warmup is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.end_epoch - 1 and self.verbose > 0 and native.rank() == 0:
            rate = self._rate()
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


def _stepping(optimizer: Any) -> Any:
    """Return the optimizer that makes the step: the one inside a loss scale."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _velocities(optimizer: Any) -> list[keras.Variable]:
    """Return the variables that hold past gradients times past learning rates."""
    kinds = keras.optimizers.SGD | keras.optimizers.RMSprop
    if not isinstance(optimizer, kinds) or not optimizer.built or not optimizer.momentum:
        return []
    found = getattr(optimizer, "momentums", None) or getattr(optimizer, "_momentums", [])
    return [velocity for velocity in found if velocity is not None]
