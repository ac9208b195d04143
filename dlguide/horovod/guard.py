"""Detect ranks that should be equal and are not, and fail on all of them together.

Ranks that average their gradients hold the same weights, bit for bit, as long as they started
from the same ones. At intervals fingerprints of all trainable weights are added up over the ranks
(8 bytes per variable); only when two differ are values compared. Differences of the size of
rounding errors, which processors of several kinds produce, cause one warning; larger ones end
the training with the ranks' numbers and the likely cause.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from dlguide.collectives.communicator import Communicator
from dlguide.distributed import guard as shared
from dlguide.distributed.exchange import RanksDifferError
from dlguide.distributed.guard import CHANGED_ELSEWHERE
from dlguide.errors import require, require_count
from dlguide.horovod.native import (
    ProcessSet,
    Sum,
    communicates,
    global_process_set,
    members,
    native,
)
from dlguide.horovod.ops import allgather, allgather_bytes, allreduce, in_turn

CHECK_EVERY = 100  # updates; the switch is DLGUIDE_HVD_CHECK_EVERY, 0 turns the guard off
NO_BROADCAST = (
    "The ranks did not start from the same weights: broadcast them first, with "
    "`hvd.callbacks.BroadcastGlobalVariablesCallback(0)` in `fit` or "
    "`hvd.broadcast_variables(model.weights, root_rank=0)` in your own loop"
)


class RanksOfSet(Communicator):
    """The ranks of a process set, for the texts that all exchanges share and for compressors.

    Without a name its collectives may be called from within a graph: a name takes a tf.function,
    which needs a thread of TensorFlow's pool, and that code may be running on the only one.
    """

    def __init__(self, process_set: ProcessSet, name: str | None = None) -> None:
        self.process_set, self.name = process_set, name
        self.size = len(self.members)

    @property
    def rank(self) -> int:
        return native.rank()

    @property
    def members(self) -> Sequence[int]:
        return members(self.process_set)

    def allgather_numbers(self, values: Sequence[float]) -> np.ndarray:
        """Return a few numbers of every rank in double precision, shape (ranks, numbers)."""
        mine = np.array(values, np.float64)
        world = _mpi() if self.process_set.process_set_id == 0 else None
        if world is None:
            everyone = self.allgather_bytes(mine.tobytes())
            return np.array([np.frombuffer(each) for each in everyone])
        rows = np.empty((self.size, len(mine)))
        world.Allgather(mine, rows)  # in microseconds: Horovod would wait for its next cycle
        return rows

    def allgather_bytes(self, data: bytes) -> list[bytes]:
        return allgather_bytes(data, self.name, self.process_set)

    def add(self, flat: np.ndarray) -> np.ndarray:
        """Return the sum of the ranks' flat arrays."""
        return allreduce(flat, self.name, op=Sum, process_set=self.process_set).numpy()

    def gather(self, message: np.ndarray) -> np.ndarray:
        """Return the bytes of all ranks, shape (ranks, bytes); all send equally many."""
        return allgather(message[None], self.name, process_set=self.process_set).numpy()


@functools.cache
def _mpi() -> Any:
    """Return MPI's world where it is Horovod's and may be used beside it, else None."""
    if not native.mpi_enabled():
        return None
    from mpi4py import MPI

    fits = (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size) == (native.rank(), native.size())
    return MPI.COMM_WORLD.Dup() if fits and MPI.Query_thread() == MPI.THREAD_MULTIPLE else None


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

    Called by all ranks of the set, eagerly; adds up 8 bytes per variable.

    Args:
        variables: the trainable variables, in the same order on all ranks.
        cause: the likely cause for the error's text, a sentence without its full stop.

    Raises:
        RanksDifferError: when weights differ by more than rounding.
    """
    if variables and communicates(process_set):
        mine = _fingerprints(variables)
        if _differ(mine, process_set):
            _raise(_complaint(mine, variables, cause, process_set))


def require_equal_steps(steps: int | None, process_set: ProcessSet = global_process_set) -> None:
    """Refuse ranks with different numbers of batches: the others would wait indefinitely."""
    if communicates(process_set):
        shared.require_equal_steps(RanksOfSet(process_set, "dlguide.steps"), steps)


class WeightConsistencyCheck:
    """The check inside a distributed optimizer: before the second update, then every so many."""

    def __init__(self, every: int, process_set: ProcessSet) -> None:
        self.every = every
        self.process_set = process_set
        self.calls: tf.Variable | None = None

    def before_update(self, grads: list[Any], variables: Sequence[Any], passes: int) -> list[Any]:
        """Compare the ranks' weights when it is due, and return the gradients."""
        if not self.every or not variables:
            return grads
        every = self.every * passes  # calls: so many passes make one update
        if self.calls is None:
            with tf.init_scope():
                self.calls = tf.Variable(0, dtype=tf.int64, trainable=False)
        done = self.calls.read_value()
        # Not before the first update: many scripts broadcast after it, when all variables exist.
        due = (done == passes) | ((done > 0) & (done % every == 0))
        compare = partial(self._compare, variables, done == passes)
        passed = tf.cond(due, compare, lambda: tf.constant(True))
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

    def _compare(self, variables: Sequence[Any], second: tf.Tensor) -> tf.Tensor:
        mine = _fingerprints(variables)
        different = _differ(mine, self.process_set)

        def complaint(mine: tf.Tensor, second: tf.Tensor) -> str:
            cause = NO_BROADCAST if second else CHANGED_ELSEWHERE
            return _complaint(mine, variables, cause, self.process_set)

        if tf.executing_eagerly():
            _raise(complaint(mine, second) if different else "")
            return tf.constant(True)

        def stop() -> tf.Tensor:
            # An assertion fails with this text alone; an error raised in Python would come with
            # three tracebacks around it.
            text = tf.py_function(complaint, [mine, second], tf.string)
            text = tf.ensure_shape(text, [])
            fine = tf.equal(tf.strings.length(text), 0)
            message = tf.strings.join(["RanksDifferError: ", text])
            stopped = tf.raw_ops.Assert(condition=fine, data=[message], summarize=1)
            with tf.control_dependencies([stopped]):
                return tf.constant(True)

        return tf.cond(different, stop, lambda: tf.constant(True))


def _raise(text: str) -> None:
    if text:
        raise RanksDifferError(text)


def _fingerprints(variables: Sequence[Any]) -> tf.Tensor:
    """Return 32 bits of each variable's values, which sums over ranks do not overflow."""
    with tf.device("CPU:0"):
        rows = [tf.fingerprint(tf.reshape(tf.convert_to_tensor(v), [1, -1])) for v in variables]
        return tf.bitcast(tf.concat(rows, axis=0), tf.int64) & 0xFFFFFFFF


def _differ(mine: tf.Tensor, process_set: ProcessSet) -> tf.Tensor:
    """Return on every rank whether the fingerprints of any rank are others.

    All are equal if and only if each rank's, times the number of ranks, are the sum. A rank that
    has called `hvd.join()` adds zeros to every sum, also to that number.
    """

    def compare() -> tf.Tensor:
        add = partial(allreduce, op=Sum, process_set=process_set)
        *sums, ranks = tf.unstack(add(tf.concat([mine, [1]], 0), "dlguide.fingerprints"))
        different = tf.reduce_any(tf.stack(sums) != mine * ranks)
        return add(tf.cast(different, tf.int64), "dlguide.fingerprints.differ") > 0

    with tf.device("CPU:0"):
        return in_turn(compare)


def _complaint(
    mine: tf.Tensor, variables: Sequence[Any], cause: str, process_set: ProcessSet
) -> str:
    """Say how far the weights of all ranks are apart; "" and a warning when it is rounding."""
    ranks = RanksOfSet(process_set)
    everyone = ranks.allgather_bytes(mine.numpy().tobytes())
    rows = np.array([np.frombuffer(each, np.int64) for each in everyone])
    values = [np.asarray(tf.convert_to_tensor(variable)) for variable in variables]
    return shared.difference(ranks, values, variables, rows, cause)
