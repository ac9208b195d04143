"""Keras' `fit` and `evaluate` taught to share each batch among the ranks."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import trainer as backend
from keras.src.callbacks.callback_list import CallbackList
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.trainers import trainer as base

from dlguide.horovod.callbacks import BroadcastGlobalVariablesCallback
from dlguide.horovod.reduction import reducers_of
from dlguide.horovod.transparent.models import check_model
from dlguide.horovod.transparent.parts import shared
from dlguide.horovod.transparent.session import Session
from dlguide.horovod.transparent.step import Counts, exchange_in, set_seeds_apart, share_step
from dlguide.horovod.transparent.summing import average_logs, average_own_state, sum_metrics

Trainer = backend.TensorFlowTrainer
READING = "Input: every rank reads and prepares all batches and keeps its part of each."
LOGS = "Logs after each batch are those of rank 0's part; at the end of an epoch they are complete."
DIFFERENT = (
    "the ranks do not get the same data ({}): something draws numbers without a seed "
    "(np.random.default_rng() for example) or reads in an order of its own"
)


def install(session: Session) -> None:
    """Change Keras in this process, before the script runs."""
    counts = {"train": Counts(), "test": Counts()}
    _share_data(session)
    _share_fit(session, counts)
    _share_evaluate(session, counts)
    _share_functions(session, counts)
    _share_results(session, counts)
    _weigh_means(session)
    _share_decisions(session)
    _watch_optimizers(session)


def _share_data(session: Session) -> None:
    plain = backend.TFEpochIterator.__init__

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if session.phase not in ("train", "test"):
            return
        data = self._distributed_dataset
        endless = data.cardinality() == tf.data.INFINITE_CARDINALITY
        if endless and not self.steps_per_epoch:
            session.refuse("its data never end: `fit` needs `steps_per_epoch`")
        try:
            self._distributed_dataset = shared(data, session.rank, session.ranks)
        except ValueError as error:
            session.refuse(str(error).splitlines()[-1].strip().removeprefix("ValueError: "))

    backend.TFEpochIterator.__init__ = init


def _share_fit(session: Session, counts: dict[str, Counts]) -> None:
    plain, signature, seeds = Trainer.fit, inspect.signature(Trainer.fit), set()

    @functools.wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        check_model(session, self)
        first = BroadcastGlobalVariablesCallback(0)
        callbacks = given.arguments.get("callbacks")
        if isinstance(callbacks, CallbackList):
            callbacks.append(first)
            first.set_model(self)
        else:
            listed = [callbacks] if isinstance(callbacks, keras.callbacks.Callback) else callbacks
            given.arguments["callbacks"] = [first, *(listed or [])]
        with session.during("train"):
            session.told = False
            set_seeds_apart(session, self, seeds)
            counts["train"].clear()
            history = plain(*given.args, **given.kwargs)
        session.trained = True
        session.barrier()  # what callbacks of rank 0 have written is there for all
        return history

    Trainer.fit = fit

    def refused(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> None:
            session.refuse(f"trains or tests batch by batch with `{name}`: use `fit`, `evaluate`")

        return call

    for name in ("train_on_batch", "test_on_batch"):
        setattr(Trainer, name, refused(name))


def _share_evaluate(session: Session, counts: dict[str, Counts]) -> None:
    for name, phase in (("evaluate", "test"), ("predict", "whole")):
        plain = getattr(Trainer, name)

        def call(self: Any, *args: Any, plain=plain, name=name, phase=phase, **kwargs: Any) -> Any:
            inside = session.phase == "train"
            if phase == "test":
                check_model(session, self)
                counts["test"].clear()
            with session.during(phase):
                if not inside:
                    shares = "each rank takes its part of every batch"
                    what = shares if phase == "test" else "runs whole on every rank"
                    session.report.change(name, session.line, what)
                return plain(self, *args, **kwargs)

        setattr(Trainer, name, functools.wraps(plain)(call))


def _share_functions(session: Session, counts: dict[str, Counts]) -> None:
    def make(self: Any, phase: str, step: Any) -> Any:
        inner = share_step(session, self, step, counts[phase])
        function = self._make_function(inner)

        def call(iterator: Any) -> Any:
            nonlocal function
            logs = function(iterator)
            if inner.grown:
                inner.grown = False
                function = self._make_function(inner)
            if counts[phase].fresh:
                counts[phase].fresh = False
                _check_first(session, self, counts[phase], phase)
            return logs

        return call

    def make_train_function(self: Any, force: bool = False) -> Any:
        if self.train_function is None or force:
            self.train_function = make(self, "train", self.train_step)
        return self.train_function

    def make_test_function(self: Any, force: bool = False) -> Any:
        if self.test_function is None or force:
            self.test_function = make(self, "test", self.test_step)
        return self.test_function

    Trainer.make_train_function = make_train_function
    Trainer.make_test_function = make_test_function


def _check_first(session: Session, model: Any, counts: Counts, phase: str) -> None:
    """Compare what the ranks were given after a phase's first step, and say how it was shared."""
    seen = counts.read()
    if not session.same([seen["steps"], seen["fingerprint"], seen["first"]]):
        session.refuse(DIFFERENT.format("found in the first step"))
    total, ranks = seen["first"], session.ranks
    if phase != "train" or session.told:
        return
    session.told = True
    if total < ranks:
        session.refuse(f"its batch of {total} has not one sample for each of the {ranks} ranks")
    least = total // ranks
    part = f"{least}" if total % ranks == 0 else f"{least} or {least + 1}"
    session.report.change("fit", session.line, f"batches of {total}: {part} samples per rank")
    names = [each.name for each in model._flatten_layers() if id(each) in session.normalized]
    if names:
        what = "statistics over the whole batch, exchanged in each step"
        what = f"BatchNormalization ({', '.join(names)}): {what}"
        session.report.change("fit", session.line, what)
    session.report.differs(READING)
    session.report.differs(LOGS)


def _share_results(session: Session, counts: dict[str, Counts]) -> None:
    plain = base.Trainer._get_metrics_result_or_logs

    def results(self: Any, logs: Any) -> Any:
        phase = session.phase
        if phase not in counts:
            return plain(self, logs)
        seen = counts[phase].read()
        if not session.same([seen["steps"], seen["fingerprint"]]):
            session.refuse(DIFFERENT.format(f"found after {seen['steps']} steps"))
        sum_metrics(self)
        if phase == "train":
            average_own_state(session, self)
        found = plain(self, logs)
        if found is logs and isinstance(logs, dict):
            found = average_logs(logs, self.get_metrics_result(), counts[phase])
        counts[phase].clear()
        return found

    base.Trainer._get_metrics_result_or_logs = results


def _weigh_means(session: Session) -> None:
    """Count a scalar that a mean takes from a part of a batch by its samples.

    Keras counts such a mean (the loss of one of several outputs, what a metric's function gives
    for a whole batch) once per batch, however many samples that has.
    """
    plain = keras.metrics.Mean.update_state

    @functools.wraps(plain)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> Any:
        scalar = getattr(values, "shape", ()) == ()
        if session.weight is not None and sample_weight is None and scalar:
            sample_weight = session.weight / session.ranks
        return plain(self, values, sample_weight)

    keras.metrics.Mean.update_state = update_state


def _share_decisions(session: Session) -> None:
    """Let all ranks stop when one of them stops, as a callback of the script's own may do."""
    batch_end, epoch_end = CallbackList._on_train_batch_end, CallbackList.on_epoch_end

    def decides(callback: Any) -> bool:
        kind = type(callback)
        given = "on_train_batch_end" in vars(callback)  # as LambdaCallback keeps what it is given
        if given or isinstance(callback, keras.callbacks.TerminateOnNaN):
            return True
        own = not kind.__module__.startswith(("keras.", "dlguide."))
        plain = keras.callbacks.Callback
        changed = kind.on_train_batch_end, kind.on_batch_end
        return own and changed != (plain.on_train_batch_end, plain.on_batch_end)

    def agree(callbacks: Any) -> None:
        model = callbacks.callbacks[0].model
        model.stop_training = session.any(bool(model.stop_training))

    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        batch_end(self, batch, logs)
        if session.phase == "train" and any(decides(each) for each in self.callbacks):
            agree(self)

    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        epoch_end(self, epoch, logs)
        if session.phase == "train":
            agree(self)

    CallbackList._on_train_batch_end = on_train_batch_end
    CallbackList.on_epoch_end = on_epoch_end


def _watch_optimizers(session: Session) -> None:
    """Let gradients be applied inside shared steps only, and by all ranks together."""
    plain = BaseOptimizer.apply

    @functools.wraps(plain)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if session.weight is None:
            session.refuse(
                "applies gradients in a loop of its own, outside `fit`: move the step into the "
                "`train_step` of a model and call `fit`"
            )
        if reducers_of(self) or id(self) in session.known:
            return plain(self, grads, trainable_variables)
        exchange_in(session, self)  # it becomes one that exchanges, and applies as such
        return self.apply(grads, trainable_variables)

    BaseOptimizer.apply = apply
