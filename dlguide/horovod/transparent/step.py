"""A model's training and test step on one rank's part of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from dlguide.horovod.optimizer import DistributedOptimizer
from dlguide.horovod.reduction import reducers_of, variable_key
from dlguide.horovod.transparent.parts import OWN, PRINT, TOTAL
from dlguide.horovod.transparent.session import Session

SCALE = (
    "Loss scale: gradients in half precision are those of each rank's mean, larger than the "
    "rank's share of one process' gradients, so that they overflow at a smaller scale: all ranks "
    "may skip a step that one process takes."
)
APART = 7919  # between the seeds of neighbouring ranks


class Counts:
    """What one phase has seen so far on this rank; lives on the device, so that steps are quick."""

    STEPS, FINGERPRINT, FIRST, LAST_OWN, LAST_TOTAL = range(5)

    def __init__(self) -> None:
        self.values = tf.Variable(tf.zeros([5], tf.int64), trainable=False)
        self.fresh = True  # until the first step is done

    def clear(self) -> None:
        """Begin anew."""
        self.values.assign(tf.zeros_like(self.values))
        self.fresh = True

    def add(self, sizes: tf.Tensor) -> None:
        """Take in one batch."""
        now = tf.unstack(self.values.read_value())
        steps = now[self.STEPS] + 1
        seen = now[self.FINGERPRINT] * 31 + sizes[PRINT]  # depends on the order of the batches
        first = tf.where(steps == 1, sizes[TOTAL], now[self.FIRST])
        self.values.assign(tf.stack([steps, seen, first, sizes[OWN], sizes[TOTAL]]))

    def read(self) -> dict[str, int]:
        """Return the counts by name."""
        names = ("steps", "fingerprint", "first", "last_own", "last_total")
        return dict(zip(names, map(int, self.values.numpy()), strict=True))


def own_state(model: keras.Model) -> list[keras.Variable]:
    """Return what steps change beside weights: moving statistics and the like."""
    layers = [layer for layer in model._flatten_layers() if layer.trainable]
    return _once(v for layer in layers for v in layer._non_trainable_variables)


def metric_state(model: keras.Model) -> list[keras.Variable]:
    """Return the variables of a model's metrics, those of the loss included."""
    return _once(v for metric in model.metrics for v in metric.variables)


def _once(variables: Any) -> list[keras.Variable]:
    return list({id(variable): variable for variable in variables}.values())


def share_step(session: Session, model: keras.Model, step: Callable, counts: Counts) -> Any:
    """Return a step that takes (sizes, part) where the given one takes a batch."""
    seen: set[int] = set()

    @tf.autograph.experimental.do_not_convert
    def shared_step(data: Any) -> Any:
        sizes, part = data
        own, total = sizes[OWN], sizes[TOTAL]
        before = [(v, tf.identity(v.value)) for v in [*metric_state(model), *own_state(model)]]
        seen.clear()
        seen.update(id(v) for v, _ in before)
        plain = _seeds_apart(session)
        try:
            with session.step(own, total):
                for optimizer in optimizers_of(model):
                    exchange_in(session, optimizer)
                logs = step(part)
        finally:
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, plain)
        made = [v for v in metric_state(model) if id(v) not in seen]
        before += [(v, tf.zeros_like(v.value)) for v in made]
        agreed = session.agreed()  # known only now: these hold the statistics of all ranks
        before = [(v, value) for v, value in before if id(v) not in agreed]
        shared_step.grown = bool(made) or any(id(v) not in seen for v in own_state(model))
        _keep(own, before)
        counts.add(sizes)
        return logs

    shared_step.grown = False
    return shared_step


def _keep(own: tf.Tensor, before: list[tuple[keras.Variable, tf.Tensor]]) -> None:
    """Undo what a rank without samples has done to metrics and to state of its own."""

    def undo() -> tf.Tensor:
        for variable, value in before:
            variable.assign(value)
        return tf.constant(True)

    tf.cond(own == 0, undo, lambda: tf.constant(False))


def _seeds_apart(session: Session) -> Any:
    """Give random operations of the step that have no seed of their own other numbers per rank."""
    plain = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    name = "dlguide_transparent_seeds"
    own = global_state.get_global_attribute(name)
    if own is None:
        with tf.init_scope():
            seed = (session.report.seed + APART * session.rank) % 2**31
            own = keras.random.SeedGenerator(seed)
        global_state.set_global_attribute(name, own)
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, own)
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        if graph.seed is not None:
            graph.seed = (graph.seed + APART * session.rank) % 2**31
    return plain


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that a model holds, its own first."""
    held = [getattr(model, "optimizer", None), *vars(model).values()]
    return _once(each for each in held if isinstance(each, keras.optimizers.Optimizer))


def exchange_in(session: Session, optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer average its gradients over the ranks, each by its number of samples.

    With g_r the gradient of the mean loss of the n_r samples of rank r, of n in all:

        g = (1 / p) sum_r (n_r p / n) g_r

    which is the gradient of the mean loss of all n samples.
    """

    def weigh(grads: list[Any]) -> list[Any]:
        return [None if grad is None else _times(grad, session.weight) for grad in grads]

    if not reducers_of(optimizer):
        # A model may have several, whose exchanges must not be taken for one another: names apart,
        # and the ranks' weights compared beside the step, by the callback that `fit` is given.
        name = f"transparent{len(session.known)}.{type(optimizer).__name__}"
        DistributedOptimizer(optimizer, name=name, check_every=0)
        what = f"{type(optimizer).__name__} averages gradients over the ranks, by samples"
        session.report.change("optimizer", 0, what)
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) and session.ranks > 1:
            session.report.differs(SCALE)
        inner = [
            optimizer,
            getattr(optimizer, "inner_optimizer", None),
            *getattr(optimizer, "optimizers", []),
        ]
        session.known |= {id(each): each for each in inner if each is not None}
    for reducer in reducers_of(optimizer):
        reducer.weigh = weigh
        # One process squares the rows of an embedding's gradients before it adds them up.
        reducer.sum_rows = False


def _times(grad: Any, weight: tf.Tensor) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values * tf.cast(weight, grad.values.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad * tf.cast(weight, grad.dtype)


def set_seeds_apart(session: Session, model: keras.Model, done: set) -> None:
    """Give each rank's random layers a seed of their own, so that masks are not repeated."""
    names = []
    for layer in model._flatten_layers():
        for generator in layer._seed_generators:
            key = variable_key(generator.state)
            if key not in done:
                done.add(key)
                step = tf.constant([APART * session.rank, 0], tf.int64)
                state = tf.cast(generator.state.value, tf.int64) + step
                generator.state.assign(tf.cast(state % 2**31, generator.state.value.dtype))
            names.append(layer.name)
    if names:
        session.report.differs(
            f"Random layers ({', '.join(dict.fromkeys(names))}): each rank draws numbers of its "
            "own, so that the run is one of many that one process could have made."
        )
