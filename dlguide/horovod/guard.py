"""Detect ranks that should be equal and are not, and fail on all of them together.

Ranks that average their gradients hold the same weights, bit for bit, as long as they started
from the same ones. At intervals every rank sends a 64-bit fingerprint of each trainable weight
(8 bytes per variable); only when two differ are values compared. Differences of the size of
rounding errors, which processors of several kinds produce, cause one warning; larger ones end
the training with the ranks' numbers and the likely cause.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from dlguide.collectives.communicator import Communicator
from dlguide.distributed import guard as shared
from dlguide.distributed.exchange import RanksDifferError
from dlguide.distributed.guard import CHANGED_ELSEWHERE
from dlguide.errors import require, require_count
from dlguide.horovod.native import ProcessSet, communicates, global_process_set, members
from dlguide.horovod.ops import allgather, allgather_bytes

CHECK_EVERY = 100  # updates; the switch is DLGUIDE_HVD_CHECK_EVERY, 0 turns the guard off
NO_BROADCAST = (
    "The ranks did not start from the same weights: broadcast them first, with "
    "`hvd.callbacks.BroadcastGlobalVariablesCallback(0)` in `fit` or "
    "`hvd.broadcast_variables(model.weights, root_rank=0)` in your own loop"
)


class RanksOfSet(Communicator):
    """The ranks of a process set, for the texts that all exchanges share.

    Without a name its collectives may be called from within a graph: a name takes a tf.function,
    which needs a thread of TensorFlow's pool, and that code may be running on the only one.
    """

    def __init__(self, process_set: ProcessSet, name: str | None = None) -> None:
        self.process_set, self.name = process_set, name
        self.size = len(self.members)

    @property
    def members(self) -> Sequence[int]:
        return members(self.process_set)

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        return allgather_bytes(data, self.name, self.process_set)


def check_interval(value: int | None) -> int:
    """Return the number of updates between two checks."""
    if value is None:
        name = "DLGUIDE_HVD_CHECK_EVERY"
        text = os.environ.get(name) or str(CHECK_EVERY)
        must = "be a whole number of at least 0"
        require(text.isdecimal(), name, must, text, "Use 0 for never.")
        value = int(text)
    return require_count(value, "check_every", least=0)


def require_alike(
    lines: Sequence[str], what: str, process_set: ProcessSet = global_process_set
) -> None:
    """Raise on every rank when their descriptions of `what` differ; all ranks of the set call."""
    if communicates(process_set):
        shared.require_alike(RanksOfSet(process_set, "dlguide.alike"), lines, what)


def check_weights(
    variables: Sequence[Any],
    cause: str = NO_BROADCAST,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Raise on every rank when their weights are not the same.

    Called by all ranks of the set, eagerly; sends 8 bytes per variable and rank.

    Args:
        variables: the trainable variables, in the same order on all ranks.
        cause: the likely cause for the error's text, a sentence without its full stop.

    Raises:
        RanksDifferError: when weights differ by more than rounding.
    """
    if variables and communicates(process_set):
        gathered = _gather_fingerprints(variables, process_set)
        if not bool(_equal_rows(gathered)):
            _raise(_complaint(gathered.numpy(), variables, cause, process_set))


def require_equal_steps(steps: int | None, process_set: ProcessSet = global_process_set) -> None:
    """Refuse ranks with different numbers of batches: the others would wait indefinitely."""
    if communicates(process_set):
        shared.require_equal_steps(RanksOfSet(process_set, "dlguide.steps"), steps)


class WeightConsistencyCheck:
    """The check inside a distributed optimizer: before the second update, then every so many."""

    def __init__(self, every: int, process_set: ProcessSet, passes: int, name: str) -> None:
        self.name = name
        self.every = every * passes  # calls: so many passes make one update
        self.passes = passes
        self.process_set = process_set
        self.calls: tf.Variable | None = None

    def before_update(self, grads: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Compare the ranks' weights when it is due, and return the gradients."""
        if not self.every or not variables:
            return grads
        if self.calls is None:
            with tf.init_scope():
                self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        done = self.calls.read_value()
        # Not before the first update: many scripts broadcast after it, when all variables exist.
        due = (done == self.passes) | ((done > 0) & (done % self.every == 0))
        passed = tf.cond(due, lambda: self._compare(done, variables), lambda: tf.constant(True))
        self.calls.assign_add(1)
        if tf.executing_eagerly():
            return grads
        with tf.control_dependencies([passed]):
            return [
                None
                if grad is None
                else tf.nest.map_structure(tf.identity, grad, expand_composites=True)
                for grad in grads
            ]

    def _compare(self, done: tf.Tensor, variables: Sequence[Any]) -> tf.Tensor:
        gathered = _gather_fingerprints(variables, self.process_set, self.name)

        def complaint(rows: tf.Tensor, calls: tf.Tensor) -> str:
            cause = NO_BROADCAST if int(calls) == self.passes else CHANGED_ELSEWHERE
            return _complaint(rows.numpy(), variables, cause, self.process_set)

        if tf.executing_eagerly():
            _raise(complaint(gathered, done) if not _equal_rows(gathered) else "")
            return tf.constant(True)

        def stop() -> tf.Tensor:
            # An assertion fails with this text alone; an error raised in Python would come with
            # three tracebacks around it.
            text = tf.py_function(complaint, [gathered, done], tf.string)
            text = tf.ensure_shape(text, [])
            fine = tf.equal(tf.strings.length(text), 0)
            message = tf.strings.join(["RanksDifferError: ", text])
            stopped = tf.raw_ops.Assert(condition=fine, data=[message], summarize=1)
            with tf.control_dependencies([stopped]):
                return tf.constant(True)

        return tf.cond(_equal_rows(gathered), lambda: tf.constant(True), stop)


def _raise(text: str) -> None:
    if text:
        raise RanksDifferError(text)


def _gather_fingerprints(
    variables: Sequence[Any], process_set: ProcessSet, name: str = ""
) -> tf.Tensor:
    """Return one row of 64-bit fingerprints for each rank: shape (ranks, variables)."""
    # Two models that are trained in one graph compare at the same time, under different names.
    shapes = repr([tuple(each.shape) for each in variables])
    name = f"dlguide.fingerprints.{name}.{zlib.crc32(shapes.encode()):08x}"
    with tf.device("CPU:0"):
        rows = [tf.fingerprint(tf.reshape(tf.convert_to_tensor(v), [1, -1])) for v in variables]
        mine = tf.bitcast(tf.concat(rows, axis=0), tf.int64)
        return allgather(mine[None], name, process_set=process_set)


def _equal_rows(rows: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(rows == rows[:1])


def _complaint(
    fingerprints: np.ndarray, variables: Sequence[Any], cause: str, process_set: ProcessSet
) -> str:
    """Say how far the weights of all ranks are apart; "" and a warning when it is rounding."""
    values = [np.asarray(tf.convert_to_tensor(variable)) for variable in variables]
    return shared.difference(RanksOfSet(process_set), values, variables, fingerprints, cause)
