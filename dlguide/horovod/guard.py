"""Detect ranks that should be equal and are not, and fail on all of them together.

Ranks that average their gradients hold the same weights, bit for bit, as long as they started
from the same ones. At intervals every rank sends a 64-bit fingerprint of each trainable weight
(8 bytes per variable); only when two differ are values compared. Differences of the size of
rounding errors, which processors of several kinds produce, cause one warning; larger ones end
the training with the ranks' numbers and the likely cause.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import tensorflow as tf

from dlguide.collectives.agreement import group_ranks
from dlguide.errors import ranks_in_words, require, require_count
from dlguide.horovod.native import ProcessSet, communicates, global_process_set, members
from dlguide.horovod.ops import allgather, allgather_bytes, broadcast

CHECK_EVERY = 100  # updates; the switch is DLGUIDE_HVD_CHECK_EVERY, 0 turns the guard off
ROUNDING = 1000  # differences up to this many units in the last place may be rounding
NO_BROADCAST = (
    "The ranks did not start from the same weights: broadcast them first, with "
    "`hvd.callbacks.BroadcastGlobalVariablesCallback(0)` in `fit` or "
    "`hvd.broadcast_variables(model.weights, root_rank=0)` in your own loop"
)
CHANGED_ELSEWHERE = (
    "Something other than this optimizer changes weights on some ranks: another optimizer that is "
    "not distributed, weights loaded on one rank only, or a rank that skips steps"
)


class RanksDifferError(RuntimeError):
    """Ranks that must be equal are not; raised on all of them together."""


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
    if not communicates(process_set):
        return
    described = allgather_bytes("\n".join(lines).encode(), "dlguide.alike", process_set)
    other = next((i for i, text in enumerate(described) if text != described[0]), 0)
    texts = (described[place].decode().split("\n") for place in (0, other))
    for here, there in zip_longest(*texts, fillvalue="nothing"):
        if here != there:
            ranks = members(process_set)
            raise RanksDifferError(
                f"{what} must be the same on every rank: rank {ranks[0]} has {here}, "
                f"rank {ranks[other]} has {there}."
            )


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
    if not communicates(process_set):
        return
    own = np.array([-1 if steps is None else steps])
    batches = allgather(own, "dlguide.steps", process_set=process_set).numpy()
    if batches.min() < 0 or batches.min() == batches.max():
        return
    pairs = zip(members(process_set), batches, strict=True)
    counts = ", ".join(f"rank {rank}: {count}" for rank, count in pairs)
    raise RanksDifferError(
        "The number of batches per epoch must be the same on every rank, because each of them "
        f"exchanges gradients; got {counts}. Cut the data into equal parts, or give `fit` "
        f"`steps_per_epoch={batches.min()}` on every rank."
    )


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
    # The collectives here go without names: a name takes a tf.function, which needs a thread of
    # TensorFlow's pool, and from within a graph this code may be running on the only one.
    ranks = members(process_set)
    worst, worst_relative, worst_name, rounding = 0.0, -1.0, "", True
    different = np.flatnonzero((fingerprints != fingerprints[0]).any(axis=0))
    for i in different:
        own = tf.convert_to_tensor(variables[i])
        first = broadcast(own, ranks[0], process_set=process_set)
        own, first = (np.asarray(tensor, np.float64) for tensor in (own, first))
        apart = np.where(own == first, 0.0, np.abs(own - first))
        apart[np.isnan(own) & np.isnan(first)] = 0.0
        apart = np.nan_to_num(apart, nan=np.inf)
        largest = allgather([apart.max(initial=0.0)], process_set=process_set)
        distance = float(largest.numpy().max())
        size = float(np.abs(first).max(initial=0.0)) or 1.0
        relative = distance / size if np.isfinite(size) else np.inf
        precision = tf.as_dtype(variables[i].dtype)
        unit = np.finfo(precision.as_numpy_dtype).eps if precision.is_floating else 0.0
        rounding &= relative <= min(ROUNDING * float(unit), 0.01)
        if relative > worst_relative:
            worst, worst_relative = distance, relative
            worst_name = getattr(variables[i], "path", variables[i].name)
    counted = f"{len(different)} of {len(variables)} trainable variables"
    measured = f"most in `{worst_name}`, by up to {worst:.2g}"
    if rounding:
        warnings.warn(
            f"The weights of the ranks differ by rounding ({counted}, {measured}). Processors of "
            "different kinds do this; it does no harm while it stays small.",
            stacklevel=2,
        )
        return ""
    return (
        f"The weights of all ranks must be equal, and {_parties(fingerprints, ranks)} ({counted}, "
        f"{measured}). {cause}."
    )


def _parties(fingerprints: np.ndarray, ranks: Sequence[int]) -> str:
    """Return which ranks differ from the others: 'rank 2 differs from ranks 0, 1'."""
    groups = group_ranks((row.tobytes() for row in fingerprints), ranks)
    parties = sorted(groups.values(), key=len)
    if len(parties) == len(ranks):
        return f"those of {ranks_in_words(ranks)} all differ"
    others = sorted(rank for party in parties[:-1] for rank in party)
    verb = "differs" if len(others) == 1 else "differ"
    return f"{ranks_in_words(others)} {verb} from {ranks_in_words(parties[-1])}"
