"""Gradient tapes that return the gradients of all ranks combined, for your own training loops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from dlguide.distributed.steps import refuse_xla
from dlguide.errors import require
from dlguide.horovod.native import (
    Average,
    Compression,
    ProcessSet,
    global_process_set,
    require_ours,
)
from dlguide.horovod.reduction import GradientReducer


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    *,
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    groups: int | None = None,
    process_set: ProcessSet = global_process_set,
    **others: Any,
) -> tf.GradientTape:
    """Make a tape return gradients that are averaged over the ranks.

    The tape itself becomes distributed and is returned, so that it may be wrapped before or after
    it has recorded. Use it with a plain optimizer, or `DistributedOptimizer` with a plain tape,
    not both. All arguments not listed here are those of `DistributedOptimizer`.

    Args:
        op: Average, Sum, Min, Max, Product or Adasum.

    Returns:
        tf.GradientTape: `gradtape`.

    Raises:
        TypeError: when it is no tape, or an option is not supported.
        ValueError: when an argument is out of range, or the tape is distributed already.
    """
    require_ours("DistributedGradientTape", others)
    if not isinstance(gradtape, tf.GradientTape):
        raise TypeError(f"`gradtape` must be a tf.GradientTape, got {type(gradtape).__name__}.")
    fresh = not isinstance(gradtape, _DistributedTape)
    require(fresh, "gradtape", "be one that is not distributed yet", gradtape)
    reducer = GradientReducer(
        "DistributedGradientTape",
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        groups=groups,
        process_set=process_set,
    )
    base = type(gradtape)
    gradtape.__class__ = type(base.__name__, (_DistributedTape, base), {})
    gradtape._reducer = reducer
    return gradtape


class _DistributedTape:
    """The first base of a distributed tape's class."""

    _reducer: GradientReducer

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        **settings: Any,
    ) -> Any:
        """Return the gradients of all ranks combined, in the structure of `sources`."""
        grads = super().gradient(target, sources, output_gradients, **settings)
        refuse_xla()
        variables = tf.nest.flatten(sources)
        reduced = self._reducer.reduce(tf.nest.flatten(grads), variables)
        return tf.nest.pack_sequence_as(sources, reduced)
