"""What a distributed optimizer does with gradients before it applies them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from dlguide.errors import require
from dlguide.horovod.guard import Watch, agree
from dlguide.horovod.native import NAMES, communicates
from dlguide.horovod.reduction import Reduction, refuse_xla

Apply = Callable[[list[Any], list[Any]], Any]


@dataclass(frozen=True)
class Passes:
    """How many backward passes make one update, and whether their gradients are averaged."""

    count: int = 1
    average: bool = False


class Sums:
    """Gradients of several backward passes, added up on this rank alone.

    `counter` is the number of passes in the sums.
    """

    def __init__(self) -> None:
        self.counter: tf.Variable | None = None
        self.buffers: list[tf.Variable | None] = []

    def add(self, grads: Sequence[Any]) -> None:
        """Add the gradients of one pass; the first call makes the buffers."""
        if self.counter is None:
            with tf.init_scope():
                self.counter = tf.Variable(0, trainable=False)
                self.buffers = [
                    None if g is None else tf.Variable(tf.zeros(g.shape, g.dtype), trainable=False)
                    for g in grads
                ]
        for buffer, grad in zip(self.buffers, grads, strict=True):
            if buffer is not None:
                buffer.assign_add(grad)
        self.counter.assign_add(1)

    def take(self) -> list[Any]:
        """Return the sums and start again from zero."""
        sums = [None if buffer is None else buffer.read_value() for buffer in self.buffers]
        for buffer in self.buffers:
            if buffer is not None:
                buffer.assign(tf.zeros_like(buffer))
        self.counter.assign(0)
        return sums


class Exchange:
    """The state that makes one optimizer distributed: settings, sums, and the guard."""

    def __init__(self, reduction: Reduction, passes: Passes, check_every: int) -> None:
        self.reduction = reduction
        self.passes = passes
        self.check_every = check_every
        self.local: set = set()
        self.sums = Sums() if passes.count > 1 else None
        self.watch = Watch(check_every, reduction.process_set, passes.count, reduction.name)
        self.agreed = False
        # What is done to this rank's gradients first; `transparent` weighs them by samples.
        self.weigh: Callable[[list[Any]], list[Any]] | None = None

    def fresh(self) -> Exchange:
        """Return an exchange with these settings for another optimizer."""
        exchange = Exchange(self.reduction, self.passes, self.check_every)
        exchange.weigh = self.weigh
        return exchange

    def step(self, optimizer: Any, apply: Apply, grads: list[Any], variables: list[Any]) -> Any:
        """Combine the gradients of all ranks and apply them, or put them aside for later."""
        if self.weigh is not None:
            grads = self.weigh(grads)
        if communicates(self.reduction.process_set):
            refuse_xla()
            self._agree(grads, variables)
            key = self.reduction.key
            shared = [v for v in variables if key(v) not in self.local]
            grads = self.watch.before_update(grads, shared)
        if self.sums is not None:
            return self._later(optimizer, apply, grads, variables)
        steps = optimizer.gradient_accumulation_steps
        replaced = any(getattr(v, "overwrite_with_gradient", False) for v in variables)
        if steps and not replaced and communicates(self.reduction.process_set):
            return apply(self._with_accumulated(optimizer, grads, variables), variables)
        return apply(self._reduce(grads, variables), variables)

    def _reduce(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        return self.reduction.reduce(grads, variables, frozenset(self.local))

    def _agree(self, grads: Sequence[Any], variables: Sequence[Any]) -> None:
        """Compare once, on all ranks, what is going to be exchanged."""
        if self.agreed:
            return
        red = self.reduction
        compression = getattr(red.compression, "__name__", red.compression)
        lines = [
            f"op={NAMES.get(red.op, red.op)}, compression={compression}, "
            f"backward_passes_per_step={self.passes.count}, "
            f"gradient_predivide_factor={red.gradient_predivide_factor}, "
            f"groups={red.groups if isinstance(red.groups, int) else bool(red.groups)}"
        ]
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            sparse = isinstance(grad, tf.IndexedSlices) and not red.sparse_as_dense
            kind = (
                "no gradient" if grad is None else f"a {'sparse' if sparse else 'dense'} gradient"
            )
            kind = "a local variable" if red.key(variable) in self.local else kind
            dtype = keras.backend.standardize_dtype(variable.dtype)
            lines.append(f"{kind} as number {i + 1} ({dtype} {tuple(variable.shape)})")
        with tf.init_scope():
            agree(lines, "What `DistributedOptimizer` exchanges", red.process_set)
        self.agreed = True

    def _later(
        self, optimizer: Any, apply: Apply, grads: Sequence[Any], variables: list[Any]
    ) -> None:
        """Add up, and exchange and apply at every so many passes."""
        sparse = [isinstance(grad, tf.IndexedSlices) for grad in grads]
        require(
            self.reduction.sparse_as_dense or not any(sparse),
            "sparse_as_dense",
            "be True when gradients are sparse and `backward_passes_per_step` is above 1",
            self.reduction.sparse_as_dense,
        )
        self.sums.add([None if g is None else tf.convert_to_tensor(g) for g in grads])

        def update() -> tf.Tensor:
            sums = self._reduce(self.sums.take(), variables)
            if self.passes.average:
                sums = [
                    None if s is None else s / tf.cast(self.passes.count, s.dtype) for s in sums
                ]
            apply(sums, variables)
            return tf.constant(True)

        def wait() -> tf.Tensor:
            optimizer.iterations.assign_add(1)
            return tf.constant(False)

        if not optimizer.built:
            build(optimizer, variables)
        tf.cond(self.sums.counter == self.passes.count, update, wait)

    def _with_accumulated(
        self, optimizer: Any, grads: Sequence[Any], variables: list[Any]
    ) -> list[Any]:
        """Exchange with Keras' own gradient accumulation: once an update, not once a pass.

        In the pass that updates, Keras applies (accumulated + gradient) / steps. That sum is
        formed and exchanged here, and the accumulators are emptied, so that Keras finds it whole.
        """
        if not optimizer.built:
            build(optimizer, variables)
        places = [i for i, grad in enumerate(grads) if grad is not None]
        own = [tf.convert_to_tensor(grads[i]) for i in places]
        kept = [
            optimizer._accumulated_gradients[optimizer._get_variable_index(variables[i])].value
            for i in places
        ]
        scale = optimizer.loss_scale_factor or 1.0  # accumulators hold unscaled gradients

        def exchange() -> list[Any]:
            sums = [
                g + tf.constant(scale, g.dtype) * tf.cast(k, g.dtype)
                for g, k in zip(own, kept, strict=True)
            ]
            for variable in kept:
                variable.assign(tf.zeros_like(variable))
            return self._reduce(sums, [variables[i] for i in places])

        passes = optimizer._iterations.value + 1
        updates = tf.equal(passes % optimizer.gradient_accumulation_steps, 0)
        reduced = tf.cond(updates, exchange, lambda: list(own))
        result = list(grads)
        for i, grad in zip(places, reduced, strict=True):
            result[i] = grad
        return result


def build(optimizer: Any, variables: list[Any]) -> None:
    """Build an optimizer for its variables, as its own `apply` would.

    Args:
        optimizer: an optimizer that is not built.
        variables: the variables to train.
    """
    with keras.name_scope(optimizer.name):
        optimizer.build(variables)
    optimizer.built = True
