"""Keras callbacks for training on ranks; give all ranks the same ones in the same order."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.collectives import allgather, allreduce
from dlguide.horovod.guard import CHANGED_ASIDE, RanksDifferError, agree, check_weights
from dlguide.horovod.guard import check_every as checked_every
from dlguide.horovod.loss_scale import exchanges
from dlguide.horovod.native import Average, Min, communicates, global_process_set, native
from dlguide.horovod.reduction import variable_key
from dlguide.horovod.schedules import LearningRateScheduleCallback, LearningRateWarmupCallback
from dlguide.horovod.variables import broadcast_variables, model_state

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

PLAIN_OPTIMIZER = (
    "The model is compiled with a plain optimizer, so that each rank trains alone: compile it with "
    "`hvd.DistributedOptimizer(optimizer)`"
)


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Start all ranks from one rank's weights and optimizer state, and watch that they stay equal.

    The broadcast comes before the first batch, or after it when the model is built by it. Seeds
    of random layers stay each rank's own. Before the first batch the ranks' numbers of batches are
    compared; after the second one, then every so many, and at the end of each epoch their trainable
    weights.

    Args:
        root_rank: the rank whose values count.
        device: device for the broadcast; empty leaves it to TensorFlow.
        local_variables: a variable or several that stay each rank's own.
        check_every: batches between two comparisons, 0 for never; None takes the environment's
            DLGUIDE_HVD_CHECK_EVERY, or 100.
    """

    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Any = None,
        *,
        check_every: int | None = None,
    ) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.check_every = checked_every(check_every)
        self.broadcast_done = False
        self.batches = 0
        self._local: set = set()
        kinds = keras.Variable | tf.Variable
        local = [local_variables] if isinstance(local_variables, kinds) else local_variables or []
        for variable in local:
            must = "be variables of Keras or TensorFlow"
            require(isinstance(variable, kinds), "local_variables", must, variable)
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leave a variable as it is on each rank."""
        self._local.add(variable_key(var))

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Refuse ranks with different numbers of batches: the others would wait indefinitely."""
        if not communicates(global_process_set):
            return
        steps = (self.params or {}).get("steps")
        own = [-1 if steps is None else steps, int(self._in_process_set())]
        batches, apart = allgather(np.array([own]), "broadcast.steps").numpy().T
        if apart.any() or batches.min() < 0 or batches.min() == batches.max():
            return
        counts = ", ".join(f"rank {rank}: {count}" for rank, count in enumerate(batches))
        raise RanksDifferError(
            "The batches per epoch must be as many on every rank, because each of them exchanges "
            f"gradients; got {counts}. Cut the data into equal parts, or give `fit` "
            f"`steps_per_epoch={batches.min()}` on every rank."
        )

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Broadcast before the first batch when all ranks have built their model."""
        if self.broadcast_done or self.batches:
            return
        built = self.model.built
        if communicates(global_process_set):
            flag = allreduce(np.int32(built), "broadcast.built", op=Min)
            built = bool(flag)
        if built:
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Broadcast after the first batch if it was not done before; compare now and then."""
        if not self.broadcast_done:
            self._broadcast()
        self.batches += 1
        if self.check_every and (self.batches == 2 or self.batches % self.check_every == 0):
            self._compare()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Compare the ranks' weights."""
        if self.check_every and self.batches:
            self._compare()

    def _broadcast(self) -> None:
        optimizer = self.model.optimizer
        if optimizer is not None and not optimizer.built and self.model.trainable_variables:
            optimizer.build(self.model.trainable_variables)
        state = [v for v in model_state(self.model) if variable_key(v) not in self._local]
        with tf.device(self.device):
            broadcast_variables(state, self.root_rank)
        self.broadcast_done = True

    def _exchanges(self) -> list:
        return exchanges(self.model.optimizer) if self.model.optimizer is not None else []

    def _in_process_set(self) -> bool:
        return any(each.reduction.process_set.process_set_id for each in self._exchanges())

    def _compare(self) -> None:
        if self._in_process_set():
            return  # ranks of several process sets are not meant to be equal
        found = self._exchanges()
        own = {key for each in found for key in each.local}
        variables = [
            variable
            for variable in self.model.trainable_variables
            if variable_key(variable) not in self._local
            and not any(each.reduction.key(variable) in own for each in found)
        ]
        check_weights(variables, CHANGED_ASIDE if found else PLAIN_OPTIMIZER)


class MetricAverageCallback(keras.callbacks.Callback):
    """Average the metrics of an epoch over the ranks, before other callbacks use them.

    Put it in front of callbacks that read metrics, such as `ReduceLROnPlateau`. One exchange of
    8 bytes a metric; every rank counts the same, however many samples it saw.

    Args:
        device: device for the exchange; empty leaves it to TensorFlow.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self.device = device

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Replace the metrics in `logs` by their means over the ranks."""
        if not logs:
            return
        names = sorted(logs)
        agree([f"the metric {name!r}" for name in names], "The metrics of an epoch")
        values = np.array([float(logs[name]) for name in names])
        with tf.device(self.device):
            means = allreduce(values, f"metrics.{len(names)}", op=Average).numpy()
        logs.update(zip(names, means.tolist(), strict=True))


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keep the best model of the training, written by rank 0.

    Put it behind `MetricAverageCallback`, so that the best epoch is that of all ranks.

    Args:
        monitor: the metric to compare.
        verbose: 0 or 1.
        save_weights_only: leave out the architecture and the optimizer.
        mode: "auto", "min" or "max".
        save_freq: "epoch" or a count of batches.
        filepath: the file to write; may be set later as `callback.filepath`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        *,
        filepath: Any = None,
    ) -> None:
        suffix = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(
            filepath=f"best{suffix}" if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Refuse to train towards no file."""
        then = "Pass `filepath=` or set `callback.filepath`."
        require(self.filepath is not None, "filepath", "be set before training", None, then)

    def _save_model(self, epoch: int, batch: int | None, logs: dict | None) -> None:
        if native.rank() == 0:
            super()._save_model(epoch=epoch, batch=batch, logs=logs)
